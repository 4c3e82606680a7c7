"""``nw.resume``: continues a run of ``nw.train`` from its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from nowait.api.recorded import (
    computes_alike,
    entry,
    fingerprint_of,
    labels_of,
    part,
    read_config,
    use_recorded_batch_sizes,
)
from nowait.api.same_parts import check_same_part
from nowait.api.train_arguments import (
    check_started_once,
    checked_metrics_address,
    checked_server_threads,
    suitable_audit,
)
from nowait.api.training import Training, connected_plan, run_training
from nowait.api.training_plan import TrainingPlan
from nowait.core import Audit, Method, Output, Problem, Update, checks
from nowait.core.problem import checked_problem
from nowait.engines.budget import Budget
from nowait.engines.fingerprint import Fingerprint, other_problem
from nowait.fleet.options import Elsewhere
from nowait.fleet.platform import require_worker_processes
from nowait.recording import Run
from nowait.recording.folder import RunFolder
from nowait.recording.identity import RUN, checked_id
from nowait.recording.run import STATS, read_stats
from nowait.speeds import Speeds

logger = logging.getLogger("nowait")


def resume(
    folder: str | Path,
    problem: Problem,
    *,
    steps: int | None = None,
    gradients: int | None = None,
    seconds: float | None = None,
    target_loss: float | None = None,
    target: Mapping[str, Any] | None = None,
    method: Method | None = None,
    update: Update | None = None,
    output: Output | None = None,
    allow_changes: bool = False,
    speeds: Speeds | None = None,
    audit: bool | float | Audit | None = None,
    callbacks: Iterable[Any] = (),
    engine: str | Elsewhere | None = None,
    server_threads: int | None = None,
    progress: bool | None = None,
    metrics_port: int | str | tuple[str, int] | None = None,
) -> Run:
    """Continue a run of ``nw.train`` from the last complete checkpoint in its folder.

    Any of ``steps``, ``gradients``, ``seconds``, ``target_loss`` and ``target`` replaces the whole budget of the run,
    so that a finished run goes on too, with the state of its update. They are totals: ``steps=2000`` after 1000 steps
    makes 1000 more.

    Method, update, output and speeds are rebuilt from ``config.json``, with schedule and optimiser of a problem made by
    ``from_trainer`` or ``from_lightning``; parts that are not of this library have to be passed again, and so has the
    problem. The problem, and a method, update or output that is passed, are compared with those of the run; others are
    refused. ``allow_changes=True`` lets the run go on with another method, update or output, or with a problem whose
    gradient differs a little, after which it cannot be replayed. A run that a signal ended can be resumed too.
    Callbacks are not recorded either: pass ``callbacks`` again. ``progress`` None shows a live view on a terminal. The
    run continues on the engine it had, unless ``engine`` names another one; a cluster that was joined by ``host:port``
    and ``nw.Listen`` have to be named again. No code that the folder names is run. ``audit`` replaces that of the run.
    ``server_threads`` and ``metrics_port`` are not recorded. ``nw.train(..., resume=True)`` is one call that starts,
    resumes or reads a run.

    Gradients after the checkpoint are computed again, those that were in flight or held by the method are lost, and
    none is applied twice. The trace continues with a "resumed" event.
    """
    called = perf_counter()
    require_worker_processes()
    check_started_once()
    progress = checks.flag_or_none(progress, "progress")
    allow_changes = checks.flag(allow_changes, "allow_changes")
    threads, metrics_address = checked_server_threads(server_threads), checked_metrics_address(metrics_port)
    path = Path(checks.path(folder))
    config = read_config(path)
    plan = TrainingPlan.of(config, speeds, engine)
    if audit is not None:
        plan = replace(plan, audit=suitable_audit(audit, problem))
    is_extended = any(limit is not None for limit in (steps, gradients, seconds, target_loss, target))
    if is_extended:
        plan = replace(plan, budget=Budget(steps, gradients, seconds, target_loss, target))
    for name, given in (("method", method), ("update", update), ("output", output)):
        if given is not None and not allow_changes:
            check_same_part(config, name, given, path)
    method = part(config, "method", problem) if method is None else method
    update = part(config, "update", problem) if update is None else update
    output = part(config, "output") if output is None else output
    labels = labels_of(config)
    use_recorded_batch_sizes(config, problem)
    alike = computes_alike(config, problem)
    fingerprint = entry(config, "fingerprint", fingerprint_of)
    _check_size(checked_problem(problem), fingerprint, path)
    run_folder = RunFolder(path, plan.keep_checkpoints, entry(config, RUN, checked_id))
    if run_folder.is_finished():
        _check_goes_on(run_folder, plan.budget if is_extended else None)
    run_folder.lock()
    try:
        with connected_plan(plan) as ready:
            return run_training(
                Training(
                    plan=ready,
                    problem=problem,
                    method=checks.instance(method, Method, "method", "nw.AsynchronousSGD(nw.DelayAdaptive(0.01))"),
                    update=update,
                    output=output,
                    callbacks=callbacks,
                    called=called,
                    progress=progress,
                    folder=path,
                    resumed=run_folder,
                    fingerprint=fingerprint,
                    computes_alike=alike and ready.engine is None and not allow_changes,
                    labels=labels,
                    server_threads=threads,
                    metrics_address=metrics_address,
                )
            )
    finally:
        run_folder.close()


def _check_goes_on(folder: RunFolder, budget: Budget | None) -> None:
    """Refuse to resume a finished run without a budget that goes beyond it."""
    path = folder.path
    if budget is None:
        raise ValueError(f"the run in {path} is finished: read it with nw.load, or give resume a larger budget")
    done, _, _ = read_stats(path / STATS, folder.run)
    if done.diverged:
        raise ValueError(f"the run in {path} diverged, so that it cannot go on: train again with a smaller stepsize")
    for name, used in (("steps", done.steps), ("gradients", done.gradients), ("seconds", done.seconds)):
        wanted = getattr(budget, name)
        if wanted is not None and wanted <= used:
            raise ValueError(f"the run in {path} has {used:g} {name} already: {name}={wanted:g} must be more than that")


def _check_size(problem: Problem, recorded: Any, path: Path) -> None:
    """Refuse a problem of another dimension; its gradient is compared later, by a worker."""
    fingerprint = Fingerprint.read(recorded)
    if fingerprint is None:
        logger.warning("the problem cannot be compared with the one of %s: the run has no fingerprint", path)
    elif fingerprint.size != problem.dimension:
        raise other_problem(path, recorded, f"{problem.dimension} params")
