"""Wires a training run together and runs it: shared by ``nw.train`` and ``nw.resume``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from nowait.api.batch_sizes import MOST_SECONDS, Measurement, check_measurable, choose_batch_sizes
from nowait.api.different_data import known_seconds, warn_of_different_data
from nowait.api.parts import make_parts, warn_of_split
from nowait.api.train_arguments import TOGETHER
from nowait.api.training_plan import TrainingPlan
from nowait.core import Method, Output, Problem, Sgd, Update
from nowait.core.capabilities import Capabilities
from nowait.core.memory import HOST, Memory, Slots
from nowait.core.problem import checked_problem, settings_as_text
from nowait.core.types import Vector
from nowait.engines.budget import Budget
from nowait.engines.fingerprint import Identification
from nowait.engines.keeper import Keeper, checkpoint_of
from nowait.engines.session import Parts
from nowait.fleet.host.launch import Zygote, ZygoteCopy, launch_zygote
from nowait.fleet.options import Listen, RayCluster, WorkerOptions, sent_through
from nowait.fleet.platform import available_cores, require_ray_hosts, server_threads
from nowait.fleet.preparing import prepare_to_listen
from nowait.fleet.run import train_elsewhere, train_here
from nowait.fleet.sources.ray_cluster import connected
from nowait.fleet.wire.shared import shared_slots
from nowait.numerics.parallel import using_threads
from nowait.problems.encodings import Encodings, sent_vectors
from nowait.recording import HistoryRecorder, Run, describe
from nowait.recording.best import BEST, BestFile
from nowait.recording.folder import RunFolder
from nowait.recording.identity import new_run_id

if TYPE_CHECKING:
    from nowait.engines.metrics_server import MetricsServer

NEVER = 10**12
"""More steps than a run makes."""


@final
@dataclass(frozen=True)
class Training:
    """A call of ``nw.train`` or ``nw.resume``, with its settings checked."""

    plan: TrainingPlan
    problem: Problem
    method: Method
    update: Update | None
    output: Output | None
    callbacks: Iterable[Any]
    called: float
    """When the user's call began, by ``perf_counter``."""
    progress: bool | None
    folder: str | Path | None
    initial: Any = None
    resumed: RunFolder | None = None
    """The locked folder of the run to resume."""
    fingerprint: Any = None
    """The problem's fingerprint in ``config.json``; None if it is not known yet."""
    computes_alike: bool = False
    """True if a resumed run has the machine, versions and settings it had, so that its gradients are the same."""
    labels: dict[str, Any] = field(default_factory=dict)
    server_threads: int | None = None
    """Not a part of the plan, because it changes no result: None chooses it."""
    metrics_address: tuple[str, int] | None = None
    """Where Prometheus finds the numbers of the run."""


@contextlib.contextmanager
def connected_plan(plan: TrainingPlan) -> Iterator[TrainingPlan]:
    """Connect to Ray or check the port if the plan needs it; fill in the number of workers if that depends on Ray."""
    if isinstance(plan.engine, Listen):
        prepare_to_listen(plan.engine)
    if not isinstance(plan.engine, RayCluster):
        yield plan
        return
    require_ray_hosts()
    with connected(plan.engine, plan.most) as room:
        yield replace(plan, workers=max(1, room)) if plan.workers is None else plan


def run_training(training: Training) -> Run:
    """Make the parts of the run, then run them with the engine of the plan."""
    plan, resumed = training.plan, training.resumed
    if resumed is None:
        warn_of_split(training.problem, plan.most or 1)
        named = {type(training.method).__name__: training.method}
        seconds = known_seconds(plan.speeds, plan.slowdown, plan.most or 1)
        warn_of_different_data(training.problem, named, plan.most or 1, seconds)
        sizes = Capabilities.of(checked_problem(training.problem)).auto_batch_sizes
        if sizes is not None and sizes.chosen is None:
            check_measurable(plan.engine)
            choose_batch_sizes(sizes, lambda measurement: _run_parts(_measuring(training, measurement)))
    return _run_parts(training)


def _measuring(training: Training, measurement: Measurement) -> Training:
    """Return a short training that measures the workers of another one."""
    budget = Budget(seconds=MOST_SECONDS)
    plan = replace(training.plan, budget=budget, evaluate_every=NEVER, keep_best=None, trace="none", audit=None)
    return replace(
        training,
        plan=plan,
        method=measurement,
        update=Sgd(),
        output=None,
        callbacks=[measurement],
        progress=False,
        folder=None,
        metrics_address=None,
    )


def _run_parts(training: Training) -> Run:
    plan, resumed = training.plan, training.resumed
    checkpoint = None if resumed is None else resumed.latest()
    workers = list(range(plan.fewest)) if checkpoint is None else checkpoint.state.workers
    with contextlib.ExitStack() as stack:
        metrics = _open_metrics(training, stack)  # first: a port that is in use is refused at once
        zygote = None
        if plan.engine is None:  # early, so that it imports modules while the rest is prepared
            zygote = stack.enter_context(contextlib.closing(launch_zygote(training.problem, len(workers))))
        slots: list[Slots] = []

        def share(params: Vector, memory: Memory | None) -> Callable[[], Vector]:
            slots.append(shared_slots(memory, params.size, params.dtype))
            stack.callback(slots[0].close)
            return slots[0].allocate

        problem = sent_through(training.problem, plan.wire, plan.points_wire)
        parts = make_parts(
            problem,
            training.method,
            workers,
            plan.budget,
            evaluate_every=plan.evaluate_every,
            update=training.update,
            output=training.output,
            callbacks=training.callbacks,
            initial=training.initial if checkpoint is None else checkpoint.state.params,
            seed=plan.seed,
            resumed=checkpoint is not None,
            trace=plan.trace,
            on_host=plan.engine is not None,
            share=share,
        )
        parts.checkpoint, parts.called, parts.metrics = checkpoint, training.called, metrics
        _note_what_is_sent(training, parts, slots[0])
        del checkpoint  # the session drops its vectors when they are no longer needed
        parts.config |= {setting.name: describe(getattr(plan, setting.name)) for setting in fields(plan)}
        parts.config["labels"] = describe(training.labels)
        if settings := settings_as_text(problem):
            parts.config["process_settings"] = settings
        if parts.capabilities.auto_batch_sizes is not None:
            parts.config["batch_sizes"] = parts.capabilities.auto_batch_sizes.chosen
        if training.folder is not None:
            parts.keeper = _keeper(training, parts, training.folder)
            if plan.keep_best is not None:
                parts.best = BestFile(parts.keeper.folder.path / BEST, plan.keep_best, parts.config["run"])
            stack.callback(parts.keeper.close)
        with using_threads(_server_threads(training, slots[0].length)):
            return _run(plan, parts, slots[0], zygote, training.progress)


def _note_what_is_sent(training: Training, parts: Parts, points: Slots) -> None:
    """Let the trace say how vectors are sent, if they are. The problem of the run stays the one that was given."""
    plan = training.plan
    parts.given_problem, parts.wires = training.problem, (plan.wire, plan.points_wire)
    parts.config["problem"] = repr(training.problem)
    if plan.engine is not None:
        encodings = Encodings.of(parts.problem)
        parts.recorder.sent = sent_vectors(encodings, points.length, points.dtype, *parts.wires)


def _open_metrics(training: Training, stack: contextlib.ExitStack) -> MetricsServer | None:
    """Start to show the numbers of the run to Prometheus, if that was asked for."""
    if training.metrics_address is None:
        return None
    from nowait.engines.metrics_server import MetricsServer

    return stack.enter_context(contextlib.closing(MetricsServer.open(training.metrics_address)))


def _server_threads(training: Training, length: int) -> int:
    workers = training.plan.most or training.plan.fewest
    return server_threads(training.server_threads, length=length, workers=workers, cores=available_cores())


def _run(
    plan: TrainingPlan, parts: Parts, points: Slots, zygote: Zygote | ZygoteCopy | None, progress: bool | None
) -> Run:
    """Run the parts with the engine of the plan: with the zygote, or else with workers elsewhere."""
    log = None if parts.keeper is None else parts.keeper.folder.path / "workers.log"
    options = WorkerOptions(
        slowdown=plan.slowdown,
        speeds=plan.speeds,
        replace_hung=plan.replace_hung,
        max_failures=plan.max_failures,
        audit=plan.audit,
        log=log,
        most_workers=plan.most or 0,
        together=plan.start == TOGETHER,
    )
    if zygote is not None:
        return train_here(parts, points, options, plan.seed, progress, zygote)
    fewest = plan.fewest if parts.checkpoint is None else max(1, min(plan.fewest, len(parts.checkpoint.wanted)))
    assert plan.engine is not None
    return train_elsewhere(plan.engine, fewest, parts, points, options, seed=plan.seed, progress=progress)


def _keeper(training: Training, parts: Parts, folder: str | Path) -> Keeper:
    """Return the run's ``Keeper``, and set up how the problem's fingerprint is recorded or compared."""
    plan, config = training.plan, parts.config
    config["run"] = new_run_id() if training.resumed is None else training.resumed.run
    config["fingerprint"] = training.fingerprint
    run_folder = training.resumed or _new_folder(plan, parts, folder)

    def keep(fingerprint: dict[str, Any]) -> None:
        config["fingerprint"] = fingerprint
        run_folder.write_config(config)

    strict = training.computes_alike and parts.server.memory is HOST  # kernels of GPUs are chosen anew in every process
    parts.identification = Identification(
        training.problem, training.fingerprint, str(run_folder.path), keep, strict=strict
    )
    every, seconds = plan.checkpoint_every or math.inf, plan.checkpoint_seconds or math.inf
    return Keeper(run_folder, every, seconds, parts.capabilities.checkpoint_model())


def _new_folder(plan: TrainingPlan, parts: Parts, folder: str | Path) -> RunFolder:
    """Create the folder, with a checkpoint of the start in it."""
    state, wanted = parts.server.initial_state(), list(range(plan.most or plan.fewest))
    model_file = parts.capabilities.checkpoint_model()
    return RunFolder.create(
        folder,
        parts.config,
        plan.keep_checkpoints,
        parts.recorder,
        first=lambda recorder: checkpoint_of(state, recorder, wanted, HistoryRecorder(), model_file),
    )
