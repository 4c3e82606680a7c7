"""``nw.whatif``: how much sooner a recorded synchronous job would end if nobody waited for the slowest worker."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.core import checks
from nowait.core.randomness import Stream, below, children
from nowait.core.types import Floats, Integers
from nowait.speeds import Recorded
from nowait.speeds.worker_times import WorkerTimes
from nowait.studies.whatif_result import FIRST_OF_ALL, Alternative, WhatIf
from nowait.theory import speedup

RANGE = (2.5, 97.5)
"""The percentiles of the resampled jobs that are shown as a range."""
QUANTILES = (0.05, 0.5, 0.95)
FEW_STEPS = 10


@final
@dataclass(frozen=True, eq=False)
class Steps:
    """The times of all workers in the steps that are known of all of them: a row for every step."""

    table: Floats
    note: str = ""

    @property
    def slow_last(self) -> Integers:
        """The numbers of the workers, sorted by their mean time."""
        return np.argsort(self.table.mean(axis=0), kind="stable")

    def without_slowest(self) -> Floats:
        """Return the time of every step with the 1, 2, … fastest workers: a column for each number of them."""
        times: Floats = np.maximum.accumulate(self.table[:, self.slow_last], axis=1)
        return times

    def until_first(self) -> Floats:
        """Return the time in which the first 1, 2, … workers finish every step: a column for each number of them."""
        return np.sort(self.table, axis=1)


def whatif(recorded: Recorded, *, resamples: int = 500, seed: int = 0) -> WhatIf:
    """Return how much sooner a recorded synchronous job would compute its gradients without waiting.

    It compares the job as recorded, where every step waits for all workers, with asynchronous SGD, with synchronous
    steps without the slowest workers, and with steps that end when the first m of the n workers have finished, for the
    best m. All of them compute the same number of gradients. Ranges hold 95 % of ``resamples`` jobs made of blocks of
    consecutive steps of the recorded one (a circular block bootstrap).

    The numbers count gradients in the long run: a stale gradient may be worth less than a fresh one, so they are upper
    limits. ``nw.plan(problem, speeds=recorded)`` simulates the time to a loss.

    >>> import nowait as nw
    >>> found = nw.whatif(nw.speeds.alibaba(4))
    >>> found.worth_it, round(100 * found.asynchronous.saved), round(found.speedup.speedup, 2)
    (True, 73, 3.26)
    """
    checks.instance(recorded, Recorded, "recorded", 'nw.speeds.Recorded.read("trace.parquet")')
    count = checks.at_least(2, resamples, "resamples", "a range needs several")
    if len(recorded.times) < 2:
        raise ValueError(
            f"{recorded.times.source} has times of one worker only, which waits for nobody: give those of all workers "
            "(of a profiler, the traces of all ranks)"
        )
    steps = steps_of(recorded.times)
    chosen, labels = _chosen(steps, recorded.times)
    gradients = np.array([columns for _, columns in chosen])
    observed = _costs(steps.table, [times for times, _ in chosen], gradients, None)
    places = _blocks(len(steps.table), count, seed)
    resampled = _costs(steps.table, [times for times, _ in chosen], gradients, places)
    saved, ranges = 1 - observed / observed[0], 1 - resampled / resampled[:, :1]
    low, high = np.percentile(ranges, RANGE, axis=0)
    total = steps.table.size
    alternatives = [
        Alternative(name, float(cost * total), float(saved[i]), float(low[i]), float(high[i]))
        for i, (name, cost) in enumerate(zip(labels, observed, strict=True))
    ]
    slowest = int(recorded.times.means().argmax())
    return WhatIf(
        source=recorded.times.source,
        steps=len(steps.table),
        speedup=speedup(recorded.times.means().tolist()),
        slowest=recorded.times.name(slowest),
        waiting=float(1 - steps.table.mean() / steps.table.max(axis=1).mean()),
        alternatives=tuple(alternatives),
        quantiles=np.quantile(steps.table, QUANTILES, axis=0).T,
        names=tuple(recorded.times.name(worker) for worker in range(len(recorded.times))),
        notes=_notes(steps),
    )


def steps_of(times: WorkerTimes) -> Steps:
    """Return the times by step: of steps that all workers have, or by their order, where a shorter list repeats."""
    if times.steps is None:
        return _by_order(times)
    parts = [times.steps[times.offsets[worker] : times.offsets[worker + 1]] for worker in range(len(times))]
    numbers, counts = np.unique(np.concatenate(parts), return_counts=True)
    common = numbers[counts == len(times)]
    if not len(common):
        raise ValueError(f"{times.source} has no step with times of all {len(times)} workers")
    columns = [times.of_worker(worker)[np.isin(part, common)] for worker, part in enumerate(parts)]
    note = f"Of {len(numbers):,} steps, {len(common):,} have times of all workers; the others do not count."
    return Steps(np.stack(columns, axis=1), note if len(common) < len(numbers) else "")


def _by_order(times: WorkerTimes) -> Steps:
    counts = np.diff(times.offsets)
    longest = int(counts.max())
    columns = [np.resize(times.of_worker(worker), longest) for worker in range(len(times))]
    note = (
        f"The record does not say which times are of one step: they are matched by their order, and the workers have "
        f"{counts.min():,} to {longest:,} times, which repeat."
    )
    return Steps(np.stack(columns, axis=1), note if counts.min() < longest else "")


def _chosen(steps: Steps, times: WorkerTimes) -> tuple[list[tuple[Floats, int]], list[str]]:
    """Return the ways to go on, each as the time of every step and its number of gradients, and their names.

    The last one, asynchronous SGD, has no steps; ``_costs`` adds it.
    """
    rest, first = steps.without_slowest(), steps.until_first()
    workers = rest.shape[1]
    counts = np.arange(1, workers + 1)
    best_rest = int(np.argmin(rest.mean(axis=0) / counts)) + 1
    best_first = int(np.argmin(first.mean(axis=0) / counts)) + 1
    slowest = times.name(int(steps.slow_last[-1]))
    ways = [("synchronous, as recorded", rest, workers), (f"without the slowest worker ({slowest})", rest, workers - 1)]
    if best_rest < workers - 1:
        ways.append((f"without the {workers - best_rest} slowest workers", rest, best_rest))
    cancelled = f"the first {best_first} of {workers}, rest cancelled" if best_first < workers else FIRST_OF_ALL
    ways.append((cancelled, first, best_first))
    return [(table[:, count - 1], count) for _, table, count in ways], [*(name for name, _, _ in ways), "asynchronous"]


def _costs(table: Floats, steps: list[Floats], gradients: Integers, places: Integers | None) -> Floats:
    """Return the mean seconds per gradient of every way, the asynchronous one last.

    With ``places``, where the blocks of resampled jobs begin, there is a row for each of these jobs. Asynchronous
    workers compute Σ 1/mean(seconds) gradients a second.
    """
    columns = np.column_stack([*steps, table])
    means = columns.mean(axis=0) if places is None else _block_means(columns, places)
    synchronous, own = means[..., : len(steps)] / gradients, means[..., len(steps) :]
    return np.concatenate([synchronous, 1 / (1 / own).sum(axis=-1, keepdims=True)], axis=-1)


def _blocks(steps: int, resamples: int, seed: int) -> Integers:
    """Return where the blocks of each resampled job begin: a row for each job."""
    blocks = -(-steps // _block_length(steps))
    key = Stream(seed, "whatif").key(0, 0)
    return below(children(key, resamples * blocks), steps).reshape(resamples, blocks)


def _block_length(steps: int) -> int:
    return max(1, round(math.sqrt(steps)))


def _block_means(columns: Floats, places: Integers) -> Floats:
    """Return the mean of every column over the blocks that begin at ``places`` and wrap around."""
    length = _block_length(len(columns))
    around = np.concatenate([columns, columns[:length]])
    sums = np.concatenate([np.zeros((1, columns.shape[1])), np.cumsum(around, axis=0)])
    means: Floats = (sums[places + length] - sums[places]).mean(axis=1) / length
    return means


def _notes(steps: Steps) -> tuple[str, ...]:
    few = f"Only {len(steps.table)} steps were recorded: the ranges are rough." if len(steps.table) < FEW_STEPS else ""
    return tuple(note for note in (steps.note, few) if note)
