"""Workers on another node, as the server sees them: orders leave together, gradients arrive with reports."""

from __future__ import annotations

from time import monotonic
from typing import final

import numpy as np

from nowait.core.types import Vector
from nowait.core.versions import Version
from nowait.engines.cluster.network import Exchange
from nowait.engines.cluster.wire import DEATH, HIRED, SAME_POINT, Say
from nowait.engines.processes.wire import ORDER, Order

NOWHERE = np.zeros(0)
"""The gradient of a worker on another node, before its first report."""
HURRY = int(Order.HURRY)


@final
class DistantLine:
    """Orders through the network. They are collected, and sent together."""

    __slots__ = ("_place", "_worker", "gradient")

    def __init__(self, place: DistantStaff, worker: int) -> None:
        self._place, self._worker = place, worker
        self.gradient = NOWHERE

    def order(self, ticket: int, job: int, version: Version, instruction: int) -> None:
        """As ``Line.order``."""
        self._place.add(ticket, job, self._worker, instruction, version)

    def close(self) -> None:
        """As ``Line.close``: whoever is let go was killed."""


@final
class DistantStaff:
    """The workers of a host on another node."""

    def __init__(self, identity: bytes, exchange: Exchange) -> None:
        self.identity = identity
        self.clock_ahead = 0.0
        self.heard = monotonic()
        """When it last said something."""
        self._orders: list[bytes] = []
        self._owes_an_answer = False
        self._points: list[Vector] = []
        self._latest: Version | None = None
        self._exchange = exchange

    def hire(self, worker: int, serial: int, began: float) -> DistantLine:
        """As ``Place.hire``."""
        self.flush()
        self._exchange.send(self.identity, Say.HIRE, HIRED.pack(worker, serial, began + self.clock_ahead))
        return DistantLine(self, worker)

    def kill(self, serial: int) -> None:
        """As ``Place.kill``."""
        self._exchange.send(self.identity, Say.KILL, DEATH.pack(serial, 0))

    def add(self, ticket: int, job: int, worker: int, instruction: int, version: Version) -> None:
        """One more order to send. Its version is referenced until the worker reports, so that nobody overwrites it."""
        if instruction != HURRY:
            if version is self._latest:
                instruction += SAME_POINT
            else:
                self._points.append(version.array)
                self._latest = version
        self._orders.append(ORDER.pack(ticket, job, worker, instruction))

    def flush(self) -> None:
        """Send the orders; also if there are none, where a host waits for an answer."""
        if self._orders or self._owes_an_answer:
            self._exchange.send(self.identity, Say.ORDERS, b"".join(self._orders), self._points)
            self._orders, self._points, self._latest, self._owes_an_answer = [], [], None, False

    def reported(self) -> None:
        """Its reports were read: it waits for orders, or to hear that there are none."""
        self._owes_an_answer = True

    def end(self) -> None:
        """The run is over."""
        self._exchange.send(self.identity, Say.END)
