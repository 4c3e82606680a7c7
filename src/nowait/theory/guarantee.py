"""A theorem's guarantee, and the stepsize and output it prescribes."""

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
    """A bound on the expected error of the output; ``float(guarantee)`` is the sum of its terms.

    >>> float(Guarantee("E F(x̃) − F*", optimisation=0.5, noise=0.25))
    0.75
    """

    measure: str
    """What is bounded: the suboptimality or the squared norm of the gradient."""
    optimisation: float
    """The optimisation term, for the distance from x_0; it grows where noise makes the prescribed stepsize smaller."""
    noise: float = 0.0
    """The term of the gradients' noise."""
    heterogeneity: float = 0.0
    """The error that remains because the workers' data differ, however many steps are made."""
    sharpened: Guarantee | None = field(default=None, repr=False)
    """The same bound with better constants, where they are known."""

    def __float__(self) -> float:
        return self.optimisation + self.noise + self.heterogeneity

    def __post_init__(self) -> None:
        terms = (self.optimisation, self.noise, self.heterogeneity)
        if not all(term >= 0 for term in terms):
            raise ValueError(f"the terms of a guarantee must be numbers of at least 0, got {terms}")


@final
@dataclass(frozen=True)
class Prescription:
    """The stepsize, output and number of steps of a theorem, and the guarantee for them.

    Use it as ``nw.train(problem, nw.AsynchronousSGD(p.stepsize), output=p.output, steps=p.steps, …)``: the guarantee
    holds for these steps and this output. (With ``prescribe_minibatch`` the method is ``nw.MinibatchSGD``.)
    """

    theorem: str
    """The name of the theorem, or of the method whose guarantee it is."""
    setting: str
    """The assumptions on F, such as "convex"."""
    constants: Constants
    """The constants of the problem that were used."""
    workers: int
    """The number of workers, M."""
    steps: int
    """The number of steps, K."""
    stepsize: Stepsize
    """The stepsize rule of the theorem."""
    output: Output
    """The output rule of the theorem."""
    guarantee: Guarantee
    """The bound on the error of the output."""
    notes: tuple[str, ...] = ()
    """Corrections to the paper that were applied, and assumptions."""

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
