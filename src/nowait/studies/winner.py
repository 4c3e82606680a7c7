"""Which method won a race, by how much, and why: in sentences."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.html.numbers import shown
from nowait.recording import Run
from nowait.recording.until import until
from nowait.studies.findings import RaceRow, final_loss
from nowait.theory import Speedup
from nowait.theory.regimes import LITTLE_NOISE, MUCH_NOISE

CONVERGED = 1e-6
"""An error below this share of the error at the start counts as 0: smaller errors are partly rounding."""
NEARLY_EQUAL = 1.5
"""Waiting for all workers costs little if s_max/HM is at most this."""


@final
@dataclass(frozen=True)
class Contest:
    """What the winner is found by."""

    rows: list[RaceRow]
    """The table of the race; the first row is the baseline."""
    runs: Mapping[str, list[Run]]
    minimum: float | None
    gain: Speedup
    noise: float | None
    """σ²/(M·L·ε) where the first method ended; None if it is not known."""
    settings: Mapping[str, Mapping[str, float]]
    """What was tuned, by method."""
    tried: Collection[str]
    """The methods that were tuned by trials of their own."""

    @property
    def able(self) -> list[RaceRow]:
        """The methods that had all the time, made steps and ended below the loss they began with."""
        return [
            row
            for row in self.rows
            if row.steps > 0
            and not (row.diverged or row.worse_than_start)
            and not any(run.stats.interrupted for run in self.runs[row.method])
        ]

    @property
    def converged(self) -> float:
        """A loss so near F* that the rest is partly rounding; −∞ if F* is not known."""
        if self.minimum is None:
            return -math.inf
        start = float(next(iter(self.runs.values()))[0].history.loss[0])
        return self.minimum + CONVERGED * (start - self.minimum)

    @property
    def winner(self) -> RaceRow | None:
        """The method with the lowest final loss; None if fewer than two methods can be compared.

        Of methods that converged it is the first that did: their final losses differ by rounding.
        """
        able = self.able
        if len(able) <= 1:
            return None
        converged = [row for row in able if row.loss <= self.converged]
        if converged:
            return min(converged, key=lambda row: (self.seconds_to(self.converged, row), row.loss))
        return min(able, key=lambda row: row.loss)

    def seconds_to(self, loss: float, row: RaceRow) -> float:
        """Return the median time at which a method reached a loss; infinite if it did not."""
        return float(np.median([_seconds_to(loss, run) for run in self.runs[row.method]]))

    def times_as_long(self, row: RaceRow, winner: RaceRow) -> float:
        """Return how many times as long as the winner a method took for its own final loss: the median over seeds."""
        ratios = []
        for theirs, ours in zip(self.runs[row.method], self.runs[winner.method], strict=False):
            target = max(final_loss(theirs), self.converged)
            ours_took = _seconds_to(target, ours)
            ratios.append(_seconds_to(target, theirs) / ours_took if ours_took > 0 else math.inf)
        return float(np.median(ratios))

    def described(self, row: RaceRow) -> str:
        """Return the name of a method, with its m and its momentum if they were tuned."""
        settings = self.settings.get(row.method, {})
        words = []
        if "m" in settings:
            words.append(f"m = {settings['m']:g} of {self.gain.workers}")
        if "momentum" in settings:
            words.append(f"momentum {settings['momentum']:g}")
        return f"{row.method} ({', '.join(words)})" if words else row.method


def _seconds_to(loss: float, run: Run) -> float:
    return until(run.history.time, run.history.loss, run.history.step, loss)


def who_won(contest: Contest) -> list[str]:
    """Return sentences: the winner, how much longer the others needed, and why; empty if there is no winner."""
    winner = contest.winner
    if winner is None:
        return []
    return [
        f"{contest.described(winner)} was fastest: {_how(contest, winner)}.",
        *_others(contest, winner),
        *_why(contest, winner),
    ]


def _how(contest: Contest, winner: RaceRow) -> str:
    if winner.loss > contest.converged:
        return f"it ended with the lowest loss, {winner.loss:.4g}"
    return (
        f"after {contest.seconds_to(contest.converged, winner):.3g} s, before any other, its error was "
        f"below {CONVERGED:g} of that at the start"
    )


def _others(contest: Contest, winner: RaceRow) -> list[str]:
    """Return a sentence on how much longer the others took to their final losses than the winner."""
    times = {row.method: contest.times_as_long(row, winner) for row in contest.able if row is not winner}
    known = sorted((name for name, factor in times.items() if math.isfinite(factor)), key=lambda name: times[name])
    if not known:
        return []
    untried = {name: " (without a trial of its own)" for name in contest.settings if name not in contest.tried}
    listed = "; ".join(f"{name} {times[name]:.3g}{untried.get(name, '')}" for name in known)
    return [f"Times to the final loss of each other method, divided by the winner's time to it: {listed}."]


def _why(contest: Contest, winner: RaceRow) -> list[str]:
    """Return a sentence on what made the winner fast, as far as its kind and the noise tell."""
    method: dict[str, Any] = contest.runs[winner.method][0].config.get("method", {})
    first, kind = contest.rows[0], method.get("type")
    waits_for_all = kind == "MinibatchSGD" or method.get("m") == contest.gain.workers
    if kind == "MSynchronousSGD" and not waits_for_all:
        return [_why_not_all(contest, winner, first)]
    if waits_for_all and contest.gain.speedup <= NEARLY_EQUAL:
        return [
            f"The workers are nearly equally fast (s_max/HM = {contest.gain.speedup:.3g}), so waiting for all of them "
            f"costs little, and all gradients are fresh.{_noise(contest, first, 'fresh')}"
        ]
    if kind == "AsynchronousSGD":
        return [
            f"No worker waited: {winner.gradients:,.0f} gradients made a step each; {first.method} used "
            f"{first.gradients:,.0f} gradients in the same time.{_noise(contest, first, 'all')}"
        ]
    if kind == "Auto":
        used = (winner.gradients - winner.dropped) / winner.steps
        return [f"It changed how many gradients a step waits for; its {winner.steps:,.0f} steps had {used:.3g} each."]
    return []


def _why_not_all(contest: Contest, winner: RaceRow, first: RaceRow) -> str:
    return (
        f"It did not wait for slow workers: {winner.steps:,.0f} steps, where {first.method} made {first.steps:,.0f}, "
        f"with {winner.dropped:,.0f} late gradients dropped.{_noise(contest, first, 'fresh')}"
    )


def _noise(contest: Contest, first: RaceRow, kind: str) -> str:
    """Return a sentence on the noise, if it explains that few fresh gradients, or all gradients, win; else nothing."""
    noise = contest.noise
    if noise is not None and kind == "fresh" and noise <= LITTLE_NOISE:
        return (
            f" There was little noise (σ²/(M·L·ε) = {noise:.2g} where {first.method} ended): more gradients per second "
            f"gain little then, and fresh ones allow longer steps and momentum."
        )
    if noise is not None and kind == "all" and noise >= MUCH_NOISE:
        return f" There was much noise (σ²/(M·L·ε) = {noise:.2g} where {first.method} ended), so every gradient counts."
    return ""


def lost_workers(runs: Mapping[str, list[Run]]) -> list[str]:
    """Return a sentence for each method whose workers left or died with gradients that had been asked for."""
    return [
        f"{name} lost {shown(lost)} gradients with workers that left or died: it had fewer workers for a while."
        for name, mine in runs.items()
        if (lost := sum(run.stats.lost for run in mine))
    ]
