"""What a recorded job cannot tell: workers are missing, times contain the waiting, differences are chance."""

from __future__ import annotations

import math

import numpy as np

from nowait.core.types import Floats
from nowait.speeds.worker_times import WorkerTimes

ALIKE, ALMOST_EQUAL = 0.05, 0.01
"""Times of a step that differ by less (standard deviation over mean, the median step) may contain the waiting.

Workers that wait for the slowest end a step together. Their logs differ only by how exactly they measure: by 0.5 % and
4 % in two jobs of ``DistributedDataParallel`` on a busy machine. Between the two limits, the times of a step must also
differ less than the steps do. The jobs in ``docs/clusters.md`` that log computing only differ by 7 % and more.
"""
LITTLE = 0.10
"""Above this share of waiting, the times do not contain the waiting."""
MOST_NAMED = 8
"""So many missing workers are named, in ranges."""


def doubt(times: WorkerTimes, table: Floats) -> str:
    """Return why the record allows no verdict, as a clause; empty if it does. ``table`` has a row for every step."""
    reasons = [_missing_workers(times), "" if times.computing_only else _contains_waiting(table)]
    return ". Also, ".join(reason for reason in reasons if reason)


def check_waited(times: WorkerTimes) -> None:
    """Raise if workers of the recorded run did not wait for each other."""
    if times.asynchronous:
        raise ValueError(
            f"{times.source}: some gradients of the recorded run were late (their delay is above 1), so its workers "
            "did not all wait for each other, as the question of nw.whatif supposes. To see what waiting would cost, "
            "simulate nw.MinibatchSGD with these speeds, or use nw.plan"
        )


def chance(table: Floats) -> float | None:
    """Return the probability that the means of equally fast workers differ as much; None if there are too few steps.

    The F test of a two-way analysis of variance, workers by blocks of consecutive steps: the means of blocks are nearly
    independent, and nearly normal even if times have heavy tails.
    """
    from scipy.special import fdtrc

    length = max(1, round(math.sqrt(len(table))))
    blocks, workers = len(table) // length, table.shape[1]
    if blocks < 2:
        return None
    means = table[: blocks * length].reshape(blocks, length, workers).mean(axis=1)
    by_worker, by_block = means.mean(axis=0), means.mean(axis=1, keepdims=True)
    between = blocks * float(((by_worker - means.mean()) ** 2).sum())
    rest = float(((means - by_worker - by_block + means.mean()) ** 2).sum()) / (blocks - 1)
    rounding = 1e-20 * float((means**2).sum())
    if rest <= rounding:
        return 1.0 if between <= rounding else 0.0
    return float(f"{fdtrc(workers - 1, (workers - 1) * (blocks - 1), between / rest):.3g}")


def _contains_waiting(table: Floats) -> str:
    alike = float(np.median(table.std(axis=1) / table.mean(axis=1)))
    waiting = 1 - table.mean() / table.max(axis=1).mean()
    steps_differ_more = len(table) > 1 and table.mean(axis=1).var(ddof=1) > table.var(axis=1, ddof=1).mean()
    if waiting >= LITTLE or alike >= (ALIKE if steps_differ_more else ALMOST_EQUAL):
        return ""
    return (
        f"within a step the workers' times differ by only {100 * alike:.2g} %, so they probably contain the waiting "
        "for the slowest worker, as logs of synchronous steps do. Record how long each worker computes its own "
        "gradient, without communication, or pass the torch.profiler traces of all ranks. If these times are without "
        f"waiting already, asynchrony saves about {100 * max(0.0, waiting):.0f} %"
    )


def _missing_workers(times: WorkerTimes) -> str:
    count, numbers = times.missing()
    if not count:
        return ""
    named = f" ({ranges(numbers)})" if numbers else ""
    known = "" if times.world_size is not None else f", or pass world_size={len(times)} (--world-size) if these are all"
    return (
        f"the record lacks {count} of {count + len(times)} workers{named}, and the slowest of a step may be one of "
        f"them: the job waits longer than the recorded workers show. Record all of them{known}"
    )


def ranges(numbers: list[int]) -> str:
    """Return numbers in order as text, consecutive ones as a range.

    >>> ranges([0, 2, 3, 4, 9])
    '0, 2 to 4, 9'
    """
    values = np.array(numbers)
    parts = np.split(values, np.flatnonzero(np.diff(values) != 1) + 1)
    texts = [str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts]
    return ", ".join(texts[:MOST_NAMED]) + (" and others" if len(texts) > MOST_NAMED else "")
