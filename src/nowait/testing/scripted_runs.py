"""Runs with the workers of a ``ScriptedTransport``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from nowait.core import Method, Output, Server, Update
from nowait.core.audit import Audit
from nowait.core.capabilities import Capabilities
from nowait.core.problem import checked_problem, initial_params
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.fingerprint import Identification
from nowait.engines.keeper import Keeper
from nowait.engines.session import Parts
from nowait.engines.workers.running import run_with_workers
from nowait.fleet.options import WorkerOptions
from nowait.recording import Run, TraceRecorder, checked_callbacks
from nowait.recording.best import BestFile
from nowait.recording.checkpoints import Checkpoint
from nowait.testing.scripted import Happening, PlainSlots, ScriptedTransport


@final
@dataclass
class ScriptedRun:
    """The parts of a scripted run that tests look at."""

    transport: ScriptedTransport
    server: Server
    slots: PlainSlots = field(repr=False)


def train_scripted(
    problem: Any,
    method: Method,
    *,
    workers: int,
    script: Iterable[Happening] = (),
    steps: int | None = None,
    gradients: int | None = None,
    seconds: float | None = None,
    target_loss: float | None = None,
    target: Mapping[str, Any] | None = None,
    evaluate_every: int | None = None,
    update: Update | None = None,
    output: Output | None = None,
    callbacks: Iterable[Any] = (),
    seed: int = 0,
    capacity: float = math.inf,
    most_workers: int = 0,
    minimum: int | None = None,
    reopens: bool = True,
    opens: bool = True,
    slowdown: dict[int, float] | None = None,
    replace_hung: bool = False,
    max_failures: int = 5,
    together: bool = False,
    audit: Audit | None = None,
    keeper: Keeper | None = None,
    checkpoint: Checkpoint | None = None,
    identification: Identification | None = None,
    best: BestFile | None = None,
    look: Callable[[ScriptedRun], object] = lambda _: None,
) -> Run:
    """Train as ``nw.train`` does, with the workers of a ``ScriptedTransport``.

    ``slowdown`` makes no worker slower, but the engine tells workers of cancelled tickets as if it did. With
    ``together``, the first report of each worker says that it is ready, and the run begins when all have. ``look`` is
    called after the run, also if it failed. No gradient is audited by default, so that scripts hold as they are.

    >>> import nowait as nw
    >>> from nowait.testing.scripted import Die
    >>> problem = nw.problems.NoisyQuadratic(dimension=5, sigma=0.1)
    >>> run = train_scripted(
    ...     problem,
    ...     nw.AsynchronousSGD(nw.Constant(0.1)),
    ...     workers=2,
    ...     steps=9,
    ...     script=[Die(worker=1)],
    ... )
    >>> run.stats.steps, run.stats.lost
    (9, 1)
    """
    budget = Budget(steps, gradients, seconds, target_loss, target)
    params = initial_params(checked_problem(problem)) if checkpoint is None else checkpoint.state.params
    slots = PlainSlots(params)
    numbers = list(range(workers)) if checkpoint is None else checkpoint.state.workers
    recorder = TraceRecorder(numbers)
    capabilities = Capabilities.of(problem)
    server = Server(
        method,
        params,
        numbers,
        update=capabilities.update_for(method) if update is None else update,
        output=output,
        seed=seed,
        log=recorder,
        allocate=slots.allocate,
        statistics=capabilities.num_statistics,
        statistics_momentum=capabilities.statistics_momentum,
        layout=capabilities.layout,
    )
    parts = Parts(
        problem,
        server,
        recorder,
        budget,
        EvaluationPlan.of(evaluate_every, budget),
        callbacks=checked_callbacks(callbacks),
        keeper=keeper,
        checkpoint=checkpoint,
        identification=identification,
        best=best,
    )
    transport = ScriptedTransport(
        problem, seed, slots, script, capacity=capacity, reopens=reopens, opens=opens, best=best, audit=audit
    )
    options = WorkerOptions(
        slowdown=slowdown or {},
        most_workers=max(most_workers, workers),
        replace_hung=replace_hung,
        max_failures=max_failures,
        together=together,
        audit=audit,
    )
    minimum = (1 if math.isinf(capacity) else 0) if minimum is None else minimum
    try:
        return run_with_workers(transport, parts, options, minimum=minimum, progress=False, clock=transport)
    finally:
        look(ScriptedRun(transport, server, slots))
