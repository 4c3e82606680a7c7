"""The result of ``nw.plan``: numbers, and sentences about them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from nowait.theory.speedup import MINIBATCH, Speedup

CLOSE = 1.05
"""Times within this factor, or within two standard errors, count as equal."""


@final
@dataclass(frozen=True)
class Simulated:
    """The simulated time of a method with a tuned stepsize to the target."""

    method: str
    """The name of the method."""
    workers: tuple[int, ...]
    """The workers that take part."""
    kind: str
    """"synchronous", "rounds" or "asynchronous"."""
    stepsize: float
    """The tuned γ."""
    seconds: float
    """Virtual seconds to the target (mean over the seeds); infinite if it was not reached."""
    gradients: float
    """Gradients to the target."""
    error: float = 0.0
    """The standard error of ``seconds``; 0 if there was one seed."""

    def clearly_before(self, other: Simulated) -> bool:
        """Return True if it reaches the target sooner by more than 5 % and two standard errors."""
        if math.isinf(other.seconds):
            return math.isfinite(self.seconds)
        ahead = other.seconds - self.seconds
        return self.seconds * CLOSE < other.seconds and ahead > 2 * math.hypot(self.error, other.error)


@final
@dataclass(frozen=True, eq=False)
class Advice:
    """Which method to use with these workers."""

    source: str
    """Where the speeds come from."""
    problem: str
    """A description of the problem."""
    speedup: Speedup
    """The numbers that follow from the speeds by formula."""
    target_loss: float
    """The loss at which times are compared."""
    budget_seconds: float
    """The virtual seconds that every method had."""
    simulated: list[Simulated]
    """The methods in the order in which they reach the target."""
    predicted: dict[str, float]
    """Seconds by the rates of Table 1, up to a common constant; empty if the problem may not be convex."""
    round_seconds: float = 0.0
    """Mean seconds of a round of minibatch SGD."""
    own_data: bool = False
    """True if every worker has data of its own."""

    @property
    def fastest(self) -> Simulated:
        """The method that reaches the target first."""
        return self.simulated[0]

    @property
    def minibatch(self) -> Simulated:
        """Minibatch SGD with all workers."""
        num_workers = self.speedup.workers
        return next(one for one in self.simulated if one.kind == "synchronous" and len(one.workers) == num_workers)

    @property
    def best_synchronous(self) -> Simulated:
        """The fastest method that waits for all its workers."""
        return next(one for one in self.simulated if one.kind == "synchronous")

    @property
    def best_asynchronous(self) -> Simulated:
        """The fastest method that applies every gradient when it arrives."""
        return next(one for one in self.simulated if one.kind == "asynchronous")

    @property
    def gain(self) -> float:
        """Time to the target of minibatch SGD with all workers over that of the best asynchronous method.

        0 if only the former reaches the target, infinite if only the latter, NaN if neither.
        """
        waits, goes_on = self.minibatch.seconds, self.best_asynchronous.seconds
        return waits / goes_on if math.isfinite(goes_on) else (0.0 if math.isfinite(waits) else math.nan)

    @property
    def synchronous_is_better(self) -> bool:
        """True if a synchronous method, maybe without slow workers, is clearly faster than every asynchronous one."""
        return self.best_synchronous.clearly_before(self.best_asynchronous)

    @property
    def asynchrony_pays(self) -> bool:
        """True if an asynchronous method is clearly faster than minibatch SGD, and no synchronous one is faster."""
        return self.best_asynchronous.clearly_before(self.minibatch) and not self.synchronous_is_better

    @property
    def drop(self) -> list[int]:
        """The workers that the fastest method does not use; none if a method with all workers is as fast."""
        all_workers = range(self.speedup.workers)
        best = next(one for one in self.simulated if len(one.workers) == len(all_workers))
        return sorted(set(all_workers) - set(self.fastest.workers)) if self.fastest.clearly_before(best) else []

    @property
    def sentences(self) -> list[str]:
        """The advice in sentences."""
        if not math.isfinite(self.fastest.seconds):
            return [self._by_formula(), f"No method reached the loss {self.target_loss:.4g} in the time simulated."]
        return [self._by_formula(), self._first(), self._verdict(), self._about_workers(), self._per_gradient()]

    def __str__(self) -> str:
        return "\n".join([f"From {self.source}; simulated on {self.problem}.", *self.sentences])

    def _repr_html_(self) -> str:
        from nowait.studies.notebook import html_of_advice

        return html_of_advice(self)

    def _by_formula(self) -> str:
        gain = self.speedup
        waiting = max(self.round_seconds, float(gain.seconds.max()))
        waits = waiting / gain.harmonic_mean
        if waits < CLOSE:
            ratio = f"s_max/HM = {gain.speedup:.2f}"
            return f"By formula the workers are equal ({ratio}): no worker waits, so there is nothing to gain."
        varying = waits / gain.speedup > CLOSE
        means = ", if every gradient took its mean time" if varying else ""
        ending = f"; because times vary, waiting costs {waits:.3g} x" if varying else ""
        return (
            f"By formula asynchrony gains {gain.speedup:.3g} x in time (s_max/HM, Table 2 of the paper)"
            f"{means}{ending}. Minibatch SGD makes a step in {waiting:.4g} s, asynchronous SGD "
            f"{waiting * gain.rate:.4g}."
        )

    def _first(self) -> str:
        return (
            f"Simulated with tuned stepsizes, {self.fastest.method} is the first to reach a loss of "
            f"{self.target_loss:.4g}, after {self.fastest.seconds:.4g} s."
        )

    def _verdict(self) -> str:
        waits, goes_on = self.best_synchronous, self.best_asynchronous
        if not math.isfinite(min(waits.seconds, goes_on.seconds)):
            return f"Neither {waits.method} nor {goes_on.method} reached the target."
        if self.synchronous_is_better:
            return f"Synchronous is better here: {waits.method} {_sooner(waits, goes_on)} {goes_on.method}."
        if not self.asynchrony_pays:
            return _no_difference(waits, goes_on)
        verdict = f"Asynchrony pays: {goes_on.method} {_sooner(goes_on, self.minibatch)} {MINIBATCH} with all workers"
        if waits is self.minibatch:
            return f"{verdict}."
        if goes_on.clearly_before(waits):
            return f"{verdict}, and {_sooner(goes_on, waits)} {waits.method}."
        return f"{verdict}. But {waits.method} is as fast: leaving out slow workers gains as much as asynchrony."

    def _about_workers(self) -> str:
        if self.drop:
            return f"Leave out {_workers(self.drop)}: no method with all workers was as fast."
        removable = self.speedup.worth_removing
        if self.own_data or not removable:
            return "Keep all workers."
        return (
            f"Keep all workers: by formula the optimisation term M/K would be smaller without {_workers(removable)}, "
            f"but no method without them was clearly faster."
        )

    def _per_gradient(self) -> str:
        waits, goes_on = self.minibatch, self.best_asynchronous
        if not (math.isfinite(waits.gradients) and math.isfinite(goes_on.gradients)):
            return "The gradients to the target cannot be compared."
        factor = goes_on.gradients / waits.gradients
        words = "worse" if factor > CLOSE else "about as good" if factor > 1 / CLOSE else "better"
        ending = " Asynchrony gains time because no worker waits." if factor > CLOSE else ""
        return (
            f"Per gradient asynchrony is {words}: {goes_on.gradients:,.0f} gradients for {goes_on.method}, "
            f"{waits.gradients:,.0f} for {waits.method}.{ending}"
        )


def _no_difference(waits: Simulated, goes_on: Simulated) -> str:
    factor = max(waits.seconds, goes_on.seconds) / max(min(waits.seconds, goes_on.seconds), 1e-300)
    both = f"{waits.method} and {goes_on.method}"
    if factor < CLOSE:
        return f"Asynchrony makes no difference: the times of {both} differ by less than 5 %."
    return (
        f"Asynchrony makes no clear difference: {both} are {factor:.3g} x apart, which may be chance: use more seeds."
    )


def _sooner(first: Simulated, second: Simulated) -> str:
    if math.isinf(second.seconds):
        return "reaches the target, unlike"
    return f"reaches the target {second.seconds / first.seconds:.3g} x sooner than"


def _workers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"worker {shown}" if len(numbers) == 1 else f"the workers {shown}"
