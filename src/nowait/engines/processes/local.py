"""Worker processes on this machine: the pools of zygotes that share memory with the server, and the local transport."""

from __future__ import annotations

import math
import socket
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import final

from nowait.core.memory import Slots
from nowait.engines.processes.pool import Leaves, PipeChannel, Ready, WorkerPool
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
from nowait.fleet.host.launch import Zygote, ZygoteCopy, job_of, threads_per_worker
from nowait.fleet.options import WorkerOptions
from nowait.fleet.wire.records import GRACE_SECONDS
from nowait.recording import Run


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
        transport = LocalTransport(resources, zygote, threads_per_worker(len(parts.server.workers)), options.log)
        return run_with_workers(transport, parts, options, progress=progress, clock=SystemClock(job.spin_seconds))
