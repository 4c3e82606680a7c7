"""The times of every worker, from a table with a row for each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Floats, Integers
from nowait.speeds.tables import Table
from nowait.speeds.worker_times import WorkerTimes, offsets_of

USUAL_NAMES = {
    "worker": ("worker", "rank"),
    "seconds": ("seconds", "duration"),
    "start": ("start",),
    "step": ("step", "iteration"),
}
"""The names of columns that are recognised, by the argument that gives another name."""
NEEDED = ("worker", "seconds")
ALIBABA = ("worker", "time", "batch_time_norm")
ALIBABA_LARGEST = 1000.0
"""The published times are normalised: the longest mini-batch of every job takes 1000."""
BYTEDANCE = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
FIXED_UNITS = {
    ALIBABA: "a table of Alibaba, whose times are normalised",
    BYTEDANCE: "a table of ByteDance, whose times are in seconds",
}
"""What is known of the times in published tables, by the columns that such a table has."""
COMPUTING = ("forward-compute", "backward-compute")


def times_of_table(table: Table, names: Mapping[str, str | None], unit_seconds: float | None) -> WorkerTimes:
    """Return the times in a table.

    ``names`` are those of its columns, None where they are the usual ones. ``unit_seconds`` is how many seconds a unit
    of its times has; None if nothing was said, which means seconds.
    """
    published = None if any(names.values()) else next((known for known in FIXED_UNITS if table.has(*known)), None)
    if published is not None:
        if unit_seconds is not None:
            raise ValueError(
                f"unit= (--unit) cannot be used: {table.path} is {FIXED_UNITS[published]}; to read it as any other "
                "table, name its columns with worker= and seconds="
            )
        return _alibaba(table) if published is ALIBABA else _bytedance(table)
    found = {argument: _column(table, argument, name) for argument, name in names.items()}
    worker, seconds, step = (found[argument] for argument in ("worker", "seconds", "step"))
    start = found["start"] if names["start"] is not None or _start_is_useful(table, found) else None
    return times_of_rows(
        table,
        table.columns[str(worker)],
        table.durations(str(seconds)) * (1.0 if unit_seconds is None else unit_seconds),
        steps=None if step is None else table.integers(step),
        starts=None if start is None else table.numbers(start),
    )


def times_of_rows(
    table: Table,
    workers: Sequence[Any],
    seconds: Floats,
    *,
    steps: Integers | None = None,
    starts: Floats | None = None,
    computing_only: bool = False,
) -> WorkerTimes:
    """Return the times by worker, in the order of their steps, or else of their starts, or else of the rows."""
    names, numbers = numbered(workers)
    if "" in names:
        row = int(np.argmax(numbers == names.index("")))
        raise ValueError(f"{table.path}: row {row + 1} does not say which worker it is about")
    moments = np.zeros(len(seconds)) if starts is None else starts
    order = np.lexsort((moments if steps is None else steps, numbers))
    if steps is not None:
        order = _without_copies(table, order, names, numbers, steps, seconds)
    counts = np.bincount(numbers[order], minlength=len(names))
    return WorkerTimes(
        seconds=seconds[order],
        offsets=offsets_of(counts),
        source=table.path.name,
        steps=None if steps is None else steps[order],
        names=() if names == [str(number) for number in range(len(names))] else tuple(names),
        computing_only=computing_only,
    )


def numbered(workers: Sequence[Any]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of workers, in order, and the place of each given one among them. Numbers are in their order.

    >>> numbered(["10", "9", "10"])
    (['9', '10'], array([1, 0, 1]))
    """
    if isinstance(workers, np.ndarray) and workers.dtype.kind in "iu":
        numbers, found = np.unique(workers, return_inverse=True)
        return list(map(str, numbers)), found
    texts = ["" if worker is None else str(worker).strip() for worker in np.asarray(workers, dtype=object)]
    names = sorted(set(texts), key=lambda name: (0, int(name), "") if _is_whole(name) else (1, 0, name))
    places = {name: place for place, name in enumerate(names)}
    return names, np.array([places[text] for text in texts], dtype=np.int64)


def _is_whole(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def _column(table: Table, argument: str, name: str | None) -> str | None:
    """Return the name of the column that an argument gives; None if it gives none and the usual ones are not there."""
    if name is None:
        usual = [known for known in USUAL_NAMES[argument] if table.has(known)]
        if len(usual) > 1:
            raise ValueError(
                f"{table.path} has columns {' and '.join(map(repr, usual))}, and only one of them can be meant: name "
                f"it with {argument}= (--{argument}-column)"
            )
        if usual or argument not in NEEDED:
            return usual[0] if usual else None
    if name is None or not table.has(name):
        wanted = " or ".join(map(repr, USUAL_NAMES[argument] if name is None else (name,)))
        known = ", ".join(map(repr, table.columns))
        raise ValueError(
            f"{table.path} has no column {wanted}: name the column with {argument}= (--{argument}-column), of "
            f"these: {known}"
        )
    return name


def _start_is_useful(table: Table, found: Mapping[str, str | None]) -> bool:
    """Return whether starts that nobody asked for order the times: without steps, and as numbers, not as text."""
    return found["start"] is not None and found["step"] is None and table.has_numbers(found["start"])


def _without_copies(
    table: Table, order: Any, names: list[str], numbers: Integers, steps: Integers, seconds: Floats
) -> Any:
    """Return the order without rows that repeat the one before; raise if a worker has two times for a step."""
    same = (np.diff(numbers[order]) == 0) & (np.diff(steps[order]) == 0)
    differs = np.flatnonzero(same & (np.diff(seconds[order]) != 0))
    if len(differs):
        first, second = sorted(order[differs[0] : differs[0] + 2] + 1)
        raise ValueError(
            f"{table.path}: worker {names[numbers[first - 1]]} has two times for step {steps[first - 1]} (rows {first} "
            f"and {second}): add up the rows of a step first"
        )
    return order[np.concatenate([[True], ~same])]


def _alibaba(table: Table) -> WorkerTimes:
    """Return the times of a job of Alibaba's cluster-trace-gpu-v2020 (column ``time`` is the iteration)."""
    seconds = table.durations("batch_time_norm") / ALIBABA_LARGEST
    return times_of_rows(table, table.columns["worker"], seconds, steps=table.integers("time"))


def _bytedance(table: Table) -> WorkerTimes:
    """Return the times of a job of ByteDance's StragglerAnalysis; a data-parallel rank is a worker.

    Its time for a step is from the start of its first forward pass to the end of its last backward pass, on any of its
    pipeline stages. So waiting for its own stages counts, and waiting for other data-parallel ranks, which is in the
    reduction of the gradients, does not.
    """
    computing = np.isin(np.asarray(table.columns["optype"], dtype=str), COMPUTING)
    if not computing.any():
        raise ValueError(f"{table.path}: no row of column 'optype' is {' or '.join(map(repr, COMPUTING))}")
    starts = table.numbers("start_ts")[computing]
    ends = starts + table.numbers("duration")[computing]
    ranks, steps = table.integers("dp_rank")[computing], table.integers("step")[computing]
    pairs, places = np.unique(np.stack([ranks, steps]), axis=1, return_inverse=True)
    begin, end = np.full(pairs.shape[1], np.inf), np.full(pairs.shape[1], -np.inf)
    np.minimum.at(begin, places.ravel(), starts)
    np.maximum.at(end, places.ravel(), ends)
    if not (end > begin).all():
        rank, step = pairs[:, int(np.argmin(end - begin))]
        raise ValueError(f"{table.path}: rank {rank} computes for {(end - begin).min():g} s in step {step}")
    return times_of_rows(table, pairs[0].tolist(), end - begin, steps=pairs[1], computing_only=True)
