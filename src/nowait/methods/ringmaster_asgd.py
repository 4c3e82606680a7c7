"""Ringmaster ASGD: asynchronous SGD with a largest delay."""

from __future__ import annotations

from typing import final

from nowait.core import ApplyAtOnce, Arrival, Method, Server, StepsizeOrFloat, checks, method_dataclass


@final
@method_dataclass
class RingmasterASGD(Method):
    """Apply every gradient up to a largest delay and drop the rest.

    ``max_delay`` is R in Maranjyan, Tyurin and Richtárik, "Ringmaster ASGD: The First Asynchronous SGD with
    Optimal Time Complexity" (ICML 2025), which counts δ = delay − 1 and applies δ < R. With ``cancel_stale`` (their
    Algorithm "with calculation stops") a worker whose gradient would be dropped restarts at the current params
    immediately.
    """

    stepsize: StepsizeOrFloat
    max_delay: int
    cancel_stale: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        why = "a fresh gradient has delay 1, so every gradient would be dropped"
        self.max_delay = checks.at_least(1, self.max_delay, "max_delay", why)
        self.cancel_stale = checks.flag(self.cancel_stale, "cancel_stale")

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply the gradient unless it is too old, and assign the worker a ticket at the current params."""
        if arrival.delay <= self.max_delay:
            server.apply(arrival, self.stepsize.at(arrival, server))
        server.assign(arrival.worker)
        if self.cancel_stale:
            self._restart_stale_workers(server)

    def pending_stepsize(self, server: Server, delay: int) -> float:
        """Return 0 for a delay above ``max_delay``: such a gradient would be dropped."""
        return super().pending_stepsize(server, delay) if delay <= self.max_delay else 0.0

    def schedule(self) -> ApplyAtOnce | None:
        """Return the whole method as a schedule that can be compiled; None with ``cancel_stale``."""
        return None if self.cancel_stale else ApplyAtOnce(self.stepsize, self.max_delay)

    def _restart_stale_workers(self, server: Server) -> None:
        while (ticket := server.in_flight.oldest()) is not None and server.delay_of(ticket) > self.max_delay:
            server.cancel(ticket.worker)
            server.assign(ticket.worker)
