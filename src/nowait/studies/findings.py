"""The table of a race, and sentences about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from nowait import methods
from nowait.core.types import Floats
from nowait.html.numbers import shown
from nowait.recording import Run
from nowait.recording.until import until
from nowait.theory import Constants, Speedup, SpeedupRange, lower_bound_time
from nowait.theory.regimes import WITH_NOISE

SAME_RATES = (0.7, 1.5)
"""Between these times the predicted ones, workers had the speeds that were measured before."""
ABOUT_THE_SAME = 1.1
"""If errors differ by at most this factor, no stepsize rule is called better."""
FEW_STEPS = 10
"""With fewer steps of the baseline, its last loss says little about its speed."""


@final
@dataclass(frozen=True)
class RaceRow:
    """The results of one method: medians over the seeds."""

    method: str
    gradients: float
    steps: float
    seconds: float
    loss: float
    error: float
    """Loss minus F*; NaN if F* is not known."""
    steps_per_second: float
    delay_median: float
    delay_mean: float
    delay_max: float
    dropped: float
    diverged: bool
    """True if any run diverged."""
    worse_than_start: bool
    """True if any run ended above its initial loss."""
    seconds_to_first: float
    """Seconds to reach the final loss of the first method; infinite if never."""
    predicted: float | None
    """The speedup by the formula s_max/HM; None where it does not apply."""
    expected: SpeedupRange | None
    """The range in which the speedup is expected at the noise of the race; None where it does not apply."""
    measured: float | None
    """The measured speedup; None for the first method, and if the loss was not reached."""
    answer: float | None = None
    """The loss of the output rule's answer, if there is a rule."""


def rows_of(
    runs: Mapping[str, list[Run]],
    minimum: float | None,
    gain: Speedup,
    noise: float | None = None,
    answers: Mapping[str, list[float]] | None = None,
) -> list[RaceRow]:
    """Return the table of a race; the others are compared with the first method.

    ``noise`` is σ²/(M·L·ε) at the final loss of the first method; None if it is not known.
    """
    first = next(iter(runs.values()))
    rows = [_row(name, mine, first, minimum, gain, noise) for name, mine in runs.items() if mine]
    return [replace(row, answer=_median(answers[row.method])) for row in rows] if answers else rows


def cut_short(runs: Mapping[str, list[Run]]) -> list[str]:
    """Return a sentence for each run that a signal ended: its last loss, and the step of it if that is another one."""
    return [
        f"{name} was stopped after {run.stats.steps:,} steps{_last_loss(run)}."
        for name, mine in runs.items()
        for run in mine
        if run.stats.interrupted
    ]


def _last_loss(run: Run) -> str:
    if not len(run.history):
        return ""
    step = int(run.history.step[-1])
    return f", at a loss of {run.history.loss[-1]:.4g}" + ("" if step == run.stats.steps else f" at step {step:,}")


def _row(
    name: str, runs: list[Run], first: list[Run], minimum: float | None, gain: Speedup, noise: float | None
) -> RaceRow:
    targets = [final_loss(run) for run in first[: len(runs)]]
    pairs = list(zip(runs, targets, strict=False))
    seconds_to = float(np.median([_until(run, target) for run, target in pairs])) if pairs else math.inf
    ends = float(np.median([_until(run, target) for run, target in zip(first, targets, strict=False)]))
    delays = [run.trace.delay for run in runs]
    loss = _median(final_loss(run) for run in runs)
    compared = runs is not first and _is_synchronous(first[0]) and _applies_at_once(runs[0])
    compared = compared and _is_plain(first[0]) and _is_plain(runs[0])
    return RaceRow(
        method=name,
        gradients=_median(run.stats.gradients for run in runs),
        steps=_median(run.stats.steps for run in runs),
        seconds=_median(run.stats.seconds for run in runs),
        loss=loss,
        error=math.nan if minimum is None else loss - minimum,
        steps_per_second=_median(run.stats.steps_per_second for run in runs),
        delay_median=_median(np.median(one) if len(one) else math.nan for one in delays),
        delay_mean=_median(one.mean() if len(one) else math.nan for one in delays),
        delay_max=_median(one.max() if len(one) else math.nan for one in delays),
        dropped=_median(run.stats.dropped for run in runs),
        diverged=any(run.stats.diverged for run in runs),
        worse_than_start=any(final_loss(run) > float(run.history.loss[0]) for run in runs),
        seconds_to_first=seconds_to,
        predicted=gain.speedup if compared else None,
        expected=gain.expected(noise) if compared else None,
        measured=ends / seconds_to if runs is not first and 0 < seconds_to < math.inf and ends < math.inf else None,
    )


def findings(rows: list[RaceRow], runs: Mapping[str, list[Run]], gain: Speedup, engine: str) -> list[str]:
    """Return sentences on the steps made, the comparison with the first method, and diverged runs.

    The first is compared with the fastest of the methods for which a speedup is predicted; if none is, of all.
    """
    first, others = rows[0], [row for row in rows[1:] if not (row.diverged or row.worse_than_start)]
    diverged = [_too_large(row) for row in rows if row.diverged or row.worse_than_start]
    if len(rows) == 1:
        return [f"{first.method} made {first.steps:,.0f} steps and ended at a loss of {first.loss:.4g}.", *diverged]
    if first.diverged or first.worse_than_start or first.steps == 0:
        return [_no_baseline(first), *diverged]
    if not others:
        return [f"Only {first.method} ended below the loss it began with.", *diverged]
    compared = [row for row in others if row.expected is not None] or others
    best = min(compared, key=lambda row: row.seconds_to_first)
    time = "virtual time" if engine == "simulate" else "wall-clock time"
    steps = (
        f"In {first.seconds:.4g} s of {time} {first.method} made {first.steps:,.0f} steps, {best.method} "
        f"{best.steps:,.0f}."
    )
    reached = [_who_was_first(first, best, others), *_regime(best, gain), *why_not_as_predicted(first, best)]
    had_all_the_time = not any(run.stats.interrupted for row in (first, best) for run in runs[row.method])
    return [*([steps] if had_all_the_time else []), *reached, _per_gradient(runs, first, best), *diverged]


def headline(rows: list[RaceRow], winner: RaceRow | None) -> tuple[str | None, str | None]:
    """Return the speedup of the winner in a few words and in a sentence; None if there is none to tell."""
    first, best = rows[0], winner
    if best is None or best.measured is None or first.diverged or first.worse_than_start or first.steps == 0:
        return None, None
    predicted = "" if best.expected is None else f" The workers' speeds predict {best.expected} ×."
    return (
        f"{best.measured:.3g} × as fast as {first.method}",
        f"After {best.seconds_to_first:.3g} s {best.method} had the final loss of {first.method}, which needed "
        f"{first.seconds_to_first:.3g} s.{predicted}",
    )


def lower_bound(rows: list[RaceRow], constants: Constants, gain: Speedup) -> list[str]:
    """Return a sentence that compares the fastest method with the lower bound for all methods; empty if not possible.

    A loss of e above F* implies ‖∇F‖² ≤ 2Le, and the bound is for the latter. It needs L, σ, Δ and F*. There is no
    sentence if the method was faster than the bound: the problem is then easier than those the bound is for.
    """
    able = [row for row in rows if math.isfinite(row.seconds_to_first) and not row.diverged]
    known = constants.L and constants.Delta and constants.sigma is not None
    if not able or not known or constants.L is None or not rows[0].error > 0:
        return []
    least = lower_bound_time(gain.seconds.tolist(), constants, 2 * constants.L * rows[0].error)
    best = min(able, key=lambda row: row.seconds_to_first)
    if best.seconds_to_first < least:
        return []
    return [
        f"On the hardest smooth function with the constants estimated for this problem, every method needs at least "
        f"c·{least:.3g} s for this loss, with a constant c that is not known (Tyurin and Richtárik 2023). "
        f"{best.method} took {best.seconds_to_first:.3g} s."
    ]


def rules_compared(runs: Mapping[str, list[Run]], minimum: float | None) -> list[str]:
    """Return a sentence that compares the last errors with constant and with delay-adaptive stepsizes.

    It is about asynchronous SGD, and about runs that had all the time of the race. Empty if one of the rules did not
    race or diverged, or if F* is not known.
    """
    constant, adaptive = (_of_rule(runs, rule) for rule in ("Constant", "DelayAdaptive"))
    pairs = zip(constant, adaptive, strict=False)
    both = [pair for pair in pairs if not any(run.stats.interrupted for run in pair)]
    if minimum is None or not both:
        return []
    errors = np.array([[final_loss(run) - minimum for run in pair] for pair in both])
    if not (np.isfinite(errors).all() and (errors > 0).all()):
        return []
    ratios = errors[:, 0] / errors[:, 1]
    middle = float(np.median(ratios))
    if ratios.min() < 1 < ratios.max() or 1 / ABOUT_THE_SAME <= middle <= ABOUT_THE_SAME:
        return [
            "Neither stepsize rule was clearly better: the error of the constant stepsize at the end is "
            f"{_range_of(ratios)} times that of the delay-adaptive one."
        ]
    better, worse = ("delay-adaptive", "constant") if middle > 1 else ("constant", "delay-adaptive")
    times = ratios if middle > 1 else 1 / ratios
    seeds = f", {_range_of(times)} times over {len(times)} seeds" if len(times) > 1 else ""
    return [
        f"The {better} stepsize ended with a smaller error than the {worse} one: {shown(float(np.median(times)))} "
        f"times smaller{seeds}."
    ]


def _of_rule(runs: Mapping[str, list[Run]], rule: str) -> list[Run]:
    """Return the runs of the first method that is asynchronous SGD with this stepsize rule."""
    for mine in runs.values():
        method = mine[0].config.get("method", {}) if mine else {}
        if method.get("type") == "AsynchronousSGD" and method["stepsize"].get("type") == rule:
            return mine
    return []


def _range_of(ratios: Floats) -> str:
    """Return the least and the largest value as text, or the value if there is one."""
    low, high = shown(float(ratios.min())), shown(float(ratios.max()))
    return low if low == high else f"{low} to {high}"


def _no_baseline(first: RaceRow) -> str:
    if first.steps == 0:
        return f"{first.method} made no step in the time of the race, so there is nothing to compare the others with."
    return f"{first.method} ended above the loss it began with, so there is nothing to compare the others with."


def _too_large(row: RaceRow) -> str:
    words = "diverged" if row.diverged else f"ended at a loss of {row.loss:.3g}, above where it began"
    return f"{row.method} {words}: its stepsize is too large for these workers."


def _who_was_first(first: RaceRow, best: RaceRow, others: list[RaceRow]) -> str:
    if best.measured is None:
        who = f"{best.method} did not reach" if any(row.measured for row in others) else "No other method reached"
        return f"{who} the final loss of {first.method}, {first.loss:.4g}."
    promised = f" (the workers' speeds predict {best.expected} times)" if best.expected else ""
    return (
        f"After {best.seconds_to_first:.3g} s {best.method} had the final loss of {first.method}, which needed "
        f"{first.seconds_to_first:.3g} s: {best.measured:.3g} times as fast{promised}. It ended at {best.loss:.4g}, "
        f"{first.method} at {first.loss:.4g}."
    )


def _regime(best: RaceRow, gain: Speedup) -> list[str]:
    """Return a sentence on how noisy the race was, and what speedups are expected there; empty if it is not known."""
    if best.expected is None or best.expected.noise is None:
        return []
    least, most = WITH_NOISE
    formula, ceiling = f"s_max/HM = {gain.speedup:.3g}", f"s_max/s_min = {shown(gain.ceiling)}"
    by_regime = {
        "little noise": f"With little noise {formula} is roughly the least speedup, and {ceiling} the most.",
        "some noise": f"With some noise the speedup is between {least:g} times {formula} and {ceiling}.",
        "much noise": f"With much noise the speedup is {least:g} to {most:g} times {formula}, at most {ceiling}.",
    }
    noise = f"The noise of a gradient at this loss, σ²/(M·L·ε), is {best.expected.noise:.2g}."
    return [f"{noise} {by_regime[best.expected.regime]}"]


def why_not_as_predicted(first: RaceRow, best: RaceRow) -> list[str]:
    """Return a sentence on why the measured speedup is not in the predicted range; empty if it is.

    The speedup is the ratio of gradients per second times the ratio of gradients that the loss took. The formula
    s_max/HM says how large the former is.
    """
    if best.measured is None or best.predicted is None or best.expected is None or best.measured in best.expected:
        return []
    (low, high), is_below = SAME_RATES, best.measured < best.expected.low
    share = f"The measured speedup is {'below' if is_below else 'above'} the predicted range"
    if first.steps < FEW_STEPS:
        return [
            f"{share}: {first.method} made only {first.steps:,.0f} steps, too few to measure a speedup. Give every "
            f"method more time."
        ]
    rates = (best.gradients / best.seconds) / (first.gradients / first.seconds)
    needed, theirs = (row.gradients / row.seconds * row.seconds_to_first for row in (best, first))
    if not low <= rates / best.predicted <= high:
        return [
            f"{share}: {best.method} had {rates:.3g} times as many gradients per second as {first.method}. So the "
            f"workers were not as fast in the race as in the probe, for example because of other programs."
        ]
    waits = "" if is_below else f" If compute times vary, {first.method} also waits longer than s_max in every round."
    return [
        f"{share}: for the same loss {best.method} took {needed:,.0f} gradients, {first.method} {theirs:,.0f}.{waits}"
    ]


def _per_gradient(runs: Mapping[str, list[Run]], first: RaceRow, best: RaceRow) -> str:
    """Return the comparison of first and best method at the same number of gradients."""
    count = min(first.gradients, best.gradients)
    ours, theirs = (_loss_after(runs[row.method], count) for row in (best, first))
    words = f"After the same {count:,.0f} gradients {best.method} has a loss of {ours:.5g}, {first.method} {theirs:.5g}"
    if ours <= theirs + 1e-9 * abs(theirs):
        return f"{words}: it is no worse per gradient either."
    if not _is_synchronous(runs[first.method][0]):
        return f"{words}: per gradient {first.method} is ahead."
    return (
        f"{words}: per gradient {first.method} is ahead. Its gradients are all fresh, which allows longer steps, the "
        f"more so the less noise there is. Asynchrony gains time because no worker waits."
    )


def _is_synchronous(run: Run) -> bool:
    """Return True if every gradient was fresh, as with minibatch SGD."""
    return (
        run.stats.gradients > 0 and len(run.trace) > 0 and int(run.trace.delay.max()) == 1 and not _applies_at_once(run)
    )


def final_loss(run: Run) -> float:
    """Return the last loss; infinite if the run diverged."""
    return math.inf if run.stats.diverged else float(run.history.loss[-1])


def _until(run: Run, target: float) -> float:
    history = run.history
    return until(history.time, history.loss, history.step, target) if math.isfinite(target) else math.inf


def _loss_after(runs: list[Run], gradients: float) -> float:
    """Return the median loss at the last evaluation with at most this many gradients."""
    losses = []
    for run in runs:
        place = int(np.searchsorted(run.history.gradients, gradients, side="right")) - 1
        losses.append(float(run.history.loss[max(0, place)]))
    return float(np.median(losses))


def _applies_at_once(run: Run) -> bool:
    """Return True if every gradient made a step of its own."""
    return run.stats.steps == run.stats.gradients > 0


def _is_plain(run: Run) -> bool:
    """Return True if the run made plain SGD steps, to which the formulas apply."""
    kind = getattr(methods, run.config["method"]["type"], None)
    makes_its_own = kind is not None and (kind.makes_its_own_update or kind is methods.Auto)
    return bool(run.config["update"]["type"] == "Sgd" and not makes_its_own)


def _median(values: object) -> float:
    return float(np.median(list(values)))  # type: ignore[call-overload]
