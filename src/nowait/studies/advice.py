"""What ``nw.plan`` returns: numbers, and the sentences that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from nowait.theory.speedup import MINIBATCH, Speedup

CLOSE = 1.05
"""Times within so small a factor are called equal, and so are those within two standard errors."""


@final
@dataclass(frozen=True)
class Simulated:
    """A method with its tuned stepsize on the way to the target."""

    method: str
    workers: tuple[int, ...]
    kind: str
    """"synchronous", "rounds" or "asynchronous"."""
    stepsize: float
    seconds: float
    """Virtual seconds to the target (mean over the seeds); infinite if it was not reached."""
    gradients: float
    """Gradients to the target."""
    error: float = 0.0
    """The standard error of ``seconds``; 0 if there was one seed."""

    def clearly_before(self, other: Simulated) -> bool:
        """Is it there sooner by more than chance and a trifle?"""
        if math.isinf(other.seconds):
            return math.isfinite(self.seconds)
        ahead = other.seconds - self.seconds
        return self.seconds * CLOSE < other.seconds and ahead > 2 * math.hypot(self.error, other.error)


@final
@dataclass(frozen=True, eq=False)
class Advice:
    """What to do with these workers."""

    source: str
    """Where the speeds come from."""
    problem: str
    speedup: Speedup
    """What the formulas say of the speeds."""
    target_loss: float
    budget_seconds: float
    simulated: list[Simulated]
    """The methods, the one that is first at the target first."""
    predicted: dict[str, float]
    """Seconds by the rates of Table 1, up to one constant factor; empty where the problem may not be convex."""
    round_seconds: float = 0.0
    """How long a round of minibatch SGD takes on average."""
    own_data: bool = False
    """Whether every worker has data of its own."""

    @property
    def fastest(self) -> Simulated:
        """The first at the target."""
        return self.simulated[0]

    @property
    def minibatch(self) -> Simulated:
        """Minibatch SGD with everybody."""
        everybody = self.speedup.workers
        return next(one for one in self.simulated if one.kind == "synchronous" and len(one.workers) == everybody)

    @property
    def best_synchronous(self) -> Simulated:
        """The fastest that waits for all its workers."""
        return next(one for one in self.simulated if one.kind == "synchronous")

    @property
    def best_asynchronous(self) -> Simulated:
        """The fastest that applies gradients as they come."""
        return next(one for one in self.simulated if one.kind == "asynchronous")

    @property
    def gain(self) -> float:
        """How many times sooner the best asynchronous method is there than minibatch SGD with everybody.

        0 if only the latter gets there, infinite if only the former, NaN if neither.
        """
        waits, goes_on = self.minibatch.seconds, self.best_asynchronous.seconds
        return waits / goes_on if math.isfinite(goes_on) else (0.0 if math.isfinite(waits) else math.nan)

    @property
    def synchronous_is_better(self) -> bool:
        """Is a synchronous method, perhaps without slow workers, clearly sooner there than every asynchronous one?"""
        return self.best_synchronous.clearly_before(self.best_asynchronous)

    @property
    def asynchrony_pays(self) -> bool:
        """Is an asynchronous method there clearly sooner than minibatch SGD, and no synchronous one sooner still?"""
        return self.best_asynchronous.clearly_before(self.minibatch) and not self.synchronous_is_better

    @property
    def drop(self) -> list[int]:
        """The workers that the fastest method does without; none if a method with everybody is as fast."""
        everybody = range(self.speedup.workers)
        best = next(one for one in self.simulated if len(one.workers) == len(everybody))
        return sorted(set(everybody) - set(self.fastest.workers)) if self.fastest.clearly_before(best) else []

    @property
    def sentences(self) -> list[str]:
        """The advice in words."""
        if not math.isfinite(self.fastest.seconds):
            return [self._by_formula(), f"No method reached the loss {self.target_loss:.4g} in the time simulated."]
        return [self._by_formula(), self._first(), self._verdict(), self._about_workers(), self._per_gradient()]

    def __str__(self) -> str:
        return "\n".join([f"From {self.source}; simulated on {self.problem}.", *self.sentences])

    def _by_formula(self) -> str:
        gain = self.speedup
        waiting = max(self.round_seconds, float(gain.seconds.max()))
        waits = waiting / gain.harmonic_mean
        if waits < CLOSE:
            return f"By formula the workers are equal (s_max/HM = {gain.speedup:.2f}): nobody waits, nothing to gain."
        scatter = waits / gain.speedup > CLOSE
        means = ", if every gradient took its mean time" if scatter else ""
        ending = f"; as times scatter, waiting costs {waits:.3g} x" if scatter else ""
        return (
            f"By formula asynchrony gains {gain.speedup:.3g} x in time (s_max/HM, Table 2 of the paper)"
            f"{means}{ending}. Minibatch SGD makes a step in {waiting:.4g} s, asynchronous SGD "
            f"{waiting * gain.rate:.4g}."
        )

    def _first(self) -> str:
        return (
            f"Simulated with tuned stepsizes, {self.fastest.method} is first at a loss of {self.target_loss:.4g}, "
            f"after {self.fastest.seconds:.4g} s."
        )

    def _verdict(self) -> str:
        waits, goes_on = self.best_synchronous, self.best_asynchronous
        if not math.isfinite(min(waits.seconds, goes_on.seconds)):
            return f"Neither {waits.method} nor {goes_on.method} got there."
        if self.synchronous_is_better:
            return f"Synchronous is better here: {waits.method} {_sooner(waits, goes_on)} {goes_on.method}."
        if not self.asynchrony_pays:
            return _no_difference(waits, goes_on)
        verdict = f"Asynchrony pays: {goes_on.method} {_sooner(goes_on, self.minibatch)} {MINIBATCH} with everybody"
        if waits is self.minibatch:
            return f"{verdict}."
        if goes_on.clearly_before(waits):
            return f"{verdict}, and {_sooner(goes_on, waits)} {waits.method}."
        return f"{verdict}. But {waits.method} is as fast: leaving out the slow does as much as asynchrony."

    def _about_workers(self) -> str:
        if self.drop:
            return f"Leave out {_workers(self.drop)}: nothing was as fast with everybody."
        removable = self.speedup.worth_removing
        if self.own_data or not removable:
            return "Keep all workers."
        return (
            f"Keep all workers: by formula the optimisation term M/K would be smaller without {_workers(removable)}, "
            f"but no method that leaves out the slow was clearly faster."
        )

    def _per_gradient(self) -> str:
        waits, goes_on = self.minibatch, self.best_asynchronous
        if not (math.isfinite(waits.gradients) and math.isfinite(goes_on.gradients)):
            return "Per gradient there is nothing to compare."
        factor = goes_on.gradients / waits.gradients
        words = "worse" if factor > CLOSE else "about as good" if factor > 1 / CLOSE else "better"
        ending = " What asynchrony buys is not waiting." if factor > CLOSE else ""
        return (
            f"Per gradient asynchrony is {words}: {goes_on.gradients:,.0f} gradients for {goes_on.method}, "
            f"{waits.gradients:,.0f} for {waits.method}.{ending}"
        )


def _no_difference(waits: Simulated, goes_on: Simulated) -> str:
    factor = max(waits.seconds, goes_on.seconds) / max(min(waits.seconds, goes_on.seconds), 1e-300)
    both = f"{waits.method} and {goes_on.method}"
    if factor < CLOSE:
        return f"Asynchrony makes no difference: {both} are there within 5 %."
    return (
        f"Asynchrony makes no clear difference: {both} are {factor:.3g} x apart, which may be chance; take more seeds."
    )


def _sooner(first: Simulated, second: Simulated) -> str:
    if math.isinf(second.seconds):
        return "gets there, and not"
    return f"is there {second.seconds / first.seconds:.3g} x sooner than"


def _workers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"worker {shown}" if len(numbers) == 1 else f"the workers {shown}"
