"""Ordered momentum: late gradients enter the momentum where they would have been in time."""

from __future__ import annotations

from dataclasses import field
from typing import Any, final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, checks, method_dataclass
from nowait.numerics.elementary import integer_power


@final
@method_dataclass
class OrderedMomentum(Method):
    """Momentum over buckets of K versions: a gradient of an earlier bucket gets the weight that it would have by now.

    Shi, Yang and Li, "Ordered Momentum for Asynchronous SGD" (NeurIPS 2024). Version v belongs to bucket ⌈v/K⌉. When
    the steps reach a new bucket, u ← β·u and params ← params − u. A gradient that is l buckets late then enters u with
    the weight γ·β^l, and params with γ·(1 + β + … + β^l): params and momentum are those of gradients that all came in
    the order of their buckets. With one worker this is heavy-ball momentum. ``beta`` is β. K is ``bucket``; None is the
    number of workers at the start. With ``DelayAdaptive`` it is their OrMo-DA.
    """

    makes_its_own_update = True
    stepsize: StepsizeOrFloat
    beta: float = 0.9
    bucket: int | None = None
    momentum: GradientSum = field(init=False, repr=False, compare=False)
    size: int = field(init=False, repr=False, compare=False)
    """K in this run."""
    current: int = field(init=False, repr=False, compare=False)
    """The bucket that the steps have reached."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.beta = checks.fraction(self.beta, "beta", "momentum would never fade")
        if self.bucket is not None:
            self.bucket = checks.at_least(1, self.bucket, "bucket", "it counts the versions with one weight")

    def start(self, server: Server) -> None:
        """Reset the momentum and give every worker a ticket."""
        self.momentum, self.size = server.sum(), self.bucket or server.num_workers
        self.current = self._bucket_of(server.steps)
        super().start(server)

    def state(self) -> dict[str, Any]:
        """Return the momentum, and its place among the buckets."""
        return {"momentum": self.momentum, "size": self.size, "current": self.current}

    def resume(self, server: Server, state: dict[str, Any]) -> None:
        """Continue with the momentum, and give every worker a ticket."""
        self.start(server)
        self.momentum.restore(state["momentum"])
        if self.bucket in (None, state["size"]):  # else the run goes on with buckets of another size
            self.size, self.current = state["size"], state["current"]

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Add the gradient to the momentum and step along both, then assign the worker a new ticket."""
        stepsize, now = self.stepsize.at(arrival, server), self._bucket_of(server.steps)
        late = now - self._bucket_of(arrival.ticket.version)
        step = server.sum()
        step.add(arrival, stepsize * self._sum_of_powers(late))
        if now > self.current:
            self.current = now
            self.momentum.merge(self.momentum, self.beta - 1)
            step.merge(self.momentum, statistics=False)
        self.momentum.add(arrival, stepsize * integer_power(self.beta, late))
        server.step(step, stepsize or 1.0, 1 / (stepsize or 1.0))
        server.assign(arrival.worker)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return M/(1 − β): in total, a gradient moves params by 1/(1 − β) of the stepsize."""
        return num_workers / (1 - self.beta)

    def _bucket_of(self, version: int) -> int:
        return -(-version // self.size)

    def _sum_of_powers(self, late: int) -> float:
        return float((1 - integer_power(self.beta, late + 1)) / (1 - self.beta))
