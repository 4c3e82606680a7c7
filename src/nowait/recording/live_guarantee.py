"""A callback that records, during a run, what the theory guarantees for the run so far."""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core import Stepsize, as_stepsize
from nowait.core.types import Floats, Integers
from nowait.recording.callbacks import Callback, Control
from nowait.theory import Constants, RunCertificate, certificate
from nowait.theory.certificate import check_method, rule_of
from nowait.theory.constants import constants_of

logger = logging.getLogger("nowait")

METRIC = "guarantee"


@final
class LiveGuarantee(Callback):
    """Adds the metric "guarantee" to every evaluation: the bound of ``nw.theory.certificate`` for the run so far.

    It is a bound on the expected error of the answer, if the run ended at the evaluated step: for the average or the
    random iterate of the theorem, not for the iterate that ``loss`` belongs to. ``constants`` and ``setting`` are those
    of ``nw.theory.certificate``. The run must be one of ``AsynchronousSGD``. The metric is left out while a condition
    of the proof does not hold, after a worker has joined or left, and in resumed runs. It is computed from all steps so
    far, so each evaluation takes time in proportion to them. ``latest`` is the latest certificate.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=10, L=1.0, mu=0.0, sigma=0.1)
    >>> p = nw.theory.prescribe("convex", problem.constants(), workers=2, steps=500)
    >>> run = nw.simulate(
    ...     problem,
    ...     nw.AsynchronousSGD(p.stepsize),
    ...     nw.speeds.Fixed([1, 9]),
    ...     steps=500,
    ...     output=p.output,
    ...     callbacks=[LiveGuarantee(problem.constants())],
    ... )
    >>> float(run.history.metrics["guarantee"][-1]) == float(
    ...     nw.theory.certificate(run, problem.constants()).guarantee
    ... )
    True
    """

    def __init__(
        self, constants: Constants, *, setting: str | None = None, stepsize: Stepsize | float | None = None
    ) -> None:
        self._constants = constants_of(constants)
        self._setting = setting
        self._stepsize = None if stepsize is None else as_stepsize(stepsize)
        self.latest: RunCertificate | None = None
        """The latest certificate; None before the first one."""
        self._seen = _Arrivals()
        self._is_over = False
        """True once no further guarantee is possible."""

    def on_start(self, control: Control) -> None:
        """Start again for a new run; raise ValueError if there is no guarantee for its method."""
        check_method(control.config)
        if self._stepsize is None:
            rule_of(control.config)  # raises now if the rule is not known
        self.latest, self._seen, self._is_over = None, _Arrivals(tuple(control.workers)), False
        if control.steps:
            self._end("a resumed run: its first steps are not known")

    def on_step(self, control: Control) -> None:
        """Record worker, delay and stepsize of the step."""
        if not self._is_over:
            self._seen.add(control)
            if len(self._seen) != control.steps:
                self._end("not every gradient made a step")

    def on_worker_join(self, control: Control, worker: int) -> None:
        """End: the theorems are for a fixed set of workers."""
        self._end(f"worker {worker} joined")

    def on_worker_lost(self, control: Control, worker: int) -> None:
        """End: the theorems are for a fixed set of workers."""
        self._end(f"worker {worker} left")

    def extra_metrics(self, control: Control, step: int) -> Mapping[str, float]:
        """Return the guarantee for the first ``step`` steps, if there is one."""
        if self._is_over or not 0 < step <= len(self._seen):
            return {}
        so_far = _RunSoFar(control.config, self._seen.first(step))
        self.latest = certificate(so_far, self._constants, setting=self._setting, stepsize=self._stepsize)
        bound = float(self.latest.guarantee)
        return {METRIC: bound} if math.isfinite(bound) else {}

    def _end(self, why: str) -> None:
        if not self._is_over:
            logger.warning("no guarantee is recorded any more: %s", why)
        self._is_over = True


@final
@dataclass(frozen=True)
class _ArrivalTable:
    """The columns of a trace that a certificate is computed from."""

    initial_workers: Integers
    worker: Integers
    delay: Integers
    stepsize: Floats
    events: tuple[()] = ()

    @property
    def num_workers(self) -> int:
        return len(self.initial_workers)

    @property
    def step(self) -> Integers:
        return np.arange(1, len(self.worker) + 1)


@final
@dataclass(frozen=True)
class _RunSoFar:
    """What ``certificate`` reads of a run."""

    config: dict[str, Any]
    trace: _ArrivalTable


@final
class _Arrivals:
    """Worker, delay and stepsize of every step so far."""

    def __init__(self, workers: tuple[int, ...] = ()) -> None:
        self._workers = np.array(workers, dtype=np.int64)
        self._worker, self._delay, self._stepsize = array("q"), array("q"), array("d")

    def __len__(self) -> int:
        return len(self._worker)

    def add(self, control: Control) -> None:
        """Add the latest arrival."""
        self._worker.append(int(control.recent("worker", 1)[0]))
        self._delay.append(int(control.recent("delay", 1)[0]))
        self._stepsize.append(float(control.recent("stepsize", 1)[0]))

    def first(self, count: int) -> _ArrivalTable:
        """Return the first arrivals as arrays."""
        worker, delay = (np.array(column[:count], dtype=np.int64) for column in (self._worker, self._delay))
        return _ArrivalTable(self._workers, worker, delay, np.array(self._stepsize[:count]))
