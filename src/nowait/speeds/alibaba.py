"""Four production training jobs whose times come with the package."""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from nowait.core import checks
from nowait.speeds.recorded import Recorded
from nowait.speeds.rows import ALIBABA_LARGEST
from nowait.speeds.worker_times import WorkerTimes, offsets_of

JOBS = 4


def alibaba(job: int) -> Recorded:
    """Return the mini-batch times of training job 1, 2, 3 or 4 on a cluster of Alibaba, with 10 workers each.

    The true seconds are not published; here the longest mini-batch of the job takes 1 second, and
    ``alibaba(4).scaled(...)`` gives other times. Which method is fastest depends only on ratios of times. About
    every tenth iteration was logged. In jobs 1 to 3 the workers are about equal; job 4 has five fast and five slow
    ones. Data: Alibaba Group, cluster-trace-gpu-v2020, CC BY 4.0; Xiao et al., "AntMan", OSDI 2020.

    >>> alibaba(4)
    Recorded(Alibaba job 4: 10 workers, 21,829 times)
    """
    number = checks.at_least(1, job, "job", f"there are jobs 1 to {JOBS}")
    if number > JOBS:
        raise ValueError(f"job must be at most {JOBS}, got {number}: there are jobs 1 to {JOBS}")
    with (files("nowait.speeds") / "data" / "alibaba.npz").open("rb") as file, np.load(file) as arrays:
        iterations, times = arrays[f"iterations_{number}"].astype(np.int64), arrays[f"times_{number}"]
    logged = times.T > 0
    return Recorded(
        WorkerTimes(
            seconds=times.T[logged] / ALIBABA_LARGEST,
            offsets=offsets_of(logged.sum(axis=1)),
            source=f"Alibaba job {number}",
            steps=np.broadcast_to(iterations, logged.shape)[logged],
        )
    )
