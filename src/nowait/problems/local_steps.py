"""Local steps: a worker makes several steps of SGD per ticket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, final

import numpy as np

from nowait.core import Sample, checks
from nowait.core.capabilities import Capabilities
from nowait.core.types import Vector
from nowait.problems.wrapper import LOCAL_STEPS, Wrapper


@final
class LocalSteps(Wrapper):
    """Workers make ``steps`` steps of SGD, from x to y, and send the difference x − y in place of a gradient.

    With a stepsize of 1 the server applies the whole difference. This is what the clients of FedAvg, FedBuff and FedAT
    compute, and the workers of local SGD (Stich, "Local SGD Converges Fast and Communicates Little", 2019). ``steps``
    is one number for all workers or one per worker: with more steps for fast workers all of them send about equally
    often (if their data differ, fast workers then have more weight). The seconds of a speed model are those of all
    local steps together. ``proximal`` adds proximal/2·‖y − x‖² to the local objective, which keeps y near x (Li et
    al., "Federated Optimization in Heterogeneous Networks", 2020).

    >>> import nowait as nw
    >>> problem = nw.problems.LocalSteps(nw.problems.NoisyQuadratic(dimension=4), steps=8, stepsize=0.1)
    >>> run = nw.simulate(problem, nw.FedBuff(nw.Constant(1.0)), nw.speeds.Exponential(1.0, workers=4), steps=100)
    >>> bool(run.history.loss[-1] < 1e-4)
    True
    """

    def __init__(self, problem: Any, steps: int | Sequence[int], stepsize: float, proximal: float = 0.0) -> None:
        super().__init__(problem)
        if isinstance(problem, LocalSteps):
            raise TypeError("LocalSteps cannot wrap LocalSteps: multiply the numbers of steps instead")
        if Capabilities.of(problem).gradient_with_memory is not None:
            raise TypeError(
                f"LocalSteps cannot wrap {type(problem).__name__}: put LocalSteps inside it, because only what "
                f"a worker sends is compressed"
            )
        counts = list(steps) if isinstance(steps, Sequence | np.ndarray) and np.ndim(steps) == 1 else [steps]
        checks.at_least(1, len(counts), "the number of entries of steps", "every worker needs one")
        self.steps = tuple(checks.at_least(1, count, "steps", "a job is at least one step") for count in counts)
        self.stepsize = checks.positive(stepsize, "stepsize", "local steps would not move")
        self.proximal = checks.not_negative(proximal, "proximal", "it weighs ‖y − x‖²/2")
        self._fill = Capabilities.of(problem).fill_with_gradient()

    def capabilities(self) -> Capabilities:
        """Return those of the wrapped problem, with ``gradient_into``; the first step begins at the whole point."""
        return replace(super().capabilities(), gradient_into=self.gradient_into, point_encoding=None)

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return x − y, where x is the point."""
        out = np.empty_like(point)
        self.gradient_into(point, sample, out)
        return out

    def gradient_into(self, point: Vector, sample: Sample, out: Vector) -> None:
        """Write x − y into ``out``, where x is the point."""
        difference = np.zeros_like(point)
        here = point.copy()
        for number in range(self.steps[sample.worker % len(self.steps)]):
            part = sample if number == 0 else sample.part(LOCAL_STEPS + number)
            self._fill(here, part, out)
            if self.proximal:
                out += self.proximal * (here - point)
            difference += self.stepsize * out
            np.subtract(point, difference, out=here)
        out[:] = difference

    def _rewrapped(self, problem: Any) -> Self:
        return type(self)(problem, self.steps, self.stepsize, self.proximal)

    def __repr__(self) -> str:
        steps = self.steps[0] if len(self.steps) == 1 else list(self.steps)
        return f"LocalSteps({self.problem!r}, steps={steps}, stepsize={self.stepsize}, proximal={self.proximal})"
