"""Makes the runs of a reproduction: tunes every method, then runs it with every seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np

from nowait.api.simulate import simulate
from nowait.api.sweep import sweep
from nowait.core.types import Floats
from nowait.engines.progress import Progress
from nowait.engines.watch import Watch
from nowait.recording import Interrupted, Run, Trace
from nowait.speeds import Speeds
from nowait.studies.quiet import quiet
from nowait.studies.reproduce.measured import Curve, Measured
from nowait.studies.reproduce.paper import Entry, Panel
from nowait.studies.units import known_minimum

TUNING_SEED = 1_000
"""The seed of the runs that choose stepsizes; the runs that are reported have other seeds."""


@final
@dataclass(frozen=True)
class Setting:
    """A variant of a method, and a stepsize."""

    variant: str
    stepsize: float


@final
@dataclass
class PanelRuns:
    """Makes the runs of one panel."""

    panel: Panel
    count: Callable[[int], None]
    """Called after every piece of work, with its size in runs."""
    minimum: float = field(init=False)

    def __post_init__(self) -> None:
        lowest = known_minimum(self.panel.problem)
        self.minimum = 0.0 if lowest is None else lowest

    def curve(self, entry: Entry) -> Curve:
        """Tune a method, and make its runs."""
        setting = self._tuned(entry) if entry.is_tuned else Setting(next(iter(entry.variants)), entry.stepsizes[0])
        runs = [self._run(entry, setting, seed) for seed in range(self.panel.seeds)]
        return self._curve(entry, setting, runs)

    def _tuned(self, entry: Entry) -> Setting:
        """Return the setting with the lowest last loss; the smallest stepsize if every run diverged."""
        scores: dict[Setting, float] = {}
        for variant, make in entry.variants.items():
            found = sweep(
                self.panel.problem,
                partial(make),  # a class is refused
                self._speeds(entry),
                stepsizes=entry.stepsizes,
                seeds=[TUNING_SEED],
                update=entry.update,
                progress=False,
                **self._budget,
            )
            for size, loss in zip(found.stepsizes.tolist(), found.final[:, 0].tolist(), strict=True):
                scores[Setting(variant, size)] = loss if math.isfinite(loss) else math.inf
            self.count(len(entry.stepsizes))
        return min(scores, key=lambda setting: (scores[setting], setting.stepsize))

    def _run(self, entry: Entry, setting: Setting, seed: int) -> Run:
        run = simulate(
            self.panel.problem,
            entry.variants[setting.variant](setting.stepsize),
            self._speeds(entry),
            update=entry.update,
            seed=seed,
            progress=False,
            **self._budget,
        )
        if run.stats.interrupted:
            raise Interrupted.of(run)
        self.count(1)
        return run

    def _speeds(self, entry: Entry) -> Speeds:
        return self.panel.speeds(entry.fastest or self.panel.workers)

    def _curve(self, entry: Entry, setting: Setting, runs: list[Run]) -> Curve:
        sizes, tried = entry.stepsizes, len(entry.variants) * len(entry.stepsizes)
        return Curve(
            panel=self.panel.title,
            entry=entry.name,
            variant=setting.variant,
            stepsize=setting.stepsize,
            tried=tried,
            at_the_end=len(sizes) > 1 and setting.stepsize in (min(sizes), max(sizes)),
            axis=self.panel.axis,
            x=tuple(np.asarray(getattr(run.history, self.panel.axis), np.float64) for run in runs),
            errors=tuple(self._errors(run) for run in runs),
            steps=runs[0].stats.steps,
            longest_delay=_longest_used(runs[0].trace),
        )

    def _errors(self, run: Run) -> Floats:
        errors: Floats = run.history.loss - self.minimum
        errors[~np.isfinite(errors)] = math.inf
        if run.stats.diverged:
            errors[-1] = math.inf
        return errors

    @property
    def _budget(self) -> dict[str, Any]:
        return {"seconds": self.panel.seconds, "gradients": self.panel.gradients}


@final
@dataclass
class Runs:
    """Makes all runs of a reproduction, and keeps the curves."""

    panels: list[Panel]
    tell: Callable[[str], None]
    measured: Measured = field(default_factory=Measured)
    done: int = 0

    def make_all(self, progress: bool | None) -> str:
        """Make all runs. Return the name of the signal that ended them early, or an empty text."""
        whole = sum(_runs_of(entry, panel) for panel in self.panels for entry in panel.entries)
        try:
            with Watch() as watch, Progress("reproducing", progress) as bar, quiet():

                def count(work: int) -> None:
                    watch.check()
                    self.done += work
                    bar.show(self.done / whole)

                for panel in self.panels:
                    self._make(PanelRuns(panel, count))
        except Interrupted as error:
            return error.signal
        except KeyboardInterrupt:
            return "SIGINT"
        return ""

    def _make(self, runs: PanelRuns) -> None:
        for entry in runs.panel.entries:
            curve = runs.curve(entry)
            self.measured.add(curve)
            self.tell(f"{curve.panel}: {curve.label}: {shown_error(curve)}")


def _longest_used(trace: Trace) -> int:
    """Return the longest delay of a gradient that was used."""
    return int(trace.delay[trace.step > 0].max(initial=1))


def shown_error(curve: Curve) -> str:
    """Return the last error as text."""
    return f"F − F* = {curve.final:.3g}" if math.isfinite(curve.final) else "diverged"


def _runs_of(entry: Entry, panel: Panel) -> int:
    tried = len(entry.variants) * len(entry.stepsizes)
    return panel.seeds + (tried if entry.is_tuned else 0)
