"""The losses and metrics evaluated during a run."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from nowait.core.types import Floats, Integers

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


@final
@dataclass(frozen=True, eq=False, repr=False)
class History:
    """One entry per evaluation.

    Losses are those of iterates, whatever the output rule: ``loss[-1]`` is usually that of ``run.last``. The loss of
    the output rule's answer is ``problem.loss(run.params)``.
    """

    step: Integers
    """The step k of the iterate x_k that was evaluated; 0 for the initial params."""
    gradients: Integers
    """Valid gradients that had arrived when x_k was made."""
    time: Floats
    """When x_k was made, in seconds since the start (virtual in a simulation)."""
    loss: Floats
    """F(x_k), the loss of the iterate x_k with k = ``step``."""
    metrics: dict[str, Floats] = field(default_factory=dict)
    """Every other metric of x_k by name, as long as ``loss``; NaN where an evaluation has none of that name."""

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        last = f", last loss {self.loss[-1]:.6g} at step {self.step[-1]}" if len(self) else ""
        return f"History({len(self)} evaluations, {len(self.metrics)} other metrics{last})"

    def rows(self) -> list[dict[str, float]]:
        """Return the entries as dictionaries, for a table or a file. Metrics that are NaN are left out."""
        columns = (self.step.tolist(), self.gradients.tolist(), self.time.tolist(), self.loss.tolist())
        names = ("step", "gradients", "time", "loss")
        rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        for name, column in self.metrics.items():
            for row, value in zip(rows, column.tolist(), strict=True):
                if not math.isnan(value):
                    row[name] = value
        return rows

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas data frame with one row per evaluation and one column per metric."""
        from nowait.recording.dataframes import history_columns, pandas_frame

        return pandas_frame(history_columns(self))

    def to_polars(self) -> pl.DataFrame:
        """Return a polars data frame with one row per evaluation and one column per metric."""
        from nowait.recording.dataframes import history_columns, polars_frame

        return polars_frame(history_columns(self))

    def _repr_html_(self) -> str:
        from nowait.recording.notebook import html_of_history

        return html_of_history(self)


@final
@dataclass
class HistoryRecorder:
    """Collects evaluations."""

    entries: list[tuple[int, int, float, float]] = field(default_factory=list)
    """Step, gradients, time and loss of every evaluation."""
    metrics: list[Mapping[str, float]] = field(default_factory=list)
    """The other metrics of every evaluation."""
    _checked: tuple[int, int] = field(default=(0, 0), init=False, repr=False, compare=False)
    """For how many evaluations ``checksum`` was computed, and the result."""

    def add(
        self, step: int, gradients: int, time: float, loss: float, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Add an evaluation."""
        self.entries.append((step, gradients, time, loss))
        self.metrics.append(metrics or {})

    def cut(self, last_step: int) -> HistoryRecorder:
        """Return the evaluations up to a step."""
        kept = HistoryRecorder()
        for entry, metrics in zip(self.entries, self.metrics, strict=True):
            if entry[0] <= last_step:
                kept.add(*entry, metrics)
        return kept

    def checksum(self, count: int) -> int:
        """Return the checksum of the first evaluations, without their other metrics."""
        first, checksum = self._checked if self._checked[0] <= count else (0, 0)
        for entry in self.entries[first:count]:
            checksum = zlib.crc32(json.dumps(entry).encode(), checksum)
        self._checked = count, checksum
        return checksum

    def history(self) -> History:
        """Return the history so far."""
        columns = list(zip(*self.entries, strict=True)) or [(), (), (), ()]
        step, gradients, time, loss = columns
        return History(
            np.array(step, dtype=np.int64),
            np.array(gradients, dtype=np.int64),
            np.array(time, dtype=np.float64),
            np.array(loss, dtype=np.float64),
            {name: self._column(name) for name in dict.fromkeys(name for row in self.metrics for name in row)},
        )

    def _column(self, name: str) -> Floats:
        return np.array([row.get(name, math.nan) for row in self.metrics], dtype=np.float64)
