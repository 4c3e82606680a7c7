"""FedAT: workers of similar speed form tiers; a tier runs synchronously, tiers do not wait for each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, checks, method_dataclass


@final
@dataclass(eq=False)
class Tier:
    """Workers that run synchronous rounds. ``model`` and ``sent`` are displacements: the point is x_0 minus them."""

    workers: list[int]
    model: GradientSum
    sent: GradientSum
    gradients: GradientSum
    waiting: set[int] = field(default_factory=set)
    rounds: int = 1
    began: float = 0.0
    """The time at which its round started."""


@final
@method_dataclass
class FedAT(Method):
    """Synchronous rounds within each tier of similar speed; params are a mean of the tiers' models favouring slow ones.

    Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System with Asynchronous
    Tiers" (SC 2021); the weights were checked against public implementations, not against the paper's text. When tier m
    of n (1 is the fastest) ends its round number T_m, its model becomes the point it was given minus γ·mean of its
    gradients, and params become Σ_m T_{n+1−m}/T·model_m with T = Σ T_m: the tier with the fewest rounds gets the weight
    of the one with the most. Use ``nw.problems.LocalSteps`` as the worker's job (with ``proximal`` for their
    regularised local steps) and γ = 1. Params are set to the mean, so ``update`` must stay plain SGD.

    The first round includes all workers and measures how long each takes. Workers are then sorted by this time and
    divided into ``tiers`` groups of equal size, up to one worker; the round counts as every tier's first. (If tiers
    differ in size, the weights are multiplied by the size.) A worker that rejoins returns to its tier; a new one joins
    the slowest.
    """

    makes_its_own_update = True
    stepsize: StepsizeOrFloat
    tiers: int = 5
    groups: list[Tier] = field(init=False, repr=False, compare=False)
    seconds: dict[int, float] = field(init=False, repr=False, compare=False)
    """By worker: the seconds it took in the first round."""
    position: GradientSum = field(init=False, repr=False, compare=False)
    """x_0 minus params."""
    home: dict[int, Tier] = field(init=False, repr=False, compare=False)
    """By worker, including workers that left: its tier."""
    dealt: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tiers = checks.at_least(1, self.tiers, "tiers", "every worker belongs to one")

    def start(self, server: Server) -> None:
        """Start with one tier of all workers, to measure how long they take."""
        self.seconds, self.position, self.home, self.dealt = {}, server.sum(), {}, False
        self.groups = [self._new_tier(server, list(server.workers))]
        self._begin_round(server, self.groups[0])

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold the gradient; the last one of a tier ends the tier's round."""
        tier = self.home[arrival.worker]
        tier.gradients.add(arrival)
        tier.waiting.discard(arrival.worker)
        if not self.dealt:
            self.seconds[arrival.worker] = arrival.time - tier.began
        self._end_round_if_all_are_in(server, tier)

    def on_join(self, server: Server, worker: int) -> None:
        """Add the worker to its tier, from the tier's next round on."""
        tier = self.home.get(worker) or self._slowest()
        if not tier.workers:
            self._move(tier.model, self.position)
        tier.workers.append(worker)
        self.home[worker] = tier
        if not tier.waiting:
            self._begin_round(server, tier)

    def on_leave(self, server: Server, worker: int) -> None:
        """Remove the worker from its tier; end the tier's round if it waited for this worker only."""
        tier = self.home[worker]
        tier.workers.remove(worker)
        tier.waiting.discard(worker)
        if tier.workers:
            self._end_round_if_all_are_in(server, tier)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return 1: gradients are fresh within a tier, and params are a mean over the tiers."""
        return 1.0

    # Rounds

    def _begin_round(self, server: Server, tier: Tier) -> None:
        tier.gradients.clear()
        self._move(tier.sent, self.position)
        tier.waiting, tier.began = set(tier.workers), server.now
        for worker in tier.workers:
            server.assign(worker)

    def _end_round_if_all_are_in(self, server: Server, tier: Tier) -> None:
        if tier.waiting:
            return
        if tier.gradients.count:
            stepsize = self.stepsize.fresh(server)
            self._move(tier.model, tier.sent)
            tier.model.merge(tier.gradients, stepsize / tier.gradients.count)
            tier.rounds += self.dealt
            self._move_to_the_mean(server, stepsize)
        if tier.gradients.count and not self.dealt:
            self._deal_out(server)
        else:
            self._begin_round(server, tier)

    def _move_to_the_mean(self, server: Server, stepsize: float) -> None:
        tiers = [tier for tier in self.groups if tier.workers]
        mirrored = [other.rounds * len(tier.workers) for tier, other in zip(tiers, reversed(tiers), strict=True)]
        way = server.sum()
        for tier, weight in zip(tiers, mirrored, strict=True):
            way.merge(tier.model, weight / sum(mirrored))
        way.merge(self.position, -1.0)
        server.step(way, stepsize or 1.0, 1 / (stepsize or 1.0))
        self.position.merge(way)

    @staticmethod
    def _move(target: GradientSum, source: GradientSum) -> None:
        target.clear()
        target.merge(source)

    # Tiers

    def _deal_out(self, server: Server) -> None:
        """After the first round, form tiers of equal size from the measured times."""
        by_speed = sorted(server.workers, key=lambda worker: (self.seconds.get(worker, math.inf), worker))
        count = min(self.tiers, len(by_speed))
        bounds = [len(by_speed) * number // count for number in range(count + 1)]
        self.home = {}  # a worker that left before has no tier yet
        self.groups = [self._new_tier(server, by_speed[begin:end]) for begin, end in pairwise(bounds)]
        self.dealt = True
        for tier in self.groups:
            self._begin_round(server, tier)

    def _new_tier(self, server: Server, workers: list[int]) -> Tier:
        """Return a tier whose model is the current params."""
        tier = Tier(workers, server.sum(), server.sum(), server.sum())
        self._move(tier.model, self.position)
        self.home |= dict.fromkeys(workers, tier)
        return tier

    def _slowest(self) -> Tier:
        return next((tier for tier in reversed(self.groups) if tier.workers), self.groups[-1])
