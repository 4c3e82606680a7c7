"""What the medians of five seeds in the published benchmark are worth: the same settings with 60 fresh seeds.

    python benchmarks/fresh_seeds.py breast-cancer

Takes the three methods with the lowest published medians on every cluster, and prints the published median of each, its
median with fresh seeds, and the range (90 %) of medians of five of them. About a minute for breast-cancer.
"""

import math
import sys
from pathlib import Path

import numpy as np

from nowait.studies.bench.contenders import UPDATES
from nowait.studies.bench.folder import BenchFolder
from nowait.studies.bench.jobs import cell_of
from nowait.studies.bench.running import exact_seconds
from nowait.studies.bench.suite import suite

FIRST, SEEDS, DRAWS = 3, range(1_000, 1_060), 4_000


def seconds_of(times):
    return np.array([math.inf if time is None else time for time in times])


def fresh(chosen, entry):
    """Return the seconds to the target with fresh seeds."""
    cell = cell_of(chosen, entry.task)
    target = cell.workload.problem.target
    parts = (cell.problem, cell.method_of(entry.trial), cell.speeds)
    times = []
    for seed in SEEDS:
        run = cell.run(entry.trial, seed, trace="none")
        options = {"update": UPDATES[entry.update], "faults": cell.faults, "seed": seed}
        times.append(exact_seconds(run, target, *parts, **options))
    return seconds_of(times)


def main(problem):
    kept = BenchFolder.open(Path(__file__).parents[1] / "docs" / "bench")
    chosen = suite(str(kept.header["suite"]))
    entries = [entry for entry in kept.entries().values() if entry.problem == problem]
    published = {entry.key: float(np.median(seconds_of(run.seconds for run in entry.runs))) for entry in entries}
    draws = np.random.default_rng(0).integers(len(SEEDS), size=(DRAWS, 5))
    for cluster in sorted({entry.cluster for entry in entries}):
        column = [entry for entry in entries if entry.cluster == cluster]
        for entry in sorted(column, key=lambda entry: published[entry.key])[:FIRST]:
            times = fresh(chosen, entry)
            low, high = np.quantile(np.median(times[draws], axis=1), (0.05, 0.95), method="nearest")
            print(
                f"{cluster:14} {entry.method:30} published {published[entry.key]:5.1f} s, "
                f"fresh {np.median(times):5.1f} s, of five {low:.1f} to {high:.1f} s"
            )


if __name__ == "__main__":
    main(sys.argv[1])
