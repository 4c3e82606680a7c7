"""What a theorem promises, and what it prescribes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from nowait.core import Output, Stepsize
from nowait.theory.constants import Constants

SUBOPTIMALITY = "E F(x̃) − F*"
SQUARED_GRADIENT = "E ‖∇F(x̃)‖²"


@final
@dataclass(frozen=True)
class Guarantee:
    """A bound on the expected error of the answer; as a number, the sum of its terms.

    >>> float(Guarantee("E F(x̃) − F*", optimisation=0.5, noise=0.25))
    0.75
    """

    measure: str
    """What is bounded: the suboptimality or the squared norm of the gradient."""
    optimisation: float
    """What the way from x_0 costs with the stepsize prescribed; where noise makes that smaller, this is larger."""
    noise: float = 0.0
    heterogeneity: float = 0.0
    """What different data of the workers leave for ever."""
    sharpened: Guarantee | None = field(default=None, repr=False)
    """The same bound with better constants, where they are known."""

    def __float__(self) -> float:
        return self.optimisation + self.noise + self.heterogeneity

    def __post_init__(self) -> None:
        terms = (self.optimisation, self.noise, self.heterogeneity)
        if not all(term >= 0 for term in terms):
            raise ValueError(f"the terms of a guarantee are numbers of at least 0, got {terms}")


@final
@dataclass(frozen=True)
class Prescription:
    """What a theorem says to do, and what it promises then.

    Used as ``nw.train(problem, nw.AsynchronousSGD(p.stepsize), output=p.output, steps=p.steps, …)``: the guarantee is
    for these steps and this output. (For that of ``prescribe_minibatch`` the method is ``nw.MinibatchSGD``.)
    """

    theorem: str
    """Which theorem, or whose guarantee."""
    setting: str
    constants: Constants
    workers: int
    steps: int
    stepsize: Stepsize
    output: Output
    guarantee: Guarantee
    notes: tuple[str, ...] = ()
    """Where it follows a correction of the paper, and what else to know."""

    def __str__(self) -> str:
        bound, sharp = self.guarantee, self.guarantee.sharpened
        lines = [
            f"{self.theorem} ({self.setting}), {self.workers:,} workers, {self.steps:,} steps, {self.constants}",
            f"  stepsize   {self.stepsize}",
            f"  output     {self.output}",
            f"  guarantee  {bound.measure} ≤ {float(bound):.4g}: optimisation {bound.optimisation:.4g}, "
            f"noise {bound.noise:.4g}, heterogeneity {bound.heterogeneity:.4g}",
        ]
        if sharp is not None:
            lines.append(
                f"  sharpened  {sharp.measure} ≤ {float(sharp):.4g}: optimisation {sharp.optimisation:.4g}, "
                f"noise {sharp.noise:.4g}, heterogeneity {sharp.heterogeneity:.4g}"
            )
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])
