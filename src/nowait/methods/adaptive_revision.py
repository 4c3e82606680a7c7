"""AdaptiveRevision: AdaGrad that tolerates delays."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import Arrival, Method, Server, StepsizeOrFloat, Ticket, checks, method_dataclass
from nowait.core.memory import namespace_of
from nowait.core.types import Vector


@final
@method_dataclass
class AdaptiveRevision(Method):
    """AdaGrad for delayed gradients: it accounts for the gradients applied in between and corrects steps already made.

    McMahan and Streeter, "Delay-Tolerant Algorithms for Asynchronous Distributed Online Learning" (NeurIPS 2014), in
    every coordinate: b = Σ of the gradients applied since this one's point; Z ← Z + g² + 2·g·b; Z' ← max(Z', Z);
    η = γ/√Z'; the step is η_new·g − (η_old − η_new)·b. Z and Z' start at ``first_square``, which is 1 in Petuum's
    implementation (the rule follows that implementation, not the paper's text). Memory is one vector per ticket in
    flight.
    """

    makes_its_own_update = True
    stepsize: StepsizeOrFloat
    first_square: float = 1.0
    applied: Vector = field(init=False, repr=False, compare=False)
    squares: Vector = field(init=False, repr=False, compare=False)
    largest: Vector = field(init=False, repr=False, compare=False)
    at_issue: dict[int, Vector] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.first_square = checks.positive(self.first_square, "first_square", "it keeps the first step finite")

    def start(self, server: Server) -> None:
        """Reset the sums and give every worker a ticket."""
        functions = namespace_of(server.params)
        self.applied = functions.zeros_like(server.params)
        self.squares = self.largest = functions.full_like(server.params, self.first_square)
        self.at_issue = {}
        for worker in server.workers:
            self._assign(server, worker)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply the corrected gradient and assign the worker a ticket at the new params."""
        functions, gradient = namespace_of(server.params), arrival.gradient
        between = self.applied - self.at_issue.pop(arrival.ticket.id)
        self.squares = self.squares + gradient * gradient + 2 * gradient * between
        old, self.largest = self.largest, functions.maximum(self.largest, self.squares)
        scale_old, scale_new = 1 / functions.sqrt(old), 1 / functions.sqrt(self.largest)
        direction = scale_new * gradient - (scale_old - scale_new) * between
        self.applied = self.applied + gradient
        server.apply(arrival, self.stepsize.at(arrival, server), direction=direction)
        self._assign(server, arrival.worker)

    def on_join(self, server: Server, worker: int) -> None:
        """Give the new worker its first ticket."""
        self._assign(server, worker)

    def on_leave(self, server: Server, worker: int) -> None:
        """Forget the sums stored for the worker's lost tickets."""
        self.at_issue = {number: value for number, value in self.at_issue.items() if number in server.in_flight}

    def on_reissue(self, server: Server, rejected: Ticket, ticket: Ticket) -> None:
        """Move the stored sum to the new ticket if its point is the same; otherwise store the current sum."""
        begun = self.at_issue.pop(rejected.id)
        self.at_issue[ticket.id] = begun if ticket.version == rejected.version else self.applied

    def _assign(self, server: Server, worker: int) -> None:
        self.at_issue[server.assign(worker).id] = self.applied
