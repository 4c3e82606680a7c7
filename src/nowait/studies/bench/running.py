"""Runs to a target, in virtual time."""

from __future__ import annotations

from typing import Any

import numpy as np

from nowait.api.simulate import simulate
from nowait.core import Method, Problem
from nowait.core.problem import loss_of
from nowait.recording import Control, Run
from nowait.speeds import Speeds
from nowait.studies.quiet import quiet

NEVER = 1 << 60
"""Steps between evaluations, for none."""


def run_to_target(problem: Problem, method: Method, speeds: Speeds, **options: Any) -> Run:
    """Simulate without warnings: stepsizes that diverge are part of tuning."""
    with quiet():
        return simulate(problem, method, speeds, progress=False, **options)


def evaluated_seconds(run: Run, target: float) -> float | None:
    """Return the time of the first evaluation at or below the target; None if there is none."""
    reached = np.flatnonzero(run.history.loss <= target)
    return float(run.history.time[reached[0]]) if len(reached) else None


def exact_seconds(
    run: Run, target: float, problem: Problem, method: Method, speeds: Speeds, **options: Any
) -> float | None:
    """Return the time of the first step at or below the target, since the last evaluation above it; None if none was.

    The run is simulated again up to that evaluation, and evaluated after each of these steps. So the resolution does
    not depend on how often a method makes a step.
    """
    reached = np.flatnonzero(run.history.loss <= target)
    if not len(reached) or reached[0] == 0:
        return evaluated_seconds(run, target)
    before, after = run.history.step[reached[0] - 1 : reached[0] + 1].tolist()
    found: list[float] = []

    def look(control: Control) -> None:
        if control.steps > before and loss_of(problem, control.params) <= target:
            found.append(control.time)
            control.stop()

    run_to_target(problem, method, speeds, steps=after, callbacks=[look], evaluate_every=NEVER, trace="none", **options)
    return found[0] if found else evaluated_seconds(run, target)
