"""The live view of a run, on a terminal or in a notebook: steps per second, loss, delays, and what each worker does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, final

import numpy as np

from nowait.core import Server
from nowait.engines.budget import Budget
from nowait.engines.progress import title_or
from nowait.engines.screens import Screen, is_watched, open_screen
from nowait.recording import TraceRecorder
from nowait.recording.phases import PHASES
from nowait.recording.worker_stats import WorkerStats, hangs

MOST_WORKERS = 12
"""With more workers, only those that others wait for and the slowest are shown."""
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
    """Mean seconds from order to arrival of a gradient, as in ``stats.by_worker``; negative if none has arrived."""
    state: str
    """What it does, unless it computes as usual."""
    stats: WorkerStats | None = None
    """Where it is and where its time goes; None if that is not known."""
    computing: float | None = None
    """For how many seconds it has computed its present ticket; None if it has none."""
    present: bool = True
    """False if it has no process: it is lost, or there is no room for it."""

    @property
    def idle(self) -> bool:
        """True if it could compute, but has no ticket."""
        return self.present and self.computing is None

    @property
    def slowness(self) -> float:
        """The seconds per gradient that are shown: the mean, or how long it has computed so far if it hangs."""
        return self.computing if self.hangs and self.computing is not None else self.seconds

    @property
    def hangs(self) -> bool:
        """True if its present ticket takes far longer than usual, or if it has delivered none."""
        if self.computing is None or self.seconds < 0:
            return self.computing is not None
        return hangs(self.computing, self.seconds)


@final
class LiveView:
    """A context manager that shows the view if ``shown``; None shows it on a terminal and in a notebook."""

    def __init__(self, title: str, budget: Budget, recorder: TraceRecorder, shown: bool | None) -> None:
        self.title = title_or(title)
        self._budget = budget
        self._recorder = recorder
        self.shown = is_watched() if shown is None else shown
        self._screen: Screen | None = None
        self._last = (0.0, 0)

    def prepare(self) -> None:
        """Import what drawing needs, before the clock of the run starts."""
        if self.shown:
            from rich import live, table, text  # noqa: F401

    def __enter__(self) -> Self:
        if self.shown:
            self._screen = open_screen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._screen is not None:
            self._screen.close()

    def say(self, line: str) -> None:
        """Show one line instead of the view."""
        if self._screen is not None:
            from rich.text import Text

            with contextlib.suppress(OSError):  # the terminal was closed
                self._screen.show(Text(line))

    def update(
        self,
        server: Server,
        loss: float | None,
        workers: Iterable[WorkerView],
        metrics: Mapping[str, float] | None = None,
        *,
        now: float,
    ) -> None:
        """Redraw the view, ``now`` seconds after the start. If the terminal was closed, stop drawing."""
        if self._screen is None:
            return
        try:
            self._screen.show(self._drawn(server, loss, list(workers), metrics, now=now))
        except OSError:
            self.shown = False

    def _drawn(
        self,
        server: Server,
        loss: float | None,
        workers: list[WorkerView],
        metrics: Mapping[str, float] | None = None,
        *,
        now: float,
    ) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="dim")
        sorted_workers = stragglers_first(workers)
        first = sorted_workers[:MOST_WORKERS]
        rows = [_cells(view, workers) for view in first]
        several_nodes = len({view.stats.node for view in workers if view.stats is not None}) > 1
        left_out = "share" if several_nodes else "node"  # there is no room for both
        columns = [column for column in COLUMNS if column != left_out]
        for column in columns:
            is_text = column in ("node", "mostly", "now")
            table.add_column(column, justify="left" if is_text else "right", no_wrap=column != "now")
        for row in rows:
            table.add_row(*(row[column] for column in columns))
        lines = [Text(line) for line in self.lines(server, loss, metrics, now=now)]
        rest = others_line(first, sorted_workers[MOST_WORKERS:])
        return Group(*lines, table, *([Text(rest, style="dim")] if rest else []))

    def lines(
        self, server: Server, loss: float | None, metrics: Mapping[str, float] | None = None, *, now: float
    ) -> list[str]:
        """Return the lines above the table, ``now`` seconds after the start: the clock moves if nothing arrives."""
        steps = server.steps
        last_time, last_steps = self._last
        rate = (steps - last_steps) / (now - last_time) if now > last_time else 0.0
        self._last = (now, steps)
        delays = self._recorder.recent("delay", RECENT)
        late = f"delay median {np.median(delays):.0f}, maximum {delays.max()}" if len(delays) else "no delays yet"
        return [
            f"{self.title}: step {steps:,}{self._goal()}, {now:.0f} s{self._time_left(server, now)}",
            f"{rate:,.0f} steps/s, loss {'not known yet' if loss is None else f'{loss:.6g}'}, {late}"
            f" (M = {server.num_workers})",
            *([decision] if (decision := self._recorder.last_decision) else []),
            *([", ".join(f"{name} {value:.6g}" for name, value in metrics.items())] if metrics else []),
        ]

    def _goal(self) -> str:
        return "" if self._budget.steps is None else f" of {self._budget.steps:,}"

    def _time_left(self, server: Server, now: float) -> str:
        share = self._budget.share_used(server.steps, server.counts.gradients, now)
        if not share or now <= 0:
            return ""
        return f", about {max(0.0, now * (1 / share - 1)):.0f} s left"


def stragglers_first(workers: Iterable[WorkerView]) -> list[WorkerView]:
    """Return the workers in the order in which they are shown.

    Workers that others wait for come first, then those without a process, then the slowest. A worker is waited for if
    it computes while another one has no ticket.
    """
    views = list(workers)
    some_wait = any(view.idle for view in views)

    def rank(view: WorkerView) -> int:
        return 0 if some_wait and view.computing is not None else 2 if view.present else 1

    return sorted(views, key=lambda view: (rank(view), -view.slowness, view.worker))


def others_line(shown: list[WorkerView], hidden: list[WorkerView]) -> str:
    """Return the line about the workers that are not shown; empty if there are none."""
    if not hidden:
        return ""
    limit = min((view.slowness for view in shown if view.present), default=-1.0)
    faster = "faster" if max(view.slowness for view in hidden) <= limit else "more"
    return f"and {len(hidden)} {faster} worker{'' if len(hidden) == 1 else 's'}"


def _cells(view: WorkerView, workers: list[WorkerView]) -> dict[str, str]:
    """Return the row of a worker, by column."""
    total = max(1, sum(other.gradients for other in workers))
    return {
        "worker": str(view.worker),
        "node": "" if view.stats is None else shortened(view.stats.node),
        "share": f"{view.gradients / total:.1%}",
        "gradients": f"{view.gradients:,}",
        "s/gradient": _seconds(view),
        "mostly": "" if view.stats is None else mostly(view.stats),
        "now": _activity(view, any(other.idle for other in workers)),
    }


def _seconds(view: WorkerView) -> str:
    return "" if view.slowness < 0 else f"{'> ' * view.hangs}{view.slowness:.3g}"


def _activity(view: WorkerView, some_wait: bool) -> str:
    state = view.state or "computes"
    return f"{state}, others wait" if some_wait and view.computing is not None else state


def mostly(stats: WorkerStats) -> str:
    """Return the phase that took most of a worker's time, with its share; empty if there is none yet."""
    phase = max(PHASES, key=stats.share_of)
    return f"{phase} {stats.share_of(phase):.0%}" if stats.phases.total > 0 else ""


def shortened(name: str) -> str:
    """Return the name of a node, cut in the middle if it is long."""
    return name if len(name) <= LONGEST_NODE else f"{name[: LONGEST_NODE // 2]}…{name[1 - LONGEST_NODE // 2 :]}"
