"""A theorem's guarantee, and the stepsize and output it prescribes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, final

from nowait.core import Output, Stepsize
from nowait.theory.constants import Constants
from nowait.theory.latex import guarantee_formula, prescription_text

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
    """A bound of the same error with better constants, where one is known: nowait's own, see docs/proofs.md."""
    start: float = field(default=math.inf, repr=False)
    """What the constants say about the error of x_0; infinite if they say nothing."""

    def __float__(self) -> float:
        return float(self.optimisation + self.noise + self.heterogeneity)

    @property
    def best(self) -> Guarantee:
        """The sharpened bound, or this one if there is none."""
        return self if self.sharpened is None else self.sharpened

    @property
    def is_vacuous(self) -> bool:
        """True if the bound is not below the error at the start: it then says nothing about the run."""
        return float(self) >= self.start

    def with_start(self, start: float) -> Guarantee:
        """Return the guarantee, and its sharpened one, with the error at the start."""
        sharpened = None if self.sharpened is None else self.sharpened.with_start(start)
        return replace(self, start=start, sharpened=sharpened)

    def terms(self) -> str:
        """Return the bound and its terms as text, and whether it is vacuous."""
        vacuous = f"; vacuous, since the error at the start is at most {self.start:.4g}" if self.is_vacuous else ""
        return (
            f"{self.measure} ≤ {float(self):.4g}: optimisation {self.optimisation:.4g}, "
            f"noise {self.noise:.4g}, heterogeneity {self.heterogeneity:.4g}{vacuous}"
        )

    def latex(self) -> str:
        r"""Return the inequality as LaTeX, for a formula: the bound and its terms as numbers.

        >>> print(Guarantee("E F(x̃) − F*", optimisation=0.5).latex())
        \mathbb{E}\, F(\tilde x) - F^* \le 0.5
        """
        return guarantee_formula(self)

    def __post_init__(self) -> None:
        terms = (self.optimisation, self.noise, self.heterogeneity)
        if not all(term >= 0 for term in terms):
            raise ValueError(f"the terms of a guarantee must be numbers of at least 0, got {terms}")


@final
@dataclass(frozen=True)
class Prescription:
    """The stepsize, output and number of steps of a theorem, and the guarantee for them.

    Use it as ``nw.train(problem, nw.AsynchronousSGD(p.stepsize), output=p.output, steps=p.steps, …)``: the guarantee
    holds for these steps and this output. For the other methods see ``method`` and ``parameters``:
    ``nw.RennalaSGD(p.stepsize, **p.parameters)``.
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
    method: str = "AsynchronousSGD"
    """The name of the method's class in ``nowait``."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """The arguments of the method, besides the stepsize."""

    @property
    def call(self) -> str:
        """The call that makes the method, for messages: ``RennalaSGD(stepsize, batch=4)``."""
        return f"{self.method}({', '.join(['stepsize', *(f'{k}={v!r}' for k, v in self.parameters.items())])})"

    def latex(self) -> str:
        """Return a paragraph in LaTeX, for a paper: constants, stepsize, output and guarantee, with the numbers.

        It needs the packages amsmath and amssymb. The bounds are those of ``guarantee`` and, if there is one, of its
        ``sharpened``.
        """
        return prescription_text(self)

    def __str__(self) -> str:
        sharp = self.guarantee.sharpened
        lines = [
            f"{self.theorem} ({self.setting}), {self.workers:,} workers, {self.steps:,} steps, {self.constants}",
            f"  method     {self.call}",
            f"  stepsize   {self.stepsize}",
            f"  output     {self.output}",
            f"  guarantee  {self.guarantee.terms()}",
            *([] if sharp is None else [f"  sharpened  {sharp.terms()}"]),
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])
