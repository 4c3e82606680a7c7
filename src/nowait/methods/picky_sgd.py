"""Picky SGD: use a gradient only if params have not moved far since."""

from __future__ import annotations

from typing import final

from nowait.core import Arrival, Method, Server, StepsizeOrFloat, checks, method_dataclass
from nowait.core.types import norm


@final
@method_dataclass
class PickySGD(Method):
    """Apply a gradient if params are within ``radius`` of the point it was computed at, else drop it.

    Cohen, Daniely, Drori, Koren and Schain, "Asynchronous Stochastic Optimization Robust to Arbitrary Delays" (NeurIPS
    2021): radius = ε/(2L) for a target gradient norm ε. It does not need to know the delays. Their guarantee holds with
    probability 1/2; restarts, which are left to the caller, raise this probability.
    """

    stepsize: StepsizeOrFloat
    radius: float

    def __post_init__(self) -> None:
        super().__post_init__()
        why = "params move with every step, so every gradient but a fresh one would be dropped"
        self.radius = checks.positive(self.radius, "radius", why)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply the gradient if its point is near, and assign the worker a ticket at the current params."""
        if norm(server.trained(server.params - arrival.point)) <= self.radius:
            server.apply(arrival, self.stepsize.at(arrival, server))
        server.assign(arrival.worker)
