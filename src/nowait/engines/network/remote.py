"""The workers of a host on another machine: orders are sent in batches, gradients arrive with the reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import final

from nowait.core.types import Vector
from nowait.engines.network.host_points import HostPoints
from nowait.engines.network.sockets import ServerSocket
from nowait.fleet.wire.messages import (
    EXIT,
    POINT_ORDER,
    START,
    MessageKind,
)
from nowait.fleet.wire.records import (
    AUDITED,
    CHECKSUM,
    ERROR,
    GRADIENT,
    LEAVING,
    LOADING,
    MISFIT,
    READY,
    REPORT,
    TRAINING_LOSS,
    computes,
)
from nowait.fleet.wire.secure import ProtocolError

OTHER_KINDS = frozenset((MISFIT, ERROR, TRAINING_LOSS, LOADING, READY, CHECKSUM))
"""What workers report besides gradients. Evaluations and fingerprints are not computed by hosts."""

VersionOf = Callable[[int], int]
"""Returns the version of params that a ticket in flight is computed at."""
PointOf = Callable[[int, int], Vector]
"""``point(slot, version)`` returns a version of params, as it is sent; the slot has it."""


@final
class RemoteChannel:
    """Adds the orders of one worker to the next batch for its host."""

    __slots__ = ("send",)

    def __init__(self, pool: RemotePool, worker: int) -> None:
        self.send = partial(pool.add_order, worker)

    def close(self) -> None:
        """Do nothing: the process was killed, or its host is gone."""


@final
class RemotePool:
    """The worker processes of a host on another machine."""

    def __init__(self, identity: bytes, server_socket: ServerSocket, point: PointOf, version_of: VersionOf) -> None:
        self.identity = identity
        self.clock_ahead = 0.0
        """By how many seconds the host's clock is ahead of ours."""
        self.last_message = monotonic()
        """When the host last sent something."""
        self.ready = self.delivered = False
        """Whether workers can be started, and whether one has delivered a gradient."""
        self._socket, self._point, self._version_of = server_socket, point, version_of
        self._host_points = HostPoints()
        self._processes: dict[int, int] = {}
        """The worker of each process whose death was not reported, by serial number."""
        self._killed: set[int] = set()
        """Those of them that were killed, by serial number."""
        self._workers: set[int] = set()
        """The workers of all these processes."""
        self._delivering: set[int] = set()
        """The workers of those that were not killed."""
        self._orders: list[bytes] = []
        self._points: list[Vector] = []
        self._owes_a_reply = self._ended = False

    def start(self, worker: int, serial: int, began: float) -> RemoteChannel:
        """Start a process on the host."""
        self.flush()
        self._processes[serial] = worker
        self._update_workers()
        self._socket.send(self.identity, MessageKind.START, START.pack(worker, serial, began + self.clock_ahead))
        return RemoteChannel(self, worker)

    def kill(self, serial: int) -> None:
        """Kill a process on the host; its death is reported like any other."""
        self._socket.send(self.identity, MessageKind.KILL, EXIT.pack(serial, 0))
        if serial in self._processes:
            self._killed.add(serial)
            self._update_workers()
            self._socket.detach(self.identity)  # its worker may be started elsewhere, and deliver to the same slot

    def died(self, serial: int) -> None:
        """Note the death of a process. Raises ``ProtocolError`` if it is not one of this host."""
        worker = self._processes.pop(serial, None)
        if worker is None:
            raise ProtocolError(f"a host reported the death of process {serial}, which it does not have")
        self._killed.discard(serial)
        self._update_workers()
        if worker not in self._workers:
            self._host_points.leave(worker)

    def _update_workers(self) -> None:
        self._workers = set(self._processes.values())
        self._delivering = {worker for serial, worker in self._processes.items() if serial not in self._killed}

    def check_worker(self, worker: int) -> None:
        """Raise ``ProtocolError`` if a worker is not one of this host."""
        if worker not in self._workers:
            raise ProtocolError(f"a host reported for worker {worker}, which it does not have")

    def delivers(self, worker: int) -> bool:
        """Return True if the gradients of a worker are wanted: not if its process was killed."""
        return worker in self._delivering

    def add_order(self, worker: int, ticket: int, job: int, slot: int, instruction: int) -> None:
        """Add an order to the batch. The version in the slot is retained until the worker reports."""
        host_slot, missing = 0, False
        if computes(instruction):  # the others have no ticket to compute
            version = self._version_of(ticket)
            host_slot, missing = self._host_points.place(worker, version)
            if missing:
                self._points.append(self._point(slot, version))
        self._orders.append(POINT_ORDER.pack(ticket, job, worker, instruction, host_slot, missing))

    def flush(self) -> None:
        """Send the batch of orders; also an empty one if the host waits for a reply. After ``end`` do nothing."""
        if (self._orders or self._owes_a_reply) and not self._ended:
            self._socket.send(self.identity, MessageKind.ORDERS, b"".join(self._orders), self._points)
            self._orders, self._points, self._owes_a_reply = [], [], False

    def gradient_workers(self, records: bytes) -> list[int]:
        """Return the workers whose gradients come with a batch of reports, in their order.

        Raises ``ProtocolError`` if the batch is not one of workers of this host.
        """
        if len(records) % REPORT.size:
            raise ProtocolError(f"a batch of reports has {len(records)} bytes")
        found, workers = [], self._workers
        for ticket, started, seconds, worker, kind in REPORT.iter_unpack(records):
            if worker not in workers:
                self.check_worker(worker)
            if kind in (GRADIENT, AUDITED):
                if not (-math.inf < started < math.inf and 0 <= seconds < math.inf):
                    raise ProtocolError(f"a gradient was begun at {started} s and took {seconds} s")
                found.append(worker)
            elif kind == LEAVING:
                if self._processes.get(ticket) != worker:
                    raise ProtocolError(f"a host said that process {ticket} leaves, which it does not have")
            elif kind not in OTHER_KINDS:
                raise ProtocolError(f"a host sent a report of the kind {kind}")
        return found

    def by_worker(self, records: bytes, gradients: Sequence[Vector]) -> dict[int, Vector]:
        """Return the gradients of a batch of reports by worker; a worker has one ticket at a time.

        The host waits for a reply to the batch, which ``flush`` sends. Raises ``ProtocolError``.
        """
        workers = self.gradient_workers(records)
        if len(workers) != len(gradients):
            raise ProtocolError(f"{len(gradients)} gradients came with reports that announce {len(workers)}")
        self._owes_a_reply = True
        if workers:
            self.delivered = True
        return dict(zip(workers, gradients, strict=True))

    def wanted(self, records: bytes) -> bytes:
        """Return the reports without those of killed processes: their workers may run, and report, on another host."""
        if not self._killed:
            return records
        return b"".join(REPORT.pack(*report) for report in REPORT.iter_unpack(records) if self.delivers(report[3]))

    def end(self, reason: str = "") -> None:
        """Tell the host that the run is over, or another reason to exit. Nothing can be sent to it afterwards."""
        if not self._ended:
            self._ended = True
            self._socket.detach(self.identity)
            self._socket.send(self.identity, MessageKind.END, reason.encode())
            self._socket.end(self.identity)
