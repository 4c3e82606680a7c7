"""Runs with real workers, from checked parts to a ``Run``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic as system_monotonic

import numpy as np

from nowait.core.memory import Slots
from nowait.core.pickling import dumps
from nowait.engines.live import LiveView
from nowait.engines.progress import spinner
from nowait.engines.session import Parts
from nowait.engines.signals import Interruption
from nowait.fleet.host.host import shared_resources
from nowait.fleet.host.launch import Zygote, ZygoteCopy, job_of, threads_per_worker
from nowait.fleet.options import Elsewhere, Listen, WorkerOptions
from nowait.fleet.server.events import Source
from nowait.fleet.server.fleet import Fleet
from nowait.fleet.server.loop import Loop, RunClock, Waits
from nowait.fleet.sources.here import Here
from nowait.fleet.wire.hub import Hub
from nowait.recording import Run


def train_here(
    parts: Parts,
    points: Slots,
    options: WorkerOptions,
    seed: int,
    progress: bool | None,
    zygote: Zygote | ZygoteCopy,
) -> Run:
    """Run to the end of the budget with worker processes on this machine."""
    job = job_of(parts, points, options, seed)
    with shared_resources(points, job) as resources:
        hub = Hub(job.spin_seconds)
        source = Here(resources, hub, zygote, threads_per_worker(len(parts.server.workers)), options.log)
        return run_with_workers(source, make_fleet(parts, options), parts, options, hub, progress=progress)


def train_elsewhere(
    engine: Elsewhere,
    minimum: int,
    parts: Parts,
    points: Slots,
    options: WorkerOptions,
    *,
    seed: int,
    progress: bool | None,
) -> Run:
    """Run to the end of the budget on Ray or with machines that connect, once there are seats for ``minimum`` workers.

    Ray is connected.
    """
    job, hub = job_of(parts, points, options, seed), Hub()
    with shared_resources(points, job) as resources:
        source: Source
        if isinstance(engine, Listen):
            from nowait.fleet.sources.listen import ListenSource
            from nowait.fleet.wire.secure import read_drain_key, read_server_key

            drain_key = None
            with contextlib.suppress(OSError):  # it could not be made, which was said when the run was prepared
                drain_key = read_drain_key(Path(engine.key_file))
            source = ListenSource(
                engine,
                read_server_key(Path(engine.key_file)),
                drain_key,
                resources,
                hub,
                settings=memoryview(dumps(replace(job, problem=None), None)),
                deterministic=parts.capabilities.replayable,
                log=options.log,
            )
        else:
            from nowait.fleet.sources.ray import RaySource

            source = RaySource(
                engine, resources, hub, minimum=minimum, max_failures=options.max_failures, log=options.log
            )
            if engine.idle_seconds is not None:
                options = replace(options, idle_seconds=engine.idle_seconds)
        fleet = make_fleet(parts, options)
        return run_with_workers(source, fleet, parts, options, hub, minimum=minimum, progress=progress)


def make_fleet(parts: Parts, options: WorkerOptions) -> Fleet:
    """Return the fleet of a run that starts, or is resumed with the workers its checkpoint names."""
    checkpoint, workers = parts.checkpoint, parts.server.workers
    used = [*workers, options.most_workers - 1]
    if checkpoint is not None:  # new workers get numbers that no worker had before, also if it is gone
        used += [*checkpoint.wanted, *checkpoint.state.jobs]
    return Fleet(
        workers=workers,
        wanted=range(options.most_workers) if checkpoint is None else checkpoint.wanted,
        numbers_used=used,
        max_failures=options.max_failures,
        replace_hung=options.replace_hung,
        idle_seconds=options.idle_seconds,
        together=options.together,
        imitating=bool(options.slowdown) or options.speeds is not None,
    )


def run_with_workers(
    source: Source,
    fleet: Fleet,
    parts: Parts,
    options: WorkerOptions,
    hub: Waits,
    *,
    minimum: int = 1,
    progress: bool | None = None,
    monotonic: Callable[[], float] = system_monotonic,
) -> Run:
    """Run to the end of the budget with the workers of a source, once there are seats for ``minimum`` of them."""
    view = LiveView(str(parts.config.get("method", {}).get("type", "")), parts.budget, parts.recorder, progress)
    clock = RunClock(monotonic, 0.0 if parts.checkpoint is None else parts.checkpoint.state.time)
    loop = Loop(parts, source, fleet, view=view, hub=hub, clock=clock, options=options)
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
