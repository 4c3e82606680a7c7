"""The headline of a report: the result in one line, and a sentence that explains it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nowait.html.numbers import shown
from nowait.recording import Run, Sweep
from nowait.recording.until import until
from nowait.reports.states import is_running
from nowait.reports.sweeps import num_above_start

LEAST_PROGRESS = 0.05
"""A baseline that made less than this share of the best method's progress is no measure of speed."""
SIMULATED = ("compiled", "reference", "replay")


class Headline(NamedTuple):
    """``text`` is a few words in large letters, ``detail`` a sentence below it."""

    text: str
    detail: str


def headline(runs: Mapping[str, Sequence[Run]], sweeps: Mapping[str, Sweep]) -> Headline:
    """Return the headline of a report."""
    evaluated = {name: [run for run in entry if len(run.history)] for name, entry in runs.items()}
    evaluated = {name: entry for name, entry in evaluated.items() if entry}
    if not evaluated:
        return _of_sweeps(sweeps) if sweeps else _without_losses(runs)
    steady = {name: entry for name, entry in evaluated.items() if math.isfinite(_final(entry))}
    if not steady:
        return Headline("Every run diverged", "Try smaller stepsizes.")
    found = (_speedup(steady) if _are_comparable(evaluated) else None) or _lowest(steady, len(evaluated))
    return found._replace(detail=found.detail[:1].upper() + found.detail[1:])


def _without_losses(runs: Mapping[str, Sequence[Run]]) -> Headline:
    running = any(is_running(run) for entry in runs.values() for run in entry)
    return Headline("No loss was evaluated yet" if running else "No loss was evaluated", "")


def _speedup(runs: Mapping[str, Sequence[Run]]) -> Headline | None:
    """Compare the time to the final loss of the baseline, the first synchronous method; None if there is none."""
    synchronous = [name for name, entry in runs.items() if all(map(_is_synchronous, entry))]
    if not synchronous or len(runs) < 2:
        return None
    baseline = synchronous[0]
    target = max(float(run.history.loss[-1]) for run in runs[baseline])
    needed = _seconds_to(runs[baseline], target)
    times = {name: _seconds_to(entry, target) for name, entry in runs.items() if name != baseline}
    best = min(times, key=lambda name: times[name])
    made, most = _progress(runs[baseline]), max(_progress(runs[name]) for name in runs)
    if not 0 < times[best] < needed < math.inf or made < LEAST_PROGRESS * most:
        return None
    detail = (
        f"After {shown(times[best])} s {best} had the final loss of {baseline} ({shown(target)}), which needed "
        f"{shown(needed)} s."
    )
    return Headline(f"{shown(needed / times[best])} × as fast as {baseline}", detail)


def _lowest(runs: Mapping[str, Sequence[Run]], total: int) -> Headline:
    best = min(runs, key=lambda name: _final(runs[name]))
    stats = [run.stats for run in runs[best]]
    steps, seconds = (float(np.median([getattr(each, key) for each in stats])) for key in ("steps", "seconds"))
    reached = f"after {shown(round(steps))} steps in {shown(seconds)} s"
    if total == 1:
        return Headline(f"Loss {shown(_final(runs[best]))}", f"{best}, {reached}.")
    return Headline(f"Lowest loss: {shown(_final(runs[best]))}", f"{best}, {reached}; {total} were compared.")


def _of_sweeps(sweeps: Mapping[str, Sweep]) -> Headline:
    usable = {name: sweep for name, sweep in sweeps.items() if not sweep.diverged.any(axis=1).all()}
    if not usable:
        return Headline("Every stepsize diverged", next(iter(sweeps.values())).advice)
    best = min(usable, key=lambda name: _best_loss(usable[name]))
    sweep = usable[best]
    of = f"{best}: the " if len(sweeps) > 1 else "The "
    over = f"median final loss over {len(sweep.seeds)} seeds" if len(sweep.seeds) > 1 else "final loss"
    detail = f"{of}{over} is {shown(_best_loss(sweep))}."
    detail += _bad_stepsizes(sweep)
    return Headline(f"Best stepsize: {shown(sweep.best)}", detail + (f" Note: {sweep.advice}." if sweep.advice else ""))


def _bad_stepsizes(sweep: Sweep) -> str:
    """Return how many stepsizes are crosses in the chart, and why; empty if none is."""
    diverged, above = int(sweep.diverged.any(axis=1).sum()), num_above_start(sweep)
    counts = [(diverged, "diverged"), (above, "ended above the initial loss")]
    parts = [f"{count} {words}" for count, words in counts if count]
    return f" Of {len(sweep.stepsizes)} stepsizes, {' and '.join(parts)}." if parts else ""


def _best_loss(sweep: Sweep) -> float:
    return float(np.median(sweep.decisive[sweep.best_place]))


def _are_comparable(runs: Mapping[str, Sequence[Run]]) -> bool:
    """Return True for finished runs on one problem, all in virtual time or all in real time."""
    every = [run for entry in runs.values() for run in entry]
    same = len({str(run.config.get("problem")) for run in every}) == 1
    clocks = {run.stats.engine in SIMULATED for run in every}
    return same and len(clocks) == 1 and not any(map(is_running, every))


def _is_synchronous(run: Run) -> bool:
    """Return True if every gradient was fresh and steps used several of them, as with minibatch SGD."""
    return 0 < run.stats.steps < run.stats.gradients and int(run.trace.delay.max(initial=1)) == 1


def _progress(runs: Sequence[Run]) -> float:
    """Return by how much the loss fell, the median over runs."""
    return float(np.median([run.history.loss[0] for run in runs])) - _final(runs)


def _final(runs: Sequence[Run]) -> float:
    """Return the median of the last losses; infinite if a run diverged."""
    losses = [math.inf if run.stats.diverged else float(run.history.loss[-1]) for run in runs]
    return float(np.median(losses)) if all(map(math.isfinite, losses)) else math.inf


def _seconds_to(runs: Sequence[Run], target: float) -> float:
    times = [until(run.history.time, run.history.loss, run.history.step, target) for run in runs]
    return float(np.median(times)) if all(map(math.isfinite, times)) else math.inf
