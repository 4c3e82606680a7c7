"""Makes src/nowait/speeds/data/alibaba.npz from the CSV files of its origin.

Download job_1.csv to job_4.csv from github.com/alibaba/clusterdata, folder cluster-trace-gpu-v2020/mini-batch-time, and
run ``python .ci/alibaba.py FOLDER``.
"""

import csv
import sys
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parents[1] / "src" / "nowait" / "speeds" / "data" / "alibaba.npz"


def main(folder: Path) -> None:
    arrays = {}
    for job in range(1, 5):
        with (folder / f"job_{job}.csv").open(newline="") as file:
            rows = [(int(row["time"]), int(row["worker"]), int(row["batch_time_norm"])) for row in csv.DictReader(file)]
        arrays |= {f"iterations_{job}": iterations(rows), f"times_{job}": table(rows)}
    np.savez_compressed(TARGET, **arrays)
    print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes")


def iterations(rows: list[tuple[int, int, int]]) -> np.ndarray:
    return np.array(sorted({iteration for iteration, _, _ in rows}), np.uint16)


def table(rows: list[tuple[int, int, int]]) -> np.ndarray:
    """Return one row per iteration and one column per worker; 0 where the origin has no row."""
    numbers = iterations(rows)
    times = np.zeros((len(numbers), 1 + max(worker for _, worker, _ in rows)), np.uint16)
    for iteration, worker, time in rows:
        place = int(np.searchsorted(numbers, iteration)), worker
        if times[place] not in (0, time):
            sys.exit(f"worker {worker} has two different times for iteration {iteration}")
        times[place] = time
    return times


if __name__ == "__main__":
    main(Path(sys.argv[1]))
