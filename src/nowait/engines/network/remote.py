"""The workers of a host on another machine: orders are sent in batches, gradients arrive with the reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import final

from nowait.core.memory import Slots
from nowait.core.types import Vector
from nowait.engines.network.handshake import ProtocolError
from nowait.engines.network.host_points import HostPoints
from nowait.engines.network.messages import EXIT, POINT_ORDER, START, MessageKind
from nowait.engines.network.sockets import ServerSocket
from nowait.engines.workers.records import REPORT, Instruction, ReportKind

GRADIENT, HURRY = int(ReportKind.GRADIENT), int(Instruction.HURRY)

VersionOf = Callable[[int], int]
"""Returns the version of params that a ticket in flight is computed at."""


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

    def __init__(self, identity: bytes, server_socket: ServerSocket, points: Slots, version_of: VersionOf) -> None:
        self.identity = identity
        self.clock_ahead = 0.0
        """By how many seconds the host's clock is ahead of ours."""
        self.last_message = monotonic()
        """When the host last sent something."""
        self._socket, self._slots, self._version_of = server_socket, points, version_of
        self._host_points = HostPoints()
        self._workers: set[int] = set()
        self._orders: list[bytes] = []
        self._points: list[Vector] = []
        self._owes_a_reply = False

    def start(self, worker: int, serial: int, began: float) -> RemoteChannel:
        """Start a process on the host."""
        self.flush()
        self._workers.add(worker)
        self._socket.send(self.identity, MessageKind.START, START.pack(worker, serial, began + self.clock_ahead))
        return RemoteChannel(self, worker)

    def kill(self, serial: int) -> None:
        """Kill a process on the host; its death is reported like any other."""
        self._socket.send(self.identity, MessageKind.KILL, EXIT.pack(serial, 0))

    def add_order(self, worker: int, ticket: int, job: int, slot: int, instruction: int) -> None:
        """Add an order to the batch. The version in the slot is retained until the worker reports."""
        host_slot, missing = 0, False
        if instruction != HURRY:
            host_slot, missing = self._host_points.place(worker, self._version_of(ticket))
            if missing:
                self._points.append(self._slots[slot])
        self._orders.append(POINT_ORDER.pack(ticket, job, worker, instruction, host_slot, missing))

    def flush(self) -> None:
        """Send the batch of orders; also an empty one if the host waits for a reply."""
        if self._orders or self._owes_a_reply:
            self._socket.send(self.identity, MessageKind.ORDERS, b"".join(self._orders), self._points)
            self._orders, self._points, self._owes_a_reply = [], [], False

    def reports_received(self) -> None:
        """Note that the host waits for a reply to its reports."""
        self._owes_a_reply = True

    def gradient_workers(self, records: bytes) -> list[int]:
        """Return the workers whose gradients come with a batch of reports, in their order.

        Raises ``ProtocolError`` if the batch is not one of workers of this host.
        """
        if len(records) % REPORT.size:
            raise ProtocolError(f"a batch of reports has {len(records)} bytes")
        found, workers = [], self._workers
        for *_, worker, kind in REPORT.iter_unpack(records):
            if worker not in workers:
                raise ProtocolError(f"a host reported for worker {worker}, which it does not have")
            if kind == GRADIENT:
                found.append(worker)
        return found

    def by_worker(self, records: bytes, gradients: Sequence[Vector]) -> dict[int, Vector]:
        """Return the gradients of a batch of reports by worker; a worker has one ticket at a time."""
        workers = self.gradient_workers(records)
        if len(workers) != len(gradients):
            raise ProtocolError(f"{len(gradients)} gradients came with reports that announce {len(workers)}")
        return dict(zip(workers, gradients, strict=True))

    def end(self) -> None:
        """Tell the host that the run is over. Nothing can be sent to it afterwards."""
        self._socket.send(self.identity, MessageKind.END)
        self._socket.end(self.identity)
