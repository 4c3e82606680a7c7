"""PIAG: proximal incremental aggregated gradients, with stepsizes that follow the delays by themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import final

from nowait.core import Arrival, Method, Server, Ticket, checks
from nowait.methods.latest_gradients import LatestGradients

ROUNDING = 1e-9
"""By so much, relatively, a sum of stepsizes may exceed the budget for rounding alone."""
LARGEST_SUM = 1e3
"""In budgets: when the sum of all stepsizes has grown so large, it is counted anew from the oldest point."""


class WindowRule(ABC):
    """How much of the budget the next step takes."""

    @abstractmethod
    def stepsize(self, budget: float, spent: float, age: int) -> float:
        """The next stepsize: ``spent`` was used by the ``age`` steps since the oldest point in the table."""


@final
@dataclass(frozen=True)
class ShareOfTheRest(WindowRule):
    """α·max(γ′ − spent, 0): a share of what the window has left (the first rule of Wu et al., their α is 0.9)."""

    share: float = 0.9

    def __post_init__(self) -> None:
        checks.positive(self.share, "share", "params would not move")
        if self.share > 1:
            raise ValueError(f"share must be at most 1, got {self.share!r}: the window has no more than its rest")

    def stepsize(self, budget: float, spent: float, age: int) -> float:
        """A share of the rest."""
        return self.share * max(budget - spent, 0.0)


@final
@dataclass(frozen=True)
class EqualParts(WindowRule):
    """γ′/(δ + 1) where that fits into the window, else 0 (the second rule of Wu et al.)."""

    def stepsize(self, budget: float, spent: float, age: int) -> float:
        """An equal part, or nothing."""
        part = budget / (age + 1)
        return part if spent + part <= budget * (1 + ROUNDING) else 0.0


@final
@dataclass
class PIAG(Method):
    """Step along the mean of everybody's latest gradient; the steps of any delay window add up to ``budget`` at most.

    Wu, Magnússon, Feyzmahdavian and Johansson, "Delay-Adaptive Step-sizes for Asynchronous Learning" (ICML 2022). The
    rules are as we know them from the literature; the paper itself was not at hand. The window reaches back to the
    oldest point in the table, so the rule needs no bound on the delays: it sees them. ``budget`` is their γ′ = h/L with
    h < 1; ``rule`` is ``ShareOfTheRest(0.9)`` or ``EqualParts()``. Their theory is for exact gradients; take
    ``update=nw.Proximal(...)`` for the proximal step. Memory is one vector per worker; steps begin when every live
    worker has delivered once.
    """

    budget: float
    rule: WindowRule = field(default_factory=ShareOfTheRest)
    table: LatestGradients = field(init=False, repr=False, compare=False)
    full: bool = field(init=False, repr=False, compare=False)
    spent: float = field(init=False, repr=False, compare=False)
    """The sum of all stepsizes so far, counted from some earlier point."""
    spent_before: dict[int, float] = field(init=False, repr=False, compare=False)
    """By worker: what ``spent`` was at the point its ticket is computed at."""
    points: dict[int, tuple[int, float]] = field(init=False, repr=False, compare=False)
    """By worker: the version of its entry in the table, and what ``spent`` was there."""
    by_age: list[tuple[int, float, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.budget = checks.positive(self.budget, "budget", "params would not move")
        checks.instance(self.rule, WindowRule, "rule", "nw.stepsizes.EqualParts()")

    def start(self, server: Server) -> None:
        """An empty table, nothing spent."""
        self.table, self.full, self.spent = LatestGradients(server), False, 0.0
        self.spent_before, self.points, self.by_age = {}, {}, []
        for worker in server.workers:
            self._assign(server, worker)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Replace the worker's entry, step along the mean with what the window allows."""
        self.table.replace(arrival)
        self._remember_point(arrival)
        self.full = self.full or len(self.table) == server.num_workers
        if self.full:
            stepsize = self._next_stepsize(server)
            server.step(self.table.total, stepsize, 1 / len(self.table))
            self.spent += stepsize
        self._assign(server, arrival.worker)

    def on_join(self, server: Server, worker: int) -> None:
        """A ticket for it."""
        self._assign(server, worker)

    def on_leave(self, server: Server, worker: int) -> None:
        """Its entry leaves with it."""
        self.table.remove(worker)
        self.points.pop(worker, None)
        self.spent_before.pop(worker, None)

    def on_reissue(self, server: Server, rejected: Ticket, ticket: Ticket) -> None:
        """It may be at the current params now."""
        if ticket.version != rejected.version:
            self.spent_before[ticket.worker] = self.spent

    def pending_stepsize(self, server: Server, delay: int) -> float:
        """What the window has left now."""
        return self._next_stepsize(server) if self.points else self.budget

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
        """Take the sum at the oldest point off all sums: differences of huge sums would be rounded too much."""
        begin = min([*self.spent_before.values(), *(spent for _, spent in self.points.values())])
        self.spent -= begin
        self.spent_before = {worker: spent - begin for worker, spent in self.spent_before.items()}
        self.points = {worker: (version, spent - begin) for worker, (version, spent) in self.points.items()}
        self._sort_anew()

    def _next_stepsize(self, server: Server) -> float:
        """What the rule takes of the window from the oldest point in the table until now."""
        if self.spent > LARGEST_SUM * self.budget:
            self._count_anew()
        while (oldest := self.by_age[0])[:2] != self.points.get(oldest[2]):
            heappop(self.by_age)
        return self.rule.stepsize(self.budget, self.spent - oldest[1], server.steps - oldest[0])
