"""What a race has shown: its table, and sentences that follow from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.recording import Run
from nowait.studies.track import until
from nowait.theory import Speedup


@final
@dataclass(frozen=True)
class RaceRow:
    """One method; numbers are medians over the seeds."""

    method: str
    gradients: float
    steps: float
    seconds: float
    loss: float
    error: float
    """Loss minus F*."""
    steps_per_second: float
    delay_median: float
    delay_mean: float
    delay_max: float
    dropped: float
    diverged: bool
    """Whether any run did."""
    seconds_to_first: float
    """When it has the loss that the first method ends with; infinite if never."""
    predicted: float | None
    """How many times sooner that should be by s_max/HM; None for methods that the formula is not about."""
    measured: float | None
    """How many times sooner it was; None for the first method."""


def rows_of(runs: Mapping[str, list[Run]], minimum: float, gain: Speedup) -> list[RaceRow]:
    """The table of a race; the first method is the one to compare with."""
    first = next(iter(runs.values()))
    return [_row(name, mine, first, minimum, gain) for name, mine in runs.items()]


def _row(name: str, runs: list[Run], first: list[Run], minimum: float, gain: Speedup) -> RaceRow:
    targets = [final_loss(run) for run in first[: len(runs)]]
    times = [_until(run, target) for run, target in zip(runs, targets, strict=True)]
    ends = [_until(run, target) for run, target in zip(first, targets, strict=False)]
    seconds_to = float(np.median(times))
    is_first = runs is first
    delays = [run.trace.delay for run in runs]
    loss = _median(final_loss(run) for run in runs)
    return RaceRow(
        method=name,
        gradients=_median(run.stats.gradients for run in runs),
        steps=_median(run.stats.steps for run in runs),
        seconds=_median(run.stats.seconds for run in runs),
        loss=loss,
        error=loss - minimum,
        steps_per_second=_median(run.stats.steps_per_second for run in runs),
        delay_median=_median(np.median(one) if len(one) else math.nan for one in delays),
        delay_mean=_median(one.mean() if len(one) else math.nan for one in delays),
        delay_max=_median(one.max() if len(one) else math.nan for one in delays),
        dropped=_median(run.stats.dropped for run in runs),
        diverged=any(run.stats.diverged for run in runs),
        seconds_to_first=seconds_to,
        predicted=gain.speedup if _applies_at_once(runs[0]) else None,
        measured=None if is_first else float(np.median(ends)) / seconds_to if seconds_to > 0 else math.nan,
    )


def findings(rows: list[RaceRow], runs: Mapping[str, list[Run]], gain: Speedup, engine: str) -> list[str]:
    """Sentences: who made how many steps, who was first, how it stands per gradient."""
    first, others = rows[0], rows[1:]
    if not others:
        return [f"{first.method} made {first.steps:,.0f} steps and ended at a loss of {first.loss:.4g}."]
    best = min(others, key=lambda row: row.seconds_to_first)
    time = "virtual time" if engine == "simulate" else "wall-clock time"
    sentences = [
        f"In {first.seconds:.4g} s of {time} {first.method} made {first.steps:,.0f} steps, {best.method} "
        f"{best.steps:,.0f}."
    ]
    if math.isfinite(best.seconds_to_first) and best.measured is not None:
        promised = f" (s_max/HM of the workers' speeds promises {gain.speedup:.3g} x)" if best.predicted else ""
        verb = "reached" if best.measured >= 1 else "reached only"
        sentences.append(
            f"{best.method} {verb} the loss that {first.method} ends with after {best.seconds_to_first:.3g} s, "
            f"{best.measured:.3g} times as fast{promised}."
        )
    else:
        sentences.append(f"No other method reached the loss that {first.method} ends with.")
    sentences += [_per_gradient(runs, first, best)]
    sentences += [f"{row.method} diverged: its stepsize is too large for some seed." for row in rows if row.diverged]
    return sentences


def _per_gradient(runs: Mapping[str, list[Run]], first: RaceRow, best: RaceRow) -> str:
    """The comparison at the same number of gradients, whichever way it falls."""
    count = min(first.gradients, best.gradients)
    ours, theirs = (_loss_after(runs[row.method], count) for row in (best, first))
    words = f"After the same {count:,.0f} gradients {best.method} has a loss of {ours:.4g}, {first.method} {theirs:.4g}"
    if ours <= theirs * (1 + 1e-9):
        return f"{words}: it is no worse per gradient either."
    return (
        f"{words}: per gradient {first.method} is ahead, because its gradients are all fresh, and with near-equal "
        f"workers or little noise fresh gradients allow longer steps. What asynchrony buys is not waiting."
    )


def final_loss(run: Run) -> float:
    """The last loss; infinite if the run diverged."""
    return math.inf if run.stats.diverged else float(run.history.loss[-1])


def _until(run: Run, target: float) -> float:
    history = run.history
    return until(history.time, history.loss, history.step, target) if math.isfinite(target) else math.inf


def _loss_after(runs: list[Run], gradients: float) -> float:
    """The median loss at the last evaluation with at most so many gradients."""
    losses = []
    for run in runs:
        place = int(np.searchsorted(run.history.gradients, gradients, side="right")) - 1
        losses.append(float(run.history.loss[max(0, place)]))
    return float(np.median(losses))


def _applies_at_once(run: Run) -> bool:
    """Does every gradient make a step of its own?"""
    return run.stats.steps == run.stats.gradients > 0


def _median(values: object) -> float:
    return float(np.median(list(values)))  # type: ignore[call-overload]
