"""Local steps: a worker's job is several steps of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, final

import numpy as np

from nowait.core import Sample, checks
from nowait.core.problem import fill_with_gradient
from nowait.core.types import Vector
from nowait.problems.wrapper import LOCAL_STEPS, Wrapper


@final
class LocalSteps(Wrapper):
    """The worker makes ``steps`` steps of SGD by itself; its "gradient" is the way it went, x_sent − y.

    With γ = 1 on the server the way counts in full. The job of FedAvg's, FedBuff's and FedAT's clients and of local
    SGD (Stich, "Local SGD Converges Fast and Communicates Little", 2019). ``steps`` is one number for all or one per
    worker: give fast workers more, so that all deliver about as often (on data of their own they weigh more, then). A
    speed model's seconds are those of the whole job. ``proximal`` pulls local steps back towards
    x_sent: it adds proximal/2·‖y − x_sent‖² to the objective (Li et al., "Federated Optimization in Heterogeneous
    Networks", 2020).

    >>> import nowait as nw
    >>> problem = nw.problems.LocalSteps(nw.problems.NoisyQuadratic(dimension=4), steps=8, stepsize=0.1)
    >>> run = nw.simulate(problem, nw.FedBuff(nw.Constant(1.0)), nw.speeds.Exponential(1.0, workers=4), steps=100)
    >>> bool(run.history.loss[-1] < 1e-4)
    True
    """

    def __init__(self, problem: Any, steps: int | Sequence[int], stepsize: float, proximal: float = 0.0) -> None:
        super().__init__(problem)
        if isinstance(problem, LocalSteps):
            raise TypeError("LocalSteps do not go around LocalSteps: multiply their numbers of steps")
        if hasattr(problem, "gradient_with_memory"):
            raise TypeError(
                f"{type(problem).__name__} goes around LocalSteps, not into it: only what a worker sends is compressed"
            )
        counts = list(steps) if isinstance(steps, Sequence | np.ndarray) and np.ndim(steps) == 1 else [steps]
        checks.at_least(1, len(counts), "the number of entries of steps", "every worker needs one")
        self.steps = tuple(checks.at_least(1, count, "steps", "a job is at least one step") for count in counts)
        self.stepsize = checks.positive(stepsize, "stepsize", "local steps would not move")
        self.proximal = checks.not_negative(proximal, "proximal", "it weighs ‖y − x_sent‖²/2")
        self._fill = fill_with_gradient(problem)

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """x_sent − y."""
        out = np.empty_like(point)
        self.gradient_into(point, sample, out)
        return out

    def gradient_into(self, point: Vector, sample: Sample, out: Vector) -> None:
        """x_sent − y, written into ``out``."""
        way = np.zeros_like(point)
        here = point.copy()
        for number in range(self.steps[sample.worker % len(self.steps)]):
            part = sample if number == 0 else sample.part(LOCAL_STEPS + number)
            self._fill(here, part, out)
            if self.proximal:
                out += self.proximal * (here - point)
            way += self.stepsize * out
            np.subtract(point, way, out=here)
        out[:] = way

    def _around(self, problem: Any) -> Self:
        return type(self)(problem, self.steps, self.stepsize, self.proximal)

    def __repr__(self) -> str:
        steps = self.steps[0] if len(self.steps) == 1 else list(self.steps)
        return f"LocalSteps({self.problem!r}, steps={steps}, stepsize={self.stepsize}, proximal={self.proximal})"
