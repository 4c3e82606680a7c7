"""PIAG: proximal incremental aggregated gradients, with stepsizes that adapt to the observed delays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import final

from nowait.core import Arrival, Method, Server, Ticket, checks
from nowait.methods.latest_gradients import LatestGradients

ROUNDING = 1e-9
"""Relative rounding error by which a sum of stepsizes may exceed the budget."""
LARGEST_SUM = 1e3
"""In multiples of the budget: above this, the sum of all stepsizes is counted from the oldest point again."""


class WindowRule(ABC):
    """Decides how much of the budget the next step uses."""

    @abstractmethod
    def stepsize(self, budget: float, spent: float, age: int) -> float:
        """Return the next stepsize; ``spent`` was used by the ``age`` steps since the oldest point in the table."""


@final
@dataclass(frozen=True)
class ShareOfTheRest(WindowRule):
    """α·max(γ′ − spent, 0): a fixed share of the window's remaining budget (the first rule of Wu et al., α = 0.9)."""

    share: float = 0.9

    def __post_init__(self) -> None:
        checks.positive(self.share, "share", "params would not move")
        if self.share > 1:
            raise ValueError(f"share must be at most 1, got {self.share!r}: the window has no more than its rest")

    def stepsize(self, budget: float, spent: float, age: int) -> float:
        """Return ``share`` times the remaining budget."""
        return self.share * max(budget - spent, 0.0)


@final
@dataclass(frozen=True)
class EqualParts(WindowRule):
    """γ′/(δ + 1) if that fits into the window's remaining budget, else 0 (the second rule of Wu et al.)."""

    def stepsize(self, budget: float, spent: float, age: int) -> float:
        """Return an equal part of the budget, or 0 if the remaining budget is smaller."""
        part = budget / (age + 1)
        return part if spent + part <= budget * (1 + ROUNDING) else 0.0


@final
@dataclass
class PIAG(Method):
    """Step along the mean of all workers' latest gradients; in any delay window stepsizes add up to at most ``budget``.

    Wu, Magnússon, Feyzmahdavian and Johansson, "Delay-Adaptive Step-sizes for Asynchronous Learning" (ICML 2022). The
    rules follow citations of it, not the paper's own text. The window starts at the oldest point in the table, so the
    rule needs no bound on the delays: it observes them. ``budget`` is their γ′ = h/L with h < 1; ``rule`` is
    ``ShareOfTheRest(0.9)`` or ``EqualParts()``. Their theory is for exact gradients; use ``update=nw.Proximal(...)``
    for the proximal step. Memory is one vector per worker; steps begin when every live worker has sent one gradient.
    """

    budget: float
    rule: WindowRule = field(default_factory=ShareOfTheRest)
    table: LatestGradients = field(init=False, repr=False, compare=False)
    full: bool = field(init=False, repr=False, compare=False)
    spent: float = field(init=False, repr=False, compare=False)
    """The sum of the stepsizes since some earlier point."""
    spent_before: dict[int, float] = field(init=False, repr=False, compare=False)
    """By worker: the value of ``spent`` at its ticket's point."""
    points: dict[int, tuple[int, float]] = field(init=False, repr=False, compare=False)
    """By worker: the version of its entry in the table, and the value of ``spent`` at that version."""
    by_age: list[tuple[int, float, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.budget = checks.positive(self.budget, "budget", "params would not move")
        checks.instance(self.rule, WindowRule, "rule", "nw.stepsizes.EqualParts()")

    def start(self, server: Server) -> None:
        """Start with an empty table and no spent budget, and give every worker a ticket."""
        self.table, self.full, self.spent = LatestGradients(server), False, 0.0
        self.spent_before, self.points, self.by_age = {}, {}, []
        for worker in server.workers:
            self._assign(server, worker)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Replace the worker's entry, step along the mean with the rule's stepsize, and assign a new ticket."""
        self.table.replace(arrival)
        self._remember_point(arrival)
        self.full = self.full or len(self.table) == server.num_workers
        if self.full:
            stepsize = self._next_stepsize(server)
            server.step(self.table.total, stepsize, 1 / len(self.table))
            self.spent += stepsize
        self._assign(server, arrival.worker)

    def on_join(self, server: Server, worker: int) -> None:
        """Give the new worker a ticket."""
        self._assign(server, worker)

    def on_leave(self, server: Server, worker: int) -> None:
        """Remove the worker's entry."""
        self.table.remove(worker)
        self.points.pop(worker, None)
        self.spent_before.pop(worker, None)

    def on_reissue(self, server: Server, rejected: Ticket, ticket: Ticket) -> None:
        """Update the stored sum if the new ticket's point is the current params."""
        if ticket.version != rejected.version:
            self.spent_before[ticket.worker] = self.spent

    def pending_stepsize(self, server: Server, delay: int) -> float:
        """Return the stepsize that the rule allows now."""
        if not self.points:
            return self.budget
        version, spent_before = min(self.points.values())  # changes nothing: checkpoints call this during the run
        return self.rule.stepsize(self.budget, self.spent - spent_before, server.steps - version)

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True: each worker has one entry of the table."""
        return True

    def _assign(self, server: Server, worker: int) -> None:
        server.assign(worker)
        self.spent_before[worker] = self.spent

    def _remember_point(self, arrival: Arrival) -> None:
        point = (arrival.version, self.spent_before[arrival.worker])
        self.points[arrival.worker] = point
        heappush(self.by_age, (*point, arrival.worker))
        if len(self.by_age) > 2 * len(self.points) + 64:
            self._sort_anew()

    def _sort_anew(self) -> None:
        self.by_age = sorted((*point, worker) for worker, point in self.points.items())

    def _count_anew(self) -> None:
        """Subtract the sum at the oldest point from all sums: differences of huge sums lose precision."""
        begin = min([*self.spent_before.values(), *(spent for _, spent in self.points.values())])
        self.spent -= begin
        self.spent_before = {worker: spent - begin for worker, spent in self.spent_before.items()}
        self.points = {worker: (version, spent - begin) for worker, (version, spent) in self.points.items()}
        self._sort_anew()

    def _next_stepsize(self, server: Server) -> float:
        """Return the rule's stepsize for the window from the oldest point in the table until now."""
        if self.spent > LARGEST_SUM * self.budget:
            self._count_anew()
        while (oldest := self.by_age[0])[:2] != self.points.get(oldest[2]):
            heappop(self.by_age)
        return self.rule.stepsize(self.budget, self.spent - oldest[1], server.steps - oldest[0])
