"""The timeline of an interval of a run: its jobs if they are few, else cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Integers
from nowait.dashboard.cells import Cells, began, cells_of
from nowait.dashboard.grid import MOST_COLUMNS, Grid

MOST_JOBS = 3_000
"""More jobs than this are shown as cells."""


class Stretch(NamedTuple):
    """Cells of an interval of time, with a row for each lane."""

    start: float
    width: float
    cells: Cells


def lane_numbers(workers: Integers, lanes: Sequence[int]) -> Integers:
    """Return the place of each worker among the lanes; -1 for workers that have none."""
    place = np.full(max([*lanes, int(workers.max(initial=-1))], default=-1) + 1, -1)
    place[list(lanes)] = np.arange(len(lanes))
    return place[workers]


def jobs_between(rows: NDArray[np.void], lanes: Sequence[int], start: float, end: float) -> NDArray[np.void]:
    """Return the jobs of these lanes that run between two times."""
    shown = (rows["time"] >= start) & (began(rows) <= end) & (lane_numbers(rows["worker"], lanes) >= 0)
    return rows[shown]


def stretch_of_jobs(jobs: NDArray[np.void], lanes: Sequence[int], start: float, end: float) -> Stretch:
    """Return jobs as cells."""
    width = (end - start) / MOST_COLUMNS
    lane = lane_numbers(jobs["worker"], lanes)
    return Stretch(start, width, cells_of(jobs, lane, (len(lanes), MOST_COLUMNS), start, width))


def stretch_of_grid(grid: Grid, lanes: Sequence[int], start: float = 0.0, end: float = np.inf) -> Stretch:
    """Return the columns of a grid that are between two times, in its own width."""
    first = min(int(max(0.0, start) / grid.width), max(0, grid.num_columns - 1))
    last = min(grid.num_columns, int(np.ceil(min(end, grid.num_columns * grid.width) / grid.width)))
    return Stretch(
        first * grid.width, grid.width, Cells(*(_of_lanes(table, lanes)[:, first:last] for table in grid.cells))
    )


def _of_lanes(table: NDArray[Any], lanes: Sequence[int]) -> NDArray[Any]:
    """Return the rows of these workers; zeros for workers that have not delivered yet."""
    chosen = np.zeros((len(lanes), table.shape[1]), table.dtype)
    known = [place for place, worker in enumerate(lanes) if worker < len(table)]
    chosen[known] = table[[lanes[place] for place in known]]
    return chosen
