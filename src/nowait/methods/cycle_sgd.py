"""Cycle SGD: groups of workers take turns to deliver what they have computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, checks, method_dataclass


@final
@dataclass(eq=False)
class Group:
    """The workers that deliver together, and the sum of their gradients since their last turn."""

    workers: list[int]
    total: GradientSum


@final
@method_dataclass
class CycleSGD(Method):
    """Groups of ``group`` workers take turns: a step is along the sum of all gradients of the group whose turn it is.

    Tyurin and Sivtsov, "Birch SGD: A Tree Graph Framework for Local and Asynchronous SGD Methods" (2025). With n
    workers in n/s groups of s, every worker computes n/s gradients between two turns, so that no worker waits if all
    are equally fast, and s workers synchronise at a time instead of n. No gradient is further than about n²/s gradients
    behind params; γ multiplies every gradient and has to be small enough for that. In the first cycle group g computes
    g gradients, so that turns are evenly spread from the start. A turn waits for the slowest worker of its group.

    The paper's workers make local steps between two turns and send their sum. Here they compute all gradients at the
    params of their last turn, for which the same bound holds, and send each when it is done: steps are made in the
    order of the paper, but no bandwidth is saved. Groups that have delivered before their turn comes share the step of
    the group before them. With ``group`` ≥ M it is ``MinibatchSGD`` with the stepsize M·γ.
    """

    stepsize: StepsizeOrFloat
    group: int = 1
    groups: list[Group] = field(init=False, repr=False, compare=False)
    group_of: dict[int, Group] = field(init=False, repr=False, compare=False)
    """The group of each worker."""
    turn: int = field(init=False, repr=False, compare=False)
    """The group whose turn it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group = checks.at_least(1, self.group, "group", "it is how many workers deliver together")

    def start(self, server: Server) -> None:
        """Form the groups. The first one gets one ticket for each of its workers, the second one two, and so on."""
        workers = list(server.workers)
        parts = [workers[first : first + self.group] for first in range(0, len(workers), self.group)]
        self.groups, self.turn = [Group(part, server.sum()) for part in parts], 0
        self.group_of = {worker: group for group in self.groups for worker in group.workers}
        for number, group in enumerate(self.groups, start=1):
            self._assign(server, group.workers, number)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Add the gradient to the sum of its group, and step if the turn of that group is complete."""
        self.group_of[arrival.worker].total.add(arrival)
        self._step_if_complete(server)

    def on_join(self, server: Server, worker: int) -> None:
        """Put the worker into a group with a free place, or into a new one, which is last in this cycle."""
        group = next((group for group in self.groups if len(group.workers) < self.group), None)
        if group is None:
            group = Group([], server.sum())
            self.groups.insert(self.turn, group)
            self.turn = (self.turn + 1) % len(self.groups)
        group.workers.append(worker)
        self.group_of[worker] = group
        self._assign(server, [worker], len(self.groups))

    def on_leave(self, server: Server, worker: int) -> None:
        """Remove the worker. What it has delivered stays in the sum of its group."""
        self.group_of.pop(worker).workers.remove(worker)
        self._step_if_complete(server)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return M²/group: how many gradients params may be ahead of a gradient."""
        return num_workers * max(1.0, num_workers / self.group)

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True: all workers compute as many gradients in a cycle."""
        return True

    def _assign(self, server: Server, workers: list[int], tickets: int) -> None:
        for worker in workers:
            for _ in range(tickets):
                server.assign(worker)

    def _step_if_complete(self, server: Server) -> None:
        """Make one step with the group whose turn it is, and with those after it that have delivered as well."""
        ready = self._ready(server)
        if not ready or not server.workers:
            return
        total = ready[0].total
        for group in ready[1:]:
            total.merge(group.total)
        if total.count:
            server.step(total, self.stepsize.fresh(server))
        self._next_turn(ready)
        for group in ready:
            group.total.clear()
            self._assign(server, group.workers, len(self.groups))

    def _ready(self, server: Server) -> list[Group]:
        """Return the groups that have delivered, from the one whose turn it is to the first that has not."""
        ready: list[Group] = []
        for place in range(len(self.groups)):
            group = self.groups[(self.turn + place) % len(self.groups)]
            if any(server.in_flight.first_of(worker) is not None for worker in group.workers):
                break
            ready.append(group)
        return ready

    def _next_turn(self, ready: list[Group]) -> None:
        """Advance the turn past these groups, and remove those without workers."""
        following = self.groups[(self.turn + len(ready)) % len(self.groups)]
        self.groups = [group for group in self.groups if group.workers]
        self.turn = self.groups.index(following) if following in self.groups else 0
