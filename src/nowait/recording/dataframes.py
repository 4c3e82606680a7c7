"""Histories, traces and sweeps as data frames of pandas and polars, which are imported only when they are used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nowait.recording.rows import ARRIVAL_DTYPE, COLUMNS, OUTCOMES

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from nowait.recording.history import History
    from nowait.recording.sweep import Sweep
    from nowait.recording.trace import Trace

Columns = dict[str, NDArray[Any]]
OUTCOME = "outcome"


def history_columns(history: History) -> Columns:
    """Return a column for the step, gradients, time, loss and every metric."""
    first = {name: getattr(history, name).copy() for name in ("step", "gradients", "time", "loss")}
    return first | {name: values.copy() for name, values in history.metrics.items()}


def trace_columns(trace: Trace) -> Columns:
    """Return the columns of a trace; ``outcome`` is an index of ``OUTCOMES``.

    The rows are read block by block, so that a trace on disk is in memory once.
    """
    columns: Columns = {name: np.empty(len(trace), ARRIVAL_DTYPE[name]) for name in COLUMNS}
    columns[OUTCOME] = np.empty(len(trace), np.int8)
    first = 0
    for block in trace.blocks():
        for name, column in columns.items():
            column[first : first + len(block)] = block[name]
        first += len(block)
    return columns


def sweep_columns(sweep: Sweep) -> Columns:
    """Return a row for every evaluation of every run."""
    made = ~np.isnan(sweep.step)
    sizes = np.broadcast_to(sweep.stepsizes[:, None, None], made.shape)
    seeds = np.broadcast_to(sweep.seeds[None, :, None], made.shape)
    counts = {name: getattr(sweep, name)[made].astype(np.int64) for name in ("step", "gradients")}
    return {
        "stepsize": sizes[made],
        "seed": seeds[made],
        **counts,
        "time": sweep.time[made],
        "loss": sweep.curves[made],
    }


def pandas_frame(columns: Columns) -> pd.DataFrame:
    """Return the columns, which are not copied, as a pandas data frame."""
    pandas = _imported("pandas")
    found: dict[str, Any] = dict(columns)
    if OUTCOME in found:
        found[OUTCOME] = pandas.Categorical.from_codes(found[OUTCOME], categories=list(map(str, OUTCOMES)))
    return pandas.DataFrame(found, copy=False)


def polars_frame(columns: Columns) -> pl.DataFrame:
    """Return the columns as a polars data frame. They are taken out of ``columns`` one by one to save memory."""
    polars = _imported("polars")
    series = []
    for name in list(columns):
        values = columns.pop(name)
        if name == OUTCOME:
            names = list(map(str, OUTCOMES))
            series.append(polars.Series(name, names, dtype=polars.Enum(names)).gather(values.astype(np.uint32)))
        else:
            series.append(polars.Series(name, values))
    frame: pl.DataFrame = polars.DataFrame(series)
    return frame


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"to_{name}() needs {name}, which cannot be imported ({error}): pip install {name}"
        ) from error
