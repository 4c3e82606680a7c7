"""Ringmaster LMO: asynchronous steps of a fixed length, along a mean of gradients that are not too old."""

from __future__ import annotations

import math
from typing import final

from nowait.core import LMO, Arrival, Method, Server, StepsizeOrFloat, checks, method_dataclass


@final
@method_dataclass
class RingmasterLMO(Method):
    """Drop gradients above a largest delay; the others enter a momentum, along which steps of a fixed length are made.

    Sadiev, Maranjyan, Ilin and Richtárik, "Ringmaster LMO: Asynchronous Linear Minimization Oracle Momentum Method"
    (2026; rules known from its abstract and a summary). It is ``RingmasterASGD`` with ``nw.LMO(ball, beta)`` as its
    update, which a run uses unless it is given another one: with ``ball="spectral"`` an asynchronous Muon.

    ``max_delay`` None and ``beta`` None are the schedule without parameters: in step k delays up to ⌊√k⌋ are used,
    the gradient enters the momentum with weight 1/√k, and the stepsize is γ·k^(−3/4).
    """

    stepsize: StepsizeOrFloat
    ball: str = "spectral"
    max_delay: int | None = None
    beta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_delay is not None:
            why = "a fresh gradient has delay 1, so every gradient would be dropped"
            self.max_delay = checks.at_least(1, self.max_delay, "max_delay", why)
        self.usual_update()  # checks both

    def usual_update(self) -> LMO:
        """Return a step of fixed length in the chosen norm."""
        return LMO(self.ball, self.beta)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply the gradient unless it is too old, and assign the worker a ticket at the current params."""
        if arrival.delay <= self._largest_delay(server):
            server.apply(arrival, self.stepsize.at(arrival, server) * self._factor(server))
        server.assign(arrival.worker)

    def pending_stepsize(self, server: Server, delay: int) -> float:
        """Return 0 for a delay that would be dropped."""
        used = delay <= self._largest_delay(server)
        return super().pending_stepsize(server, delay) * self._factor(server) if used else 0.0

    def _largest_delay(self, server: Server) -> int:
        return math.isqrt(server.steps + 1) if self.max_delay is None else self.max_delay

    def _factor(self, server: Server) -> float:
        """Return by what the schedule multiplies the stepsize. Square roots have the same bits everywhere."""
        if self.max_delay is not None:
            return 1.0
        root = math.sqrt(server.steps + 1)
        return 1 / (root * math.sqrt(root))
