"""Runs with real workers, from start to end."""

from __future__ import annotations

import math

import numpy as np

from nowait.engines.live import LiveView
from nowait.engines.progress import spinner
from nowait.engines.session import Parts
from nowait.engines.signals import Interruption
from nowait.engines.workers.clock import SystemClock, WallClock
from nowait.engines.workers.loop import Loop
from nowait.engines.workers.transport import Transport
from nowait.engines.workers.workforce import Workforce
from nowait.fleet.options import WorkerOptions
from nowait.recording import Run


def make_workforce(parts: Parts, options: WorkerOptions) -> Workforce:
    """Return the workforce of a run that starts, or is resumed with the workers its checkpoint names."""
    checkpoint = parts.checkpoint
    used = [*parts.server.workers, options.most_workers - 1]
    if checkpoint is not None:  # new workers get numbers that no worker had before, also if it is gone
        used += [*checkpoint.wanted, *checkpoint.state.jobs]
    return Workforce(
        wanted=range(options.most_workers) if checkpoint is None else checkpoint.wanted,
        numbers_used=used,
        max_failures=options.max_failures,
        replace_hung=options.replace_hung,
        end=math.inf if parts.budget.seconds is None else parts.budget.seconds,
        idle_seconds=options.idle_seconds,
    )


def run_with_workers(
    transport: Transport,
    parts: Parts,
    options: WorkerOptions,
    *,
    minimum: int = 1,
    progress: bool | None = None,
    clock: WallClock | None = None,
) -> Run:
    """Run to the end of the budget with the workers of a transport, once there is room for ``minimum`` of them."""
    view = LiveView(str(parts.config.get("method", {}).get("type", "")), parts.budget, parts.recorder, progress)
    imitating = bool(options.slowdown) or options.speeds is not None
    workforce = make_workforce(parts, options)
    loop = Loop(parts, transport, workforce, view, clock or SystemClock(), imitating=imitating, options=options)
    try:
        with Interruption(loop.interrupt, hangup=True), np.errstate(over="ignore", invalid="ignore"):
            with spinner(f"{view.title}: starting the workers", view.shown):
                loop.open(minimum)
                view.prepare()
            with loop.calling_on_end():
                loop.begin()
                with view:
                    loop.run()
                    return loop.result()
    finally:
        loop.close()
