"""The whole run in a bounded number of columns of time, each worker in a row."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Floats, Integers
from nowait.dashboard.cells import Cells, began, cells_of

MOST_COLUMNS = 256
FIRST_WIDTH = 2.0**-20
"""Seconds of a column at the start. Runs in virtual time may be short."""


@final
class Grid:
    """Cells of worker x time from 0 to now. Columns double in width when time passes the end of the last one."""

    def __init__(self, most_columns: int = MOST_COLUMNS) -> None:
        self.width = FIRST_WIDTH
        self.num_columns = 0
        """Columns in use: time has reached the last of them."""
        self.doublings = 0
        self._most = most_columns
        self._cells = _empty(0, most_columns)
        self._steps: Integers = np.zeros(most_columns, np.int64)
        """The highest step known in each column; 0 in columns without one."""
        self.version = 0
        """Counts changes."""
        self._changed: Integers = np.zeros(most_columns, np.int64)
        """The version in which each column changed last."""

    @property
    def num_workers(self) -> int:
        """The highest worker number that has arrived, plus 1."""
        return len(self._cells.arrivals)

    @property
    def cells(self) -> Cells:
        """The columns in use."""
        return Cells(*(table[:, : self.num_columns] for table in self._cells))

    @property
    def steps(self) -> Integers:
        """The steps made by the end of each column in use."""
        steps: Integers = np.maximum.accumulate(self._steps[: self.num_columns])
        return steps

    def add(self, rows: NDArray[np.void]) -> None:
        """Add arrivals."""
        if not len(rows):
            return
        self.reach(float(rows["time"].max()))
        self._grow(int(rows["worker"].max()) + 1)
        first = int(began(rows).min() / self.width)
        shape = (self.num_workers, self.num_columns - first)
        new = cells_of(rows, rows["worker"], shape, first * self.width, self.width)
        used = slice(first, self.num_columns)
        for name, table in new._asdict().items():
            mine = getattr(self._cells, name)[:, used]
            np.maximum(mine, table, out=mine) if name == "delay_max" else np.add(mine, table, out=mine)
        self.made_steps(rows["time"], rows["step"])
        self._changed[used] = self.version

    def first_changed(self, since: int) -> int:
        """Return the first column that has changed since a version; the number of columns if none has."""
        changed = np.flatnonzero(self._changed[: self.num_columns] > since)
        return int(changed[0]) if len(changed) else self.num_columns

    def made_steps(self, times: Floats, steps: Integers) -> None:
        """Note how many steps had been made at these times."""
        self.reach(float(times.max(initial=0.0)))
        columns = np.minimum((times / self.width).astype(np.int64), self._most - 1)
        np.maximum.at(self._steps, columns, steps)
        self.version += 1
        self._changed[columns] = self.version

    def reach(self, time: float) -> None:
        """Extend the columns up to a time; if they are too many, double their width until they are not."""
        factor = 1
        while time >= factor * self.width * self._most:
            factor *= 2
        if factor > 1:
            self._widen(factor)
        self.num_columns = max(self.num_columns, int(time / self.width) + 1)

    def _widen(self, factor: int) -> None:
        tables = {name: _merged(table, factor, np.add) for name, table in self._cells._asdict().items()}
        tables["delay_max"] = _merged(self._cells.delay_max, factor, np.maximum)
        self._cells = Cells(**tables)
        self._steps = _merged(self._steps[None, :], factor, np.maximum)[0]
        self.width *= factor
        self.num_columns = -(-self.num_columns // factor)
        self.doublings += 1
        self.version += 1
        self._changed[:] = self.version

    def _grow(self, workers: int) -> None:
        more = workers - self.num_workers
        if more > 0:
            pairs = zip(self._cells, _empty(more, self._most), strict=True)
            self._cells = Cells(*(np.concatenate(pair) for pair in pairs))


def _empty(workers: int, columns: int) -> Cells:
    shape = (workers, columns)
    whole, short = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    return Cells(whole, np.zeros(shape), whole.copy(), short, short.copy(), short.copy())


def _merged(table: NDArray[Any], factor: int, add: np.ufunc) -> NDArray[Any]:
    """Return a table in which every ``factor`` columns are one, followed by empty columns."""
    merged = np.zeros_like(table)
    starts = np.arange(0, table.shape[1], factor)
    merged[:, : len(starts)] = add.reduceat(table, starts, axis=1)
    return merged
