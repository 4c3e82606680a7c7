"""The live view of a run, on a terminal or in a notebook: steps per second, loss, delays, and what each worker does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, final

import numpy as np

from nowait.core import Server
from nowait.engines.budget import Budget
from nowait.engines.screens import Screen, is_watched, open_screen
from nowait.recording import TraceRecorder
from nowait.recording.phases import PHASES
from nowait.recording.worker_stats import WorkerStats

MOST_WORKERS = 12
"""With more workers, only the slowest are shown."""
COLUMNS = ("worker", "node", "share", "gradients", "s/gradient", "mostly", "now")
LONGEST_NODE = 14
"""Characters of a node's name that are shown."""
RECENT = 2_000
"""Delays are those of this many recent arrivals."""


@final
@dataclass(frozen=True)
class WorkerView:
    """One row of the table."""

    worker: int
    gradients: int
    seconds: float
    """Mean seconds per gradient; negative if none has arrived."""
    state: str
    stats: WorkerStats | None = None
    """Where it is and where its time goes; None if that is not known."""


@final
class LiveView:
    """A context manager that shows the view if ``shown``; None shows it on a terminal and in a notebook."""

    def __init__(self, title: str, budget: Budget, recorder: TraceRecorder, shown: bool | None) -> None:
        self._title = title
        self._budget = budget
        self._recorder = recorder
        self.shown = is_watched() if shown is None else shown
        self._screen: Screen | None = None
        self._last = (0.0, 0)

    def __enter__(self) -> Self:
        if self.shown:
            self._screen = open_screen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._screen is not None:
            self._screen.close()

    def update(
        self,
        server: Server,
        loss: float | None,
        workers: Iterable[WorkerView],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Redraw the view. If the terminal was closed, stop drawing; the run continues."""
        if self._screen is None:
            return
        try:
            self._screen.show(self._drawn(server, loss, list(workers), metrics))
        except OSError:
            self.shown = False

    def _drawn(
        self,
        server: Server,
        loss: float | None,
        workers: list[WorkerView],
        metrics: Mapping[str, float] | None = None,
    ) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="dim")
        rows = [_cells(view, workers) for view in self._shown(workers)]
        several_nodes = len({view.stats.node for view in workers if view.stats is not None}) > 1
        left_out = "share" if several_nodes else "node"  # there is no room for both
        columns = [column for column in COLUMNS if column != left_out]
        for column in columns:
            is_text = column in ("node", "mostly", "now")
            table.add_column(column, justify="left" if is_text else "right", no_wrap=column != "now")
        for row in rows:
            table.add_row(*(row[column] for column in columns))
        hidden = len(workers) - len(rows)
        lines = [Text(line) for line in self.lines(server, loss, metrics)]
        return Group(*lines, table, *([Text(f"and {hidden} faster workers", style="dim")] if hidden else []))

    @staticmethod
    def _shown(workers: list[WorkerView]) -> list[WorkerView]:
        """Return the workers that are shown: if there are too many, those that do not compute and the slowest."""
        first = sorted(workers, key=lambda view: (view.state == "", -_slowness(view)))[:MOST_WORKERS]
        return sorted(first, key=lambda view: view.worker)

    def lines(self, server: Server, loss: float | None, metrics: Mapping[str, float] | None = None) -> list[str]:
        """Return the lines above the table."""
        now, steps = server.now, server.steps
        last_time, last_steps = self._last
        rate = (steps - last_steps) / (now - last_time) if now > last_time else 0.0
        self._last = (now, steps)
        delays = self._recorder.recent("delay", RECENT)
        late = f"delay median {np.median(delays):.0f}, maximum {delays.max()}" if len(delays) else "no delays yet"
        return [
            f"{self._title}: step {steps:,}{self._goal()}, {now:.0f} s{self._time_left(server)}",
            f"{rate:,.0f} steps/s, loss {'not known yet' if loss is None else f'{loss:.6g}'}, {late}"
            f" (M = {server.num_workers})",
            *([", ".join(f"{name} {value:.6g}" for name, value in metrics.items())] if metrics else []),
        ]

    def _goal(self) -> str:
        return "" if self._budget.steps is None else f" of {self._budget.steps:,}"

    def _time_left(self, server: Server) -> str:
        share = self._budget.share_used(server.steps, server.counts.gradients, server.now)
        if not share or server.now <= 0:
            return ""
        return f", about {server.now * (1 / share - 1):.0f} s left"


def _cells(view: WorkerView, workers: list[WorkerView]) -> dict[str, str]:
    """Return the row of a worker, by column."""
    total = max(1, sum(other.gradients for other in workers))
    return {
        "worker": str(view.worker),
        "node": "" if view.stats is None else shortened(view.stats.node),
        "share": f"{view.gradients / total:.1%}",
        "gradients": f"{view.gradients:,}",
        "s/gradient": "" if view.seconds < 0 else f"{view.seconds:.3g}",
        "mostly": "" if view.stats is None else mostly(view.stats),
        "now": view.state or "computes",
    }


def _slowness(view: WorkerView) -> float:
    """Return the seconds by which workers are sorted; one that has not delivered yet is not fast."""
    return math.inf if view.seconds < 0 else view.seconds


def mostly(stats: WorkerStats) -> str:
    """Return the phase that took most of a worker's time, with its share; empty if there is none yet."""
    phase = max(PHASES, key=stats.share_of)
    return f"{phase} {stats.share_of(phase):.0%}" if stats.phases.total > 0 else ""


def shortened(name: str) -> str:
    """Return the name of a node, cut in the middle if it is long."""
    return name if len(name) <= LONGEST_NODE else f"{name[: LONGEST_NODE // 2]}…{name[1 - LONGEST_NODE // 2 :]}"
