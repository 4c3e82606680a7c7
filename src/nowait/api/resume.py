"""``nw.resume``: continues a run of ``nw.train`` from its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

from nowait.api.recorded import entry, fingerprint_of, labels_of, part, read_config
from nowait.api.train_arguments import checked_server_threads
from nowait.api.training import Training, connected_plan, run_training
from nowait.api.training_plan import TrainingPlan
from nowait.core import Method, Output, Problem, Update, checks
from nowait.core.problem import checked_problem
from nowait.engines.cluster import RayCluster
from nowait.engines.fingerprint import Fingerprint, other_problem
from nowait.engines.processes.platform import require_worker_processes
from nowait.recording import Run
from nowait.recording.folder import RunFolder
from nowait.speeds import Speeds

logger = logging.getLogger("nowait")


def resume(
    folder: str | Path,
    problem: Problem,
    *,
    method: Method | None = None,
    update: Update | None = None,
    output: Output | None = None,
    speeds: Speeds | None = None,
    callbacks: Iterable[Any] = (),
    engine: str | RayCluster | None = None,
    server_threads: int | None = None,
    progress: bool | None = None,
) -> Run:
    """Continue a run of ``nw.train`` from the last complete checkpoint in its folder.

    Method, update, output and speeds are rebuilt from ``config.json``; parts that are not of this library have to be
    passed again, and so has the problem, which is compared with the one of the run. A run that a signal ended can be
    resumed too. It continues on the engine it had, unless ``engine`` names another one; a cluster that was joined by
    ``host:port`` has to be named again. No code that the folder names is run. ``server_threads`` is not recorded.
    Gradients after the checkpoint are computed again, those that were in flight or held by the method are lost, and
    none is applied twice. The trace continues with a "resumed" event.
    """
    called = perf_counter()
    require_worker_processes()
    threads = checked_server_threads(server_threads)
    path = Path(folder)
    config = read_config(path)
    plan = TrainingPlan.of(config, speeds, engine)
    method = part(config, "method") if method is None else method
    update = part(config, "update") if update is None else update
    output = part(config, "output") if output is None else output
    labels = labels_of(config)
    fingerprint = entry(config, "fingerprint", fingerprint_of)
    _check_size(checked_problem(problem), fingerprint, path)
    run_folder = RunFolder(path, plan.keep_checkpoints)
    if run_folder.is_finished():
        raise ValueError(f"the run in {path} is finished: read it with nw.load")
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
                    labels=labels,
                    server_threads=threads,
                )
            )
    finally:
        run_folder.close()


def _check_size(problem: Problem, recorded: Any, path: Path) -> None:
    """Refuse a problem of another dimension; its gradient is compared later, by a worker."""
    fingerprint = Fingerprint.read(recorded)
    if fingerprint is None:
        logger.warning("the problem cannot be compared with the one of %s: the run has no fingerprint", path)
    elif fingerprint.size != problem.dimension:
        raise other_problem(path, recorded, f"{problem.dimension} params")
