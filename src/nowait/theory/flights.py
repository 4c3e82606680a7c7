"""The gradients of a run of asynchronous SGD: where each was computed, its stepsize, and how long it was in flight."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from nowait.core import Stepsize
from nowait.core.types import Floats, Integers


@final
class Flights:
    """All gradients of a run: K that arrived, in order, and then the M that were in flight at the end.

    A gradient computed at x_j that arrives at step n is in flight during the steps j + 1 … n − 1. One that has not
    arrived by step K is in flight until K; its delay then counts as max(1, K − j), as in the paper's appendix.
    """

    def __init__(self, trace: Any, rule: Stepsize) -> None:
        self.K, self.M = len(trace.worker), trace.num_workers
        if self.K == 0 or not np.array_equal(trace.step, np.arange(1, self.K + 1)) or len(trace.events):
            raise ValueError(
                "the theorems cover runs that apply every arrival immediately and whose workers do not change: "
                "pass a run of AsynchronousSGD without faults, with at least one step"
            )
        arrived = np.arange(1, self.K + 1)
        latest = dict.fromkeys(trace.initial_workers.tolist(), 0)
        latest |= dict(zip(trace.worker.tolist(), arrived.tolist(), strict=True))
        waiting = np.array(list(latest.values()), dtype=np.int64)
        self.point: Integers = np.concatenate([arrived - trace.delay, waiting])
        """The j of the x_j that each gradient was computed at."""
        self.end: Integers = np.concatenate([arrived - 1, np.full(self.M, self.K)])
        """The last step during which each gradient was in flight."""
        delays = np.maximum(1, self.K - waiting)
        self.stepsize: Floats = np.concatenate([trace.stepsize, np.asarray(rule(delays, self.M, self.K), float)])
        """The stepsize of each gradient."""
        self.delay: Integers = np.concatenate([trace.delay, delays])
        self.at_start = self.point == 0
        """True for the M gradients computed at x_0."""
        self.hats: Floats = np.zeros(self.K)
        """γ̂_1 … γ̂_K: the stepsize of the gradient computed at x_k."""
        later = ~self.at_start
        self.hats[self.point[later] - 1] = self.stepsize[later]
        self.steps = self.end - self.point
        """The number of steps during which each gradient was in flight."""

    def sums(self, values: Floats) -> Floats:
        """Return, for each gradient, the sum of ``values``, one for each of x_1 … x_K, over the steps of its flight."""
        before: Floats = np.concatenate([[0.0], np.cumsum(values)])
        inside: Floats = before[self.end] - before[self.point]
        return inside

    @property
    def others_in_flight(self) -> Floats:
        """For k = 1 … K, the sum of the stepsizes of the M − 1 gradients in flight after step k, without x_k's own."""
        changes = np.zeros(self.K + 2)
        np.add.at(changes, self.point + 1, self.stepsize)
        np.add.at(changes, self.end + 1, -self.stepsize)
        return np.maximum(0.0, np.cumsum(changes)[1 : self.K + 1])
