"""Compiled simulations: a plan of the whole run is made first, then compiled code executes it.

The results are those of the reference simulation (``simulator.py``).
"""

from __future__ import annotations

from typing import final

import numpy as np

from nowait.core import Sgd
from nowait.core.capabilities import Capabilities
from nowait.core.memory import HostMemory
from nowait.engines.hooks import FixedWorkers
from nowait.engines.progress import Progress, title_or
from nowait.engines.session import Parts, Session
from nowait.engines.signals import Interruption
from nowait.engines.simulator.blueprint import Blueprint
from nowait.engines.simulator.plan import NO_PROGRESS, NotPlannable, Plan
from nowait.engines.simulator.playback import Playback, PlaybackRecorder, Stretch
from nowait.problems.compiled_data import ProblemData
from nowait.recording import Interrupted, Run
from nowait.speeds import Faults, Speeds

LONG, SHORT = 1 << 24, 1 << 16
"""The most events of the first plan: few if planning is slow, or if a target may end the run early."""
GROWTH = 16
"""If a plan was too short, the next one is longer by this factor."""
MOST_EVENTS = 1 << 26
"""Longer runs are not compiled: a plan takes about 150 bytes per event, the reference simulation needs no plan."""
TOO_LONG = f"the run may have more than {MOST_EVENTS:,} events, too many for a plan in memory"
NO_COMPILED_GRADIENT = "the problem has no compiled gradient"


def simulate_compiled(parts: Parts, speeds: Speeds, faults: Faults, seed: int, progress: bool | None) -> Run:
    """Make a run from a plan. Raises ``NotPlannable`` if that is impossible, and ``Interrupted`` after a signal."""
    data = _data_of(parts)
    if max(parts.budget.steps or 0, parts.budget.gradients or 0) > MOST_EVENTS:
        raise NotPlannable(TOO_LONG)
    blueprint = Blueprint(parts.server.method, list(parts.server.workers), speeds, faults, seed, parts.server.output)
    return _CompiledRun(parts, data, blueprint, progress).run()


def _data_of(parts: Parts) -> ProblemData:
    """Return what compiled code needs of the problem; ``NotPlannable`` if other parts of the run need the server."""
    if parts.callbacks:
        raise NotPlannable("there are callbacks")
    if not isinstance(parts.server.update, Sgd):
        raise NotPlannable("the update is not plain SGD")
    if not isinstance(parts.server.memory, HostMemory):
        raise NotPlannable("params are not in host memory")
    if parts.keeper is not None:
        raise NotPlannable("the run writes checkpoints")
    data = data_of(parts.capabilities)
    if data is None:
        raise NotPlannable(NO_COMPILED_GRADIENT)
    return data


def data_of(capabilities: Capabilities) -> ProblemData | None:
    """Return the arrays of a problem for compiled code, or None if it has none."""
    if capabilities.items_of is not None or capabilities.compiled_data is None:
        return None  # plans do not know how many items gradients have
    data: ProblemData | None = capabilities.compiled_data()
    return data


@final
class _CompiledRun:
    def __init__(self, parts: Parts, data: ProblemData, blueprint: Blueprint, progress: bool | None) -> None:
        self._parts = parts
        soon = parts.budget.has_target or not blueprint.is_scheduled
        self._most_events = SHORT if soon else LONG
        self._blueprint = blueprint
        self._data = data
        self._progress = progress
        self._session: Session[Stretch] | None = None
        self._signal = ""
        self._used = 0
        """How many gradients of the plan before were used."""

    def run(self) -> Run:
        """Run to the end of the budget. After a signal it always raises ``Interrupted``."""
        try:
            run = self._run()
        except NotPlannable:
            if self._signal:
                raise Interrupted(self._signal) from None
            raise
        if self._signal:
            raise Interrupted(self._signal, run=run)
        return run

    def _run(self) -> Run:
        quiet = np.errstate(over="ignore", invalid="ignore")
        with quiet, Interruption(self._interrupt), Progress(title_or("simulating"), self._progress) as bar:
            plan = self._first_plan(bar)
            playback = Playback(self._data, self._blueprint, plan, self._parts.server.params.copy())
            recorder = PlaybackRecorder(playback, self._blueprint.workers, self._parts.recorder.kept)
            workers = FixedWorkers("a compiled run has no callbacks")
            session = self._session = Session(self._parts, playback, recorder, workers)
            self._play(session, playback, bar)
            if playback.is_ahead:
                self._blueprint.allow()
                plan = self._blueprint.plan(
                    self._parts.budget,
                    bar,
                    most_events=playback.num_events,
                    weigh_in_flight=playback.diverged is None,
                )
                playback.end_with(plan)
        if self._signal and not session.interrupted:  # it came during planning, or after the last event
            session.interrupt(self._signal)
        seconds = playback.now if playback.plan.seconds is None else playback.plan.seconds
        return session.result(seconds, "compiled")

    def _first_plan(self, bar: Progress) -> Plan:
        """Return the first plan; a short one if a signal came meanwhile, because executing a long one takes time."""
        plan = self._blueprint.plan(self._parts.budget, bar, most_events=self._most_events)
        if not self._signal or len(plan.moments) <= SHORT:
            return plan
        self._blueprint.allow()
        return self._blueprint.plan(self._parts.budget, bar, most_events=SHORT)

    def _interrupt(self, signal: str) -> None:
        self._signal = signal
        self._blueprint.stop()
        if self._session is not None:
            self._session.interrupt(signal)

    def _play(self, session: Session[Stretch], playback: Playback, bar: Progress) -> None:
        """Execute the plan, many events at a time."""
        session.begin()
        session.start()
        while not session.finished:
            if playback.num_events == len(playback.plan.moments):
                self._end_of_plan(session, playback, bar)
            else:
                session.handle(playback.next_stretch(*session.due))
                bar.show(self._parts.budget.share_used(playback.steps, playback.counts.gradients, playback.now))
            if self._signal and not session.interrupted:  # it came before there was a session
                session.interrupt(self._signal)

    def _end_of_plan(self, session: Session[Stretch], playback: Playback, bar: Progress) -> None:
        """Handle a plan that ended before the run: a signal, no more time or events, or too few events in the plan."""
        if self._signal:
            return
        if playback.num_events < self._most_events:
            session.stop(playback.plan.advice)
        elif self._most_events >= MOST_EVENTS:
            raise NotPlannable(TOO_LONG)
        else:
            used = playback.plan.counts.gradients - playback.plan.counts.dropped
            if used == self._used:
                raise NotPlannable(NO_PROGRESS)
            self._used = used
            self._most_events = min(GROWTH * self._most_events, MOST_EVENTS)
            plan = self._blueprint.plan(self._parts.budget, bar, most_events=self._most_events)
            if not self._signal:  # else the plan was stopped early, and the run ends with the last one
                playback.continue_with(plan)
