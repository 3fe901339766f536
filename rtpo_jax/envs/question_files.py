"""Question files: one JSON object a line, with the fields "question" and "answer"."""

import json
from pathlib import Path

from rtpo_jax.envs.answers import parse_number
from rtpo_jax.envs.checks import check_integer


def load_questions(path: str | Path, limit: int | None = None) -> tuple[tuple[str, str], ...]:
    """Return (question, answer) pairs of a JSONL file, the first `limit` of them.

    "answer" is a number, as text or JSON number, or a worked solution that ends in `#### number`;
    thousands commas are dropped. Blank lines are skipped and other fields ignored. Raises
    ValueError with file and line for invalid JSON, missing or ill-typed fields, answers that are
    no number, for a file without questions and for one with fewer than `limit`.
    """
    if limit is not None:
        check_integer("limit", limit, 1)
    items: list[tuple[str, str]] = []
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if len(items) == limit:
                break
            if line.strip():
                items.append(_read_line(line, f"{path}, line {number}"))
    if not items:
        raise ValueError(f"{path} has no questions; write one JSON object a line")
    if limit is not None and len(items) < limit:
        raise ValueError(f"{limit} questions are asked for but {path} has {len(items)}; ask fewer")
    return tuple(items)


def _read_line(line: str, where: str) -> tuple[str, str]:
    try:
        # Numbers stay text, so that 0.1 is the decimal and not the nearest float.
        record = json.loads(line, parse_float=str, parse_int=str)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not valid JSON ({error}); write one object a line") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: not a JSON object; write one object a line")
    for field in ("question", "answer"):
        if not isinstance(record.get(field), str) or not record[field].strip():
            raise ValueError(
                f"{where}: field {field!r} is {record.get(field)!r}; give a non-empty text"
            )
    gold = record["answer"].rpartition("####")[2].strip()
    if parse_number(gold) is None:
        raise ValueError(f"{where}: the answer {gold[:60]!r} is not one number; give a number")
    return record["question"], gold.replace(",", "")
