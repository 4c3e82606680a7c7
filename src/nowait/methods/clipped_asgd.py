"""Clipped ASGD: asynchronous SGD with a largest gradient norm."""

from __future__ import annotations

from typing import final

from nowait.core import Arrival, Method, Server, StepsizeOrFloat, checks, method_dataclass


@final
@method_dataclass
class ClippedASGD(Method):
    """Apply every gradient when it arrives, clipped to the norm ``max_norm``.

    Erickson and Johansson, "Clipping Makes Distributed and Federated Asynchronous SGD Robust to Stragglers" (2026): no
    step of plain SGD moves params further than γ·max_norm, so the virtual iterates stay close for any delays, as in
    Theorem 2 of Mishchenko et al. (2022). With heterogeneous data, clipping moves the fixed point.
    """

    stepsize: StepsizeOrFloat
    max_norm: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.max_norm = checks.positive(self.max_norm, "max_norm", "every gradient would be shortened to nothing")

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply the gradient, clipped if needed, and assign the worker a ticket at the new params."""
        stepsize = self.stepsize.at(arrival, server)
        if arrival.gradient_norm <= self.max_norm:
            server.apply(arrival, stepsize)
        else:
            server.apply(arrival, stepsize, direction=arrival.gradient * (self.max_norm / arrival.gradient_norm))
        server.assign(arrival.worker)
