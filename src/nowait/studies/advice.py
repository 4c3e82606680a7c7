"""The result of ``nw.plan``: numbers, and sentences about them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import stdev
from typing import final

import numpy as np

from nowait.core.types import Floats
from nowait.theory.speedup import MINIBATCH, Speedup

CLOSE = 1.05
"""Times within this factor, or within two standard errors, count as equal."""
AS_GOOD = 1.1
"""The advice never calls a method as good as the fastest if it takes more than this many times as long."""
STANDARD_ERRORS = 3.0
"""Workers are only called slow, and only left out, where their speeds differ by this many standard errors."""
Times = tuple[float, ...]


@final
@dataclass(frozen=True)
class Simulated:
    """The simulated times of a method with a tuned stepsize to the target.

    Its stepsize was tuned with some seeds, methods are compared with others, and the times reported are those with
    further seeds, so that they were not selected for being short.
    """

    method: str
    """The name of the method."""
    workers: tuple[int, ...]
    """The workers that take part."""
    kind: str
    """"synchronous", "rounds", "asynchronous", or "own" for the user's methods."""
    stepsize: float
    """The tuned γ."""
    times: Times
    """Virtual seconds to the target with each of the reporting seeds; infinite if it was not reached."""
    choosing_times: Times
    """The same with each of the seeds by which methods are chosen."""
    gradients_each: Times
    """Gradients to the target with each of the reporting seeds."""
    rank: int = 0
    """Its place among the methods simulated: simple ones first, then those that leave workers out, then your own."""

    @property
    def seconds(self) -> float:
        """The mean of ``times``; infinite if the target was not reached with every seed."""
        return _mean(self.times)

    @property
    def low(self) -> float:
        """The shortest of ``times``."""
        return min(self.times)

    @property
    def high(self) -> float:
        """The longest of ``times``."""
        return max(self.times)

    @property
    def longest(self) -> float:
        """The longest time of all seeds; infinite if the target was not always reached."""
        return max(self.times + self.choosing_times)

    @property
    def gradients(self) -> float:
        """The mean number of gradients to the target."""
        return _mean(self.gradients_each)

    def clearly_before(self, other: Simulated) -> bool:
        """Return True if it reaches the target sooner by more than 5 % and two standard errors of the difference."""
        return _clearly_before(self.times, other.times)


def _mean(values: Times) -> float:
    return sum(values) / len(values)


def _clearly_before(first: Times, second: Times) -> bool:
    """Compare times with the same seeds, whose differences scatter less than the times."""
    if math.isinf(max(second)):
        return math.isfinite(max(first))
    if math.isinf(max(first)):
        return False
    ahead = [late - early for early, late in zip(first, second, strict=True)]
    error = stdev(ahead) / math.sqrt(len(ahead)) if len(ahead) > 1 else 0.0
    return _mean(first) * CLOSE < _mean(second) and _mean(tuple(ahead)) > 2 * error


def _slower(times: Times, best: Times) -> bool:
    """Return True if these times are clearly longer than the best ones, or longer by more than 10 %."""
    return _mean(times) > AS_GOOD * _mean(best) or _clearly_before(best, times)


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
    """The methods, those with the shortest times first."""
    predicted: dict[str, float]
    """Seconds by the rates of Table 1, up to a common constant; empty if the problem may not be convex."""
    round_seconds: float = 0.0
    """Mean seconds of a round of minibatch SGD."""
    own_data: bool = False
    """True if every worker has data of its own."""
    speed_errors: Floats | None = None
    """The standard errors of the logarithms of the workers' mean seconds; None if the means are exact."""

    @property
    def fastest(self) -> Simulated:
        """The method with the shortest mean time with the choosing seeds."""
        return _first(self.simulated)

    @property
    def as_good(self) -> list[Simulated]:
        """The fastest method and those whose times cannot be told from its times.

        With the choosing seeds or with the reporting seeds they are at most 5 % slower, or slower by less than two
        standard errors and at most 10 %. Those that are at most 5 % slower with the choosing seeds come first, simple
        methods first among them.
        """
        best = self.fastest
        shortest = _mean(best.choosing_times)
        found = [
            one
            for one in self.simulated
            if not (_slower(one.choosing_times, best.choosing_times) and _slower(one.times, best.times))
            and math.isinf(one.longest) == math.isinf(best.longest)
        ]
        return sorted(found, key=lambda one: (_mean(one.choosing_times) > CLOSE * shortest, one.rank))

    @property
    def choice(self) -> Simulated:
        """The method to use: the simplest of those that are at most 5 % slower than the fastest."""
        return self.as_good[0]

    @property
    def minibatch(self) -> Simulated:
        """Minibatch SGD with all workers."""
        num_workers = self.speedup.workers
        return next(one for one in self.simulated if one.kind == "synchronous" and len(one.workers) == num_workers)

    @property
    def best_synchronous(self) -> Simulated:
        """The fastest method that waits for all its workers."""
        return _first([one for one in self.simulated if one.kind == "synchronous"])

    @property
    def best_asynchronous(self) -> Simulated:
        """The fastest method that applies every gradient when it arrives."""
        return _first([one for one in self.simulated if one.kind == "asynchronous"])

    @property
    def gain(self) -> float:
        """Time to the target of minibatch SGD with all workers over that of the best asynchronous method.

        0 if only the former reaches the target, infinite if only the latter, NaN if neither.
        """
        waits, goes_on = self.minibatch.seconds, self.best_asynchronous.seconds
        return waits / goes_on if math.isfinite(goes_on) else (0.0 if math.isfinite(waits) else math.nan)

    @property
    def gain_range(self) -> tuple[float, float]:
        """The lowest and the highest ``gain`` of a single reporting seed; NaN if a target was not reached."""
        ratios = _ratios(self.minibatch, self.best_asynchronous)
        return (min(ratios), max(ratios)) if ratios else (math.nan, math.nan)

    @property
    def synchronous_is_better(self) -> bool:
        """True if a synchronous method, maybe without slow workers, is clearly faster than every asynchronous one."""
        return self._can_tell(self.best_synchronous, self.best_asynchronous)

    @property
    def asynchrony_pays(self) -> bool:
        """True if an asynchronous method is clearly faster than minibatch SGD, and no synchronous one is faster."""
        return self._can_tell(self.best_asynchronous, self.minibatch) and not self.synchronous_is_better

    @property
    def drop(self) -> list[int]:
        """The workers that ``choice`` does not use; none if a method with all workers is as good."""
        return sorted(set(range(self.speedup.workers)) - set(self.choice.workers))

    @property
    def removable(self) -> list[int]:
        """Workers without any single one of which the term M/K would be smaller; only those that are clearly slow."""
        slow = self.speedup.worth_removing
        if self.speed_errors is None:
            return slow
        excess = np.log(self.speedup.seconds / self.speedup.harmonic_mean)
        return [worker for worker in slow if excess[worker] > STANDARD_ERRORS * self.speed_errors[worker]]

    @property
    def sentences(self) -> list[str]:
        """The advice in sentences."""
        if not math.isfinite(self.fastest.seconds):
            return [self._by_formula(), f"No method reached the loss {self.target_loss:.4g} in the time simulated."]
        first = [self._by_formula(), self._choice(), self._alternatives()]
        return [*filter(None, first), self._verdict(), self._about_workers(), self._per_gradient()]

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

    def _choice(self) -> str:
        one = self.choice
        return (
            f"Use {one.method}: simulated with its tuned stepsize, it reaches a loss of {self.target_loss:.4g} after "
            f"{one.seconds:.4g} s ({one.low:.4g} to {one.high:.4g} with {len(one.times)} fresh seeds)."
        )

    def _alternatives(self) -> str:
        """Return which methods are as good, and why the first is first; empty if there is one."""
        first, *others = self.as_good
        if not others:
            return ""
        reason = "it is the simplest"
        if any(len(one.workers) < len(first.workers) for one in others) and not self.drop:
            reason += " with all workers"
        if any(one.rank < first.rank for one in others):
            reason += " of those within 5 % of the shortest mean time"
        return (
            f"Any of these is as good, because their times cannot be told apart: "
            f"{'; '.join(one.method for one in (first, *others))}. {first.method} is listed first because {reason}."
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
        if self._can_tell(goes_on, waits):
            return f"{verdict}, and {_sooner(goes_on, waits)} {waits.method}."
        return f"{verdict}. But {waits.method} is as fast: leaving out slow workers gains as much as asynchrony."

    def _about_workers(self) -> str:
        if self.drop:
            return f"Leave out {_workers(self.drop)}: no method with all workers was as fast."
        removable = self.removable
        if self.own_data or not removable:
            return "Keep all workers."
        if len(removable) == 1:
            formula = f"By formula the optimisation term M/K would be smaller without {_workers(removable)}"
        else:
            formula = (
                f"By formula, leaving out a single worker would make the optimisation term M/K smaller if it is one of "
                f"{_numbers(removable)}; this says nothing about leaving out several"
            )
        if any(len(one.workers) < self.speedup.workers for one in self.simulated):
            simulation = "In the simulation leaving out workers was not clearly faster."
        else:
            simulation = "No simulation left out workers, because no gap between their speeds is wide enough."
        return f"Keep all workers. {formula}. {simulation}"

    def _can_tell(self, first: Simulated, second: Simulated) -> bool:
        """Return True if the first method is clearly faster, and the two are not both among those as good as any."""
        as_good = self.as_good
        return first.clearly_before(second) and not (first in as_good and second in as_good)

    def _per_gradient(self) -> str:
        waits, goes_on = self.minibatch, self.best_asynchronous
        if not (math.isfinite(waits.gradients) and math.isfinite(goes_on.gradients)):
            return "The gradients to the target cannot be compared."
        factor = goes_on.gradients / waits.gradients
        words = "worse" if factor > CLOSE else "about as good" if factor > 1 / CLOSE else "better"
        pays = factor > CLOSE and self.asynchrony_pays
        ending = " Asynchrony gains time because no worker waits." if pays else ""
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
    ratios = _ratios(second, first)
    ends = (f"{min(ratios):.3g}", f"{max(ratios):.3g}")
    between = f" ({' to '.join(ends)})" if ends[0] != ends[1] else ""
    return f"reaches the target {second.seconds / first.seconds:.3g} x{between} sooner than"


def _ratios(late: Simulated, early: Simulated) -> Times:
    """Return the ratios of the times with each seed; empty if a target was not reached."""
    if not math.isfinite(max(late.high, early.high)):
        return ()
    return tuple(after / before for after, before in zip(late.times, early.times, strict=True))


def _first(methods: list[Simulated]) -> Simulated:
    """Return the method with the shortest mean time with the choosing seeds; the simplest if several have it.

    A method that misses the target with a reporting seed comes last.
    """
    return min(methods, key=lambda one: (math.isinf(one.high), _mean(one.choosing_times), one.rank))


def _workers(numbers: list[int]) -> str:
    return f"worker {numbers[0]}" if len(numbers) == 1 else f"the workers {_numbers(numbers)}"


def _numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
