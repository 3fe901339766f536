"""The table of guarantees: its verdicts, what must hold and fail, and the files it leaves."""

import json
import os

import numpy as np
import pytest

import tabular
from experiments import guarantees, theory
from experiments.theory import guarantee_claims, guarantee_instances
from experiments.theory.claims import load_counterexample
from experiments.theory.guarantee_cells import ADVANTAGES, COLUMNS, UPDATES
from experiments.theory.guarantee_runs import Cell, Tally
from experiments.theory.guarantee_texts import is_proven, paper, verdict, why


@pytest.fixture(scope="module")
def seed():
    return int(os.environ["FRESH_SEED"])


@pytest.fixture(scope="module")
def findings(seed, tmp_path_factory):
    import jax

    with jax.enable_x64(True):
        found = guarantees.run(
            guarantees.Config(
                size="tiny",
                seed=seed,
                num_mdps=40,
                shapes=(guarantee_instances.SMALL_SHAPE,),
                iterations=2,
                rounds=3,
            )
        )
        directory = tmp_path_factory.mktemp("guarantees")
        theory.write(found, directory)
    return found, directory


def rows_of(findings, **where):
    rows = findings[0].tables["guarantees"]
    return [row for row in rows if all(row[name] == value for name, value in where.items())]


def test_every_claim_is_as_expected_and_violations_have_a_margin(findings, seed):
    claims = findings[0].claims
    assert all(c.as_expected for c in claims), f"{seed=} {claims}"
    failing = [c for c in claims if not c.expected]
    assert len(failing) == 7 and all(c.worst < 10 * c.bound for c in failing), f"{seed=} {claims}"
    assert all(c.counterexample in findings[0].counterexamples for c in failing), f"{seed=}"


def test_share_of_the_gap_closed_by_hand():
    def tally(changes, gaps):
        return Tally(np.array(changes), None, None, None, np.array(gaps), None)

    # Gaps of 1, 0.5 and 0.5 at the start; 0.4, 0.1 and 0 closed.
    main, searched = tally([[0.3, 0.0], [0.1, 0.1]], [0.6, 0.4]), tally([[0.0], [0.0]], [0.5])
    record = guarantee_claims.Record(None, [main], searched, ())
    assert record.closed == pytest.approx(0.5 / 2)
    idle = guarantee_claims.Record(None, [tally([[0.0]], [0.6])], tally([[0.0]], [0.5]), ())
    assert idle.closed == 0.0


def test_the_table_has_every_cell_once(findings):
    rows = findings[0].tables["guarantees"]
    cells = {(r["turns"], r["update"], r["advantage"], r["column"]) for r in rows}
    assert len(rows) == len(cells) == 2 * len(UPDATES) * len(ADVANTAGES) * len(COLUMNS)
    assert all(row["why"] for row in rows)
    assert list(dict.fromkeys(row["column"] for row in rows)) == list(COLUMNS)
    assert [row["turns"] for row in rows] == sorted((r["turns"] for r in rows), reverse=True)
    ran = [row for row in rows if row["verdict"] != "not run"]
    assert len(ran) > 250 and all(row["mdps"] == 80 for row in ran)


def test_cells_that_a_theorem_covers_hold_up_to_overshoot(findings, seed):
    """The product's theorem speaks of steps that raise the surrogate; an ascent may not."""
    for row in findings[0].tables["guarantees"]:
        cell = Cell(*(row[name] for name in Cell._fields))
        if row["verdict"] == "not run" or not is_proven(cell):
            continue
        allowed = ("holds", "violated: optimiser")
        kept = allowed if cell.update == "PPU sequence, product" else allowed[:1]
        assert row["verdict"] in kept, f"{seed=} {row}"


def test_group_relative_tokens_hold_where_the_paper_says_no(findings, seed):
    rows = rows_of(findings, update="PPU token", advantage="group-relative", column="exact")
    assert [row["paper"] for row in rows] == ["no", "no"]
    assert all(row["verdict"] == "holds" and row["basis"] == "theorem" for row in rows), f"{seed=}"
    rows = rows_of(findings, update="REINFORCE", advantage="group-relative")
    multi = [row for row in rows if row["turns"] == "multi-turn" and row["share_biased"] != ""]
    assert {row["paper"] for row in multi} == {"no"}
    tied = [row for row in multi if COLUMNS[row["column"]].ties in ("shared", "linear")]
    assert all(row["share_biased"] == 0 for row in tied), f"{seed=}"


def test_violated_cells_have_a_counterexample_that_falls(findings, seed):
    found, directory = findings
    for row in found.tables["guarantees"]:
        name = row["counterexample"]
        assert bool(name) == (row["verdict"] != "not run" and row["lowered"] > 0)
        if name:
            numbers = found.counterexamples[name].numbers
            assert numbers["change"] < -1e-12, f"{seed=} {name}"
            assert (directory / "counterexamples" / f"{name}.json").exists()
    assert len(found.counterexamples) > 30, f"{seed=}"


def chosen(found, kind):
    """One counterexample of a kind; the fewest states, so that replaying compiles little."""
    return min(
        (c for c in found.counterexamples.values() if kind(c.settings)),
        key=lambda c: (np.asarray(c.arrays["policy"]).size, c.statement),
    )


KINDS = {
    "exact": lambda s: s["column"] == "exact" and s["update"] == "PPU token",
    "tied": lambda s: s["column"] == "linear features" and s["update"] == "REINFORCE",
    "episode": lambda s: "geometric" in s["update"] and s["column"] == "linear features",
    "chains": lambda s: s["column"] == "finite groups" and s["advantage"] == "group-relative",
    "siblings": lambda s: s["column"] == "finite groups" and s["advantage"] == "sibling",
}


@pytest.mark.parametrize(
    "kind",
    [
        "episode",
        "siblings",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("exact", "tied", "chains")),
    ],
)
def test_counterexamples_replay_from_their_file(kind, findings, seed, tmp_path):
    counterexample = chosen(findings[0], KINDS[kind])
    path = tmp_path / "counterexample.json"
    counterexample.save(path)
    again = guarantees.replay(load_counterexample(path))
    assert again.keys() == counterexample.numbers.keys()
    for name, number in counterexample.numbers.items():
        assert again[name] == pytest.approx(number, abs=1e-12), f"{seed=} {name}"


def test_a_counterexample_stands_on_its_own(findings, seed):
    """Performance before, from the arrays of the file alone."""
    stored = chosen(findings[0], KINDS["chains"])
    policy = np.asarray(stored.arrays["policy"])
    before = tabular.performance(stored.mdp, policy)
    assert before == pytest.approx(stored.numbers["performance_before"], abs=1e-12), f"{seed=}"
    rows = np.asarray(stored.arrays["rows_states"])
    assert rows.shape == (16, 2) and rows.max() < policy.shape[1]


def test_a_tampered_file_does_not_replay(findings, tmp_path):
    path = tmp_path / "counterexample.json"
    chosen(findings[0], KINDS["chains"]).save(path)
    record = json.loads(path.read_text())
    record["arrays"]["rewards"] = (1.0 - np.array(record["arrays"]["rewards"])).tolist()
    path.write_text(json.dumps(record))
    stored = load_counterexample(path)
    again = guarantees.replay(stored)
    assert abs(again["change"] - stored.numbers["change"]) > 1e-6


def test_verdicts_tell_causes_apart():
    cell = Cell("multi-turn", "PPU token", "group-relative", "shared logits")
    sampled = cell._replace(column="finite groups")
    cases = [
        (cell, (False, False, False), "holds"),
        (cell, (True, False, False), "violated: step size"),
        (cell, (True, True, False), "violated: bias"),
        (cell, (False, True, False), "violated: bias"),
        (cell, (True, False, True), "violated: optimiser"),
        (sampled, (True, False, False), "violated: sampling"),
        (sampled, (False, False, False), "holds"),
    ]
    for place, flags, expected in cases:
        assert verdict(place, *flags) == expected
        assert why(place, expected)


def test_what_the_paper_says():
    cell = Cell("multi-turn", "REINFORCE", "group-relative", "exact")
    assert (paper(cell), paper(cell._replace(turns="single-turn"))) == ("no", "yes")
    assert paper(cell._replace(update="sequential")) == "yes"
    assert paper(cell._replace(advantage="sibling")) == ""


def test_biased_values_and_other_goals_are_never_called_proven():
    for column in COLUMNS:
        for update in UPDATES:
            cell = Cell("multi-turn", update, "GAE, noisy values, trace 0.5", column)
            assert not is_proven(cell)
            assert not is_proven(cell._replace(advantage="group-relative", column="discount"))
            assert not is_proven(cell._replace(advantage="sibling", column="finite groups"))
    hidden = Cell("multi-turn", "PPU token", "group-relative", "hidden states")
    assert not is_proven(hidden) and is_proven(hidden._replace(update="sequential"))


def test_slugs_name_cells_uniquely():
    slugs = {
        Cell(turns, update, advantage, column).slug
        for turns in ("single-turn", "multi-turn")
        for update in UPDATES
        for advantage in ADVANTAGES
        for column in COLUMNS
    }
    assert len(slugs) == 2 * len(UPDATES) * len(ADVANTAGES) * len(COLUMNS)
    assert all(slug.replace("_", "").isalnum() for slug in slugs)


@pytest.mark.parametrize("ties", ["table", "hidden", "shared", "linear"])
def test_random_policies_belong_to_their_class(ties, seed):
    rng = np.random.default_rng(seed)
    case = guarantee_instances.random_cases(rng, "multi-turn", (2, 3, 2), ties, 5)
    for place in range(5):
        features = case.features[place].reshape(6 * 2, -1)
        logits = np.log(case.policy[place]).reshape(6, 2)
        # A constant in every row is free; the rest has to be linear in the features.
        rows = np.repeat(np.eye(6), 2, axis=0)
        design = np.concatenate([features, rows], axis=1)
        rest = logits.ravel() - design @ np.linalg.lstsq(design, logits.ravel(), rcond=None)[0]
        assert abs(rest).max() < 1e-9, f"{seed=}"
        alike = case.contexts[place][:, :, None] == case.contexts[place][:, None, :]
        assert (abs(np.diff(case.policy[place], axis=-1)) > 0).any()
        apart = abs(case.policy[place][:, :, None] - case.policy[place][:, None]).max(-1)
        assert apart[alike].max() < 1e-12


def test_refused_options():
    with pytest.raises(ValueError, match="iterations=0: use 1 or more"):
        guarantees.Config(iterations=0)
    with pytest.raises(ValueError, match="num_mdps=301 with 2 shapes: use a multiple of that"):
        guarantees.Config(num_mdps=301)
    with pytest.raises(ValueError, match="num_mdps=6: use 16 or more"):
        guarantees.Config(num_mdps=6)
    with pytest.raises(ValueError, match="use 2 or more turns, states and actions"):
        guarantees.Config(shapes=((3, 1, 2),))


@pytest.mark.slow
def test_all_claims_at_size_cpu(seed):
    found = guarantees.run(guarantees.Config(seed=seed))
    assert all(claim.as_expected for claim in found.claims), f"{seed=} {found.claims}"
