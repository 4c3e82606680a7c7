"""Worker processes on this machine: the pools of zygotes that share memory with the server, and the local transport."""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import Collection, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import final

from nowait.core import Problem
from nowait.core.memory import HOST, Slots
from nowait.core.problem import process_settings
from nowait.engines.processes.pool import Leaves, PipeChannel, Ready, WorkerPool, Zygote, ZygoteCopy
from nowait.engines.processes.resources import SharedResources, shared_resources
from nowait.engines.session import Parts
from nowait.engines.workers.clock import SystemClock
from nowait.engines.workers.running import run_with_workers
from nowait.engines.workers.transport import (
    HOME,
    Died,
    Gone,
    Leaving,
    Opened,
    Reports,
    TransportEvent,
)
from nowait.fleet.options import WorkerOptions
from nowait.fleet.platform import available_cores, portable, spin_seconds
from nowait.fleet.wire.records import GRACE_SECONDS, Job
from nowait.recording import Run

_shared_zygote: ContextVar[tuple[tuple[int, list[str]], Zygote] | None] = ContextVar("shared_zygote", default=None)
"""The zygote of ``shared_zygote``, with the settings that it was launched with."""


@final
class LocalPools:
    """The worker pools of this machine by place, and the mailbox through which all their workers report."""

    def __init__(self, resources: SharedResources) -> None:
        self._mailbox = resources.mailbox
        self._slots = resources.gradients
        self._gradients = self._slots.views
        self._only_reports = [self._mailbox.reports]
        self._pools: dict[int, tuple[WorkerPool, float]] = {}
        """Each with its capacity."""
        self._is_pending = False
        self.fds = frozenset(self._only_reports)

    def __getitem__(self, place: int) -> WorkerPool:
        return self._pools[place][0]

    def __contains__(self, place: int) -> bool:
        return place in self._pools

    def add(self, place: int, pool: WorkerPool, capacity: float) -> None:
        """Add a pool whose zygote is loading; ``Opened`` follows when it is ready."""
        self._pools[place] = (pool, capacity)
        self._update_fds()

    def remove(self, place: int) -> None:
        """Close a pool, and forget it."""
        pool, _ = self._pools.pop(place)
        pool.close()
        self._update_fds()

    def _update_fds(self) -> None:
        self.fds = frozenset([*self._only_reports, *(pool.control.fileno() for pool, _ in self._pools.values())])

    def pending(self) -> bool:
        """Return True if a pool has messages that its socket will not announce again. Called before each wait."""
        self._is_pending = any(pool.has_messages for pool, _ in self._pools.values())
        return self._is_pending

    def receive(self, ready: Collection[int]) -> Iterable[TransportEvent]:
        """Return what workers and zygotes reported. The last reports of a process come before its death."""
        if ready == self._only_reports and not self._is_pending:  # by far the most frequent case
            return (Reports(self._mailbox.read(), self._gradients),)
        return self._receive_all(ready)

    def _receive_all(self, ready: Collection[int]) -> Iterator[TransportEvent]:
        for place, (pool, _) in list(self._pools.items()):
            if place in self._pools and (pool.has_messages or pool.control.fileno() in ready):
                yield from self._receive_from(place)
        yield Reports(self._mailbox.drain(), self._gradients)

    def _receive_from(self, place: int) -> Iterator[TransportEvent]:
        """Return what the zygote of a place reported; its pool may be removed by whoever handles these events."""
        pool, capacity = self._pools[place]
        events = pool.receive()
        if events:
            yield Reports(self._mailbox.drain(), self._gradients)
        for event in events:
            if isinstance(event, Died):
                yield event
            elif place not in self._pools:  # the place was dismissed when its last worker left
                return
            elif isinstance(event, Ready):
                yield Opened(place, capacity, name=socket.gethostname())
            elif isinstance(event, Leaves):
                if place != HOME:  # which ends with the run
                    yield Leaving(place, GRACE_SECONDS)
            else:
                self.remove(place)
                yield Gone(place, event.cause, event.lasting)
                return

    def close(self) -> None:
        """Close all pools, and release the memory of gradients."""
        for place in list(self._pools):
            self.remove(place)
        self._gradients = []
        self._slots.close()


@final
class LocalTransport:
    """All workers on this machine, with one zygote and room for any number of them."""

    engine, traffic = "processes", None

    def __init__(self, resources: SharedResources, zygote: Zygote | ZygoteCopy, threads: int, log: Path | None) -> None:
        self._resources, self._threads, self._log = resources, threads, log
        self._first_zygote = zygote
        self._pools = LocalPools(resources)
        self.receive = self._pools.receive
        self.details = resources.mailbox.details
        self.flush = self._pools.pending
        self.close = self._pools.close

    @property
    def fds(self) -> frozenset[int]:
        """The report pipe and the zygote's socket."""
        return self._pools.fds

    def open(self) -> None:
        """Send the job to the zygote."""
        self._open_with(self._first_zygote)

    def reopen(self) -> None:
        """Launch another zygote."""
        self._open_with(Zygote.launch(self._threads))

    def _open_with(self, zygote: Zygote | ZygoteCopy) -> None:
        self._pools.add(HOME, WorkerPool.of(zygote, self._resources, self._log), math.inf)

    def start(self, worker: int, serial: int, place: int, began: float) -> PipeChannel:
        """Start a process."""
        return self._pools[place].start(worker, serial, began)

    def kill(self, serial: int, place: int) -> None:
        """Kill a process."""
        self._pools[place].kill(serial)

    def dismiss(self, place: int, reason: str = "") -> None:
        """Do nothing: the only place is HOME, which does not leave."""

    def tick(self, vacant: int, working: int) -> Iterable[TransportEvent]:
        """Return nothing: all events come through file descriptors."""
        return ()


def launch_zygote(problem: Problem, num_workers: int) -> Zygote | ZygoteCopy:
    """Start the zygote of a run, which imports the module of the problem while the run is being prepared."""
    settings = (_threads(num_workers), _modules_of(problem))
    shared = _shared_zygote.get()
    copy = shared[1].copy() if shared is not None and shared[0] == settings else None
    return Zygote.launch(*settings) if copy is None else copy


@contextlib.contextmanager
def shared_zygote(problem: Problem, num_workers: int) -> Iterator[None]:
    """Start a zygote that imports once for all runs inside this block which have as many workers; they get copies."""
    if portable():  # forking is not safe everywhere
        yield
        return
    settings = (_threads(num_workers), _modules_of(problem))
    with contextlib.closing(Zygote.launch(*settings)) as zygote:
        before = _shared_zygote.set((settings, zygote))
        try:
            yield
        finally:
            _shared_zygote.reset(before)


def _modules_of(problem: Problem) -> list[str]:
    """Return the modules that a zygote can import before it has the problem."""
    kind = type(problem)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        return []
    compiled = ["nowait.problems.kernels"] if kind.__module__.startswith("nowait.problems.") else []
    return [kind.__module__, *compiled]


def train(
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
        transport = LocalTransport(resources, zygote, _threads(len(parts.server.workers)), options.log)
        return run_with_workers(transport, parts, options, progress=progress, clock=SystemClock(job.spin_seconds))


def _threads(num_workers: int) -> int:
    """Return how many threads libraries may use in each worker."""
    return max(1, (os.cpu_count() or 1) // max(1, num_workers))


def job_of(parts: Parts, points: Slots, options: WorkerOptions, seed: int) -> Job:
    """Return the settings that every worker of a run receives at its start.

    In a resumed run they include workers that the server does not have yet: they are started as soon as there is room.
    """
    joining = [] if parts.checkpoint is None else parts.checkpoint.wanted
    memory = None if parts.server.memory is HOST else parts.server.memory
    spin = spin_seconds(
        on_device=parts.server.memory.is_queued, workers=len(parts.server.workers), cores=available_cores()
    )
    return Job(
        parts.problem,
        seed,
        points.length,
        points.dtype.str,
        memory,
        options.slowdown,
        options.speeds,
        workers=tuple(sorted({*parts.server.workers, *joining})),
        spin_seconds=spin,
        best=parts.best,
        wires=parts.wires,
        process_settings=process_settings(parts.problem),
        audit=options.audit,
    )
