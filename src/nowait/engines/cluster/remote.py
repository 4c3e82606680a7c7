"""The workers of a host on another node: orders are sent in batches, gradients arrive with the reports."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import final

from nowait.core.memory import Slots
from nowait.core.types import Vector
from nowait.engines.cluster.messages import EXIT, SAME_POINT, START, MessageKind
from nowait.engines.cluster.sockets import ServerSocket
from nowait.engines.workers.records import ORDER, Instruction

HURRY = int(Instruction.HURRY)
NO_SLOT = -1


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
    """The worker processes of a host on another node."""

    def __init__(self, identity: bytes, server_socket: ServerSocket, points: Slots) -> None:
        self.identity = identity
        self.clock_ahead = 0.0
        """By how many seconds the host's clock is ahead of ours."""
        self.last_message = monotonic()
        """When the host last sent something."""
        self._socket, self._slots = server_socket, points
        self._orders: list[bytes] = []
        self._points: list[Vector] = []
        self._last_slot = NO_SLOT
        self._owes_a_reply = False

    def start(self, worker: int, serial: int, began: float) -> RemoteChannel:
        """Start a process on the host."""
        self.flush()
        self._socket.send(self.identity, MessageKind.START, START.pack(worker, serial, began + self.clock_ahead))
        return RemoteChannel(self, worker)

    def kill(self, serial: int) -> None:
        """Kill a process on the host; its death is reported like any other."""
        self._socket.send(self.identity, MessageKind.KILL, EXIT.pack(serial, 0))

    def add_order(self, worker: int, ticket: int, job: int, slot: int, instruction: int) -> None:
        """Add an order to the batch. The version in the slot is retained until the worker reports."""
        if instruction != HURRY:
            if slot == self._last_slot:
                instruction += SAME_POINT
            else:
                self._points.append(self._slots[slot])
                self._last_slot = slot
        self._orders.append(ORDER.pack(ticket, job, worker, instruction))

    def flush(self) -> None:
        """Send the batch of orders; also an empty one if the host waits for a reply."""
        if self._orders or self._owes_a_reply:
            self._socket.send(self.identity, MessageKind.ORDERS, b"".join(self._orders), self._points)
            self._orders, self._points, self._last_slot, self._owes_a_reply = [], [], NO_SLOT, False

    def reports_received(self) -> None:
        """Note that the host waits for a reply to its reports."""
        self._owes_a_reply = True

    def end(self) -> None:
        """Tell the host that the run is over."""
        self._socket.send(self.identity, MessageKind.END)
