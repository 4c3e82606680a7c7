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
from nowait.studies.record_checks import chance, check_waited, doubt
from nowait.studies.whatif_result import FEW_STEPS, FIRST_OF_ALL, Alternative, WhatIf
from nowait.theory import speedup

RANGE = (2.5, 97.5)
"""The percentiles of the resampled jobs that are shown as a range."""
QUANTILES = (0.05, 0.5, 0.95)


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

    It compares synchronous steps, which wait for all workers, with asynchronous SGD, with synchronous steps without the
    slowest workers, and with steps that end when the first m of the n workers have finished, for the best m. All of
    them compute the same number of gradients. Ranges hold 95 % of ``resamples`` jobs made of blocks of consecutive
    steps of the recorded one (a circular block bootstrap), drawn with ``seed``. The slowest workers and the best m are
    chosen once, on the whole record, so the ranges of these two ways are a little narrow.

    The numbers count gradients in the long run: a stale gradient may be worth less than a fresh one, so they are upper
    limits. ``nw.plan(problem, speeds=recorded)`` simulates the time to a loss. There is no verdict, and ``found.doubt``
    says why, if workers of the job are missing, or if the times seem to contain the waiting. The record of an
    asynchronous run is an error.

    >>> import nowait as nw
    >>> found = nw.whatif(nw.speeds.alibaba(4))
    >>> (
    ...     found.worth_it,
    ...     round(100 * found.asynchronous.saved),
    ...     round(found.speedup.speedup, 2),
    ... )
    (True, 73, 3.26)
    """
    checks.instance(recorded, Recorded, "recorded", 'nw.speeds.Recorded.read("trace.parquet")')
    count = checks.at_least(2, resamples, "resamples", "a range needs several")
    times = recorded.times
    if len(times) < 2:
        raise ValueError(
            f"{times.source} has times of one worker only, which waits for nobody: give those of all workers "
            "(of a profiler, the traces of all ranks)"
        )
    check_waited(times)
    steps = steps_of(times)
    by_worker = steps.table.mean(axis=0)
    return WhatIf(
        source=times.source,
        steps=len(steps.table),
        speedup=speedup(by_worker.tolist()),
        slowest=times.name(int(by_worker.argmax())),
        waiting=float(1 - steps.table.mean() / steps.table.max(axis=1).mean()),
        alternatives=_alternatives(steps, _blocks(len(steps.table), count, seed)),
        quantiles=np.quantile(steps.table, QUANTILES, axis=0).T,
        names=tuple(times.name(worker) for worker in range(len(times))),
        notes=_notes(steps),
        doubt=doubt(times, steps.table),
        chance=chance(steps.table),
        lasting=float(1 - by_worker.mean() / by_worker.max()),
    )


def _alternatives(steps: Steps, places: Integers) -> tuple[Alternative, ...]:
    """Return all ways with their savings; ``places`` are where the blocks of resampled jobs begin."""
    ways = _ways(steps)
    names = [*(name for name, _, _ in ways), "asynchronous"]
    times, gradients = [times for _, times, _ in ways], np.array([count for _, _, count in ways])
    observed, resampled = (_costs(steps.table, times, gradients, at) for at in (None, places))
    saved = 1 - observed / observed[0]
    low, high = np.percentile(1 - resampled / resampled[:, :1], RANGE, axis=0)
    columns = zip(
        names, (observed * steps.table.size).tolist(), saved.tolist(), low.tolist(), high.tolist(), strict=True
    )
    return tuple(Alternative(*row) for row in columns)


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


def _ways(steps: Steps) -> list[tuple[str, Floats, int]]:
    """Return the ways that have steps: their names, the time of every step, and the gradients of a step."""
    rest, first = steps.without_slowest(), steps.until_first()
    workers = rest.shape[1]
    counts = np.arange(1, workers + 1)
    best_rest = int(np.argmin(rest.mean(axis=0) / counts)) + 1
    best_first = int(np.argmin(first.mean(axis=0) / counts)) + 1
    ways = [("synchronous, waiting for all", rest, workers), ("without its slowest worker", rest, workers - 1)]
    if best_rest < workers - 1:
        ways.append((f"without its {workers - best_rest} slowest workers", rest, best_rest))
    cancelled = f"the first {best_first} of {workers}, rest cancelled" if best_first < workers else FIRST_OF_ALL
    ways.append((cancelled, first, best_first))
    return [(name, table[:, count - 1], count) for name, table, count in ways]


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
