"""Several seeds of one experiment in one table: mean and 95 % interval of every number.

    python -m paper_figures.seeds OUT.csv results/quickstart/cpu-toy-seed*

reads `table.csv` of each run and writes, per method and column, the mean over runs, half the width of
its 95 % interval (Student's t), the number of runs and their values in the order given.
"""

import argparse
import csv
import statistics
from pathlib import Path

from scipy import stats


def read(directories: list[Path]) -> dict[str, dict[str, list[float]]]:
    """Numbers by method and column, one per run.

    Raises:
      ValueError: the runs do not have the same methods.
    """
    numbers: dict[str, dict[str, list[float]]] = {}
    for directory in directories:
        with (directory / "table.csv").open() as file:
            for row in csv.DictReader(file):
                columns = numbers.setdefault(row.pop("method"), {})
                for name, value in row.items():
                    columns.setdefault(name, []).append(float(value))
    counts = {len(values) for columns in numbers.values() for values in columns.values()}
    if counts != {len(directories)}:
        raise ValueError(
            f"{len(directories)} runs differ in methods or columns: pass like with like"
        )
    return numbers


def interval(values: list[float]) -> tuple[float, float]:
    """Mean, and half of the 95 % interval of the mean; NaN for a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, float("nan")
    error = statistics.stdev(values) / len(values) ** 0.5
    return mean, float(stats.t.ppf(0.975, len(values) - 1)) * error


def write(target: Path, directories: list[Path]) -> list[dict[str, str | float]]:
    """Write and return the aggregated rows: method, column, mean, half_width, runs."""
    rows = []
    for method, columns in read(directories).items():
        for name, values in columns.items():
            mean, half_width = interval(values)
            rows.append(
                {
                    "method": method,
                    "column": name,
                    "mean": mean,
                    "half_width": half_width,
                    "runs": len(values),
                    "values": " ".join(f"{value:.6g}" for value in values),
                }
            )
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return rows


def main() -> None:
    """Aggregate the runs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="CSV file to write")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of the runs")
    arguments = parser.parse_args()
    for row in write(arguments.target, arguments.runs):
        print(f"{row['method']:26}{row['column']:34}{row['mean']:12.4g} ± {row['half_width']:.2g}")


if __name__ == "__main__":
    main()
