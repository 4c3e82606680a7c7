"""``nw.train``: real workers, on this machine, on a Ray cluster or on machines that connect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from nowait.api.parts import checked_kept
from nowait.api.start_or_resume import ExistingRun
from nowait.api.train_arguments import (
    check_slowed_workers,
    check_started_once,
    checked_metrics_address,
    checked_server_threads,
    checked_slowdown,
    checked_speeds,
    checked_start,
    checked_workers,
    suitable_audit,
)
from nowait.api.training import Training, connected_plan, run_training
from nowait.api.training_plan import TrainingPlan, wires_of
from nowait.core import Audit, Method, Output, Problem, Update, checks
from nowait.core.randomness import checked_seed
from nowait.dashboard.shared import watch_in_background
from nowait.engines.budget import Budget
from nowait.fleet.options import Elsewhere, checked_engine
from nowait.fleet.platform import require_worker_processes
from nowait.recording import Run
from nowait.recording.best import checked_keep_best
from nowait.recording.fresh import fresh_folder
from nowait.speeds import Speeds


def train(
    problem: Problem,
    method: Method,
    *,
    workers: int | tuple[int, int] | None = None,
    engine: str | Elsewhere = "processes",
    steps: int | None = None,
    gradients: int | None = None,
    seconds: float | None = None,
    target_loss: float | None = None,
    target: Mapping[str, Any] | None = None,
    evaluate_every: int | None = None,
    update: Update | None = None,
    output: Output | None = None,
    callbacks: Iterable[Any] = (),
    initial: Any = None,
    seed: int = 0,
    slowdown: Mapping[int, float] | None = None,
    speeds: Speeds | None = None,
    start: str = "immediately",
    replace_hung: bool = False,
    max_failures: int = 5,
    audit: bool | float | Audit = True,
    folder: str | Path | None = None,
    resume: bool = False,
    allow_changes: bool = False,
    checkpoint_every: int | None = None,
    checkpoint_seconds: float | None = None,
    keep_checkpoints: int = 3,
    keep_best: str | tuple[str, str] | None = None,
    trace: str = "full",
    server_threads: int | None = None,
    labels: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    metrics_port: int | str | tuple[str, int] | None = None,
    watch: bool = False,
) -> Run:
    """Train with real worker processes: on this machine, by default one for each core, or on a Ray cluster.

    ``engine="ray"``, or ``engine=nw.RayCluster(address="auto", ...)``, lets Ray place the workers, by default as many
    as there is room for; ``workers=(2, 16)`` starts with two and adds workers as room becomes available, up to 16.
    With ``engine=nw.Listen(port=7070, key_file="key")`` workers connect from anywhere, with ``nowait worker``.

    The run ends at whichever of ``steps``, ``gradients``, ``seconds`` (of wall-clock time), ``target_loss`` and
    ``target`` comes first. Losses and metrics are evaluated on snapshots during the run, one at a time.
    ``target={"accuracy": 0.9, "perplexity": ("<=", 20)}`` is reached by an evaluation in which every metric is: at
    least the number, or at most for names that end in "loss", unless a sign is given.

    ``update`` is the step that the server makes, plain SGD by default; ``output`` says which combination of the
    iterates is ``run.params``, the last one by default. ``evaluate_every`` is a number of steps; None spreads
    about a hundred evaluations over the budget. ``callbacks`` are functions of ``control``, called after every step, or
    ``nw.Callback`` objects. ``seed`` determines the samples of every worker.

    ``slowdown={0: 100.0}`` makes worker 0 take 100 times as long; ``speeds`` makes workers take at least as long as a
    speed model says. With ``start="together"`` the clock starts, and workers get their first tickets, when all of them
    have loaded the problem; by default each starts as soon as it is ready.

    A worker that dies is replaced under its number, unless it dies more than ``max_failures`` times without
    delivering a gradient in between. One that takes far longer than before is named in a warning, and replaced with
    ``replace_hung=True``; so is the process that computes losses. The first gradient of every worker process is
    computed again by another worker and compared roughly: ``BadWorkerError`` names a worker with other data,
    another seed or other code. ``audit=0.001`` also compares that share of all gradients, bit for bit where that is
    possible; ``nw.Audit`` has more settings, and ``audit=False`` compares nothing.

    Steps on a million params or more use several threads: by default the cores that the workers leave free, at most 8.
    ``server_threads`` sets their number. It changes no result.

    With a ``folder`` the run is written to disk while it runs, with a checkpoint every ``checkpoint_every`` steps or
    ``checkpoint_seconds``, of which the last ``keep_checkpoints`` and the best are kept: after a crash ``nw.resume``
    continues from there. With ``resume=True`` the same call does all: it starts the run if the folder has none,
    continues it, as ``nw.resume`` does, if it has not finished, and returns it if it has. Other settings than those of
    the first call are refused, except for a larger budget; ``allow_changes=True`` is that of ``nw.resume``.

    ``keep_best="accuracy"``, or ``("perplexity", "min")``, keeps the evaluated params with the best value in
    ``best.safetensors``; its metadata have the step and the value. ``trace="sampled"`` or ``"none"`` keeps less of the
    trace of a very long run, which then cannot be replayed. The first Ctrl-C, SIGTERM or SIGHUP ends the run and
    returns it; a second one kills it. ``initial`` is a vector; for a ``TorchProblem`` also a state dict, a model or a
    ``.safetensors`` file. ``labels`` are stored in ``config.json``. ``progress`` None shows a live view on a terminal.
    ``metrics_port=9100`` shows the numbers of the run to Prometheus, at http://127.0.0.1:9100/metrics;
    ``"0.0.0.0:9100"`` also to other machines. ``watch=True`` opens a page on which you see the run while it runs, and
    prints its address; ``nw.watch`` does that for any run. Without a ``folder`` the run is then written to a new one,
    ``runs/train-N``. The page stays until the process ends, and shows all runs of the process that are watched.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=10, sigma=0.1)
    >>> method = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
    >>> run = nw.train(problem, method, workers=2, steps=500)
    >>> run.stats.steps, run.stats.engine, bool(run.history.loss[-1] < 0.01)
    (500, 'processes', True)
    """
    called = perf_counter()
    require_worker_processes()
    check_started_once()
    progress, watch = checks.flag_or_none(progress, "progress"), checks.flag(watch, "watch")
    folder = None if folder is None else Path(checks.path(folder))
    threads, metrics_address = checked_server_threads(server_threads), checked_metrics_address(metrics_port)
    cluster, kept_labels = checked_engine(engine), checks.labels(labels)
    plan = TrainingPlan(
        workers=checked_workers(workers, speeds, cluster),
        engine=cluster,
        budget=Budget(steps, gradients, seconds, target_loss, target),
        evaluate_every=evaluate_every,
        seed=checked_seed(seed),
        slowdown=checked_slowdown(slowdown),
        speeds=checked_speeds(speeds),
        start=checked_start(start),
        replace_hung=checks.flag(replace_hung, "replace_hung"),
        max_failures=checks.at_least(0, max_failures, "max_failures", "it counts deaths without a gradient"),
        audit=suitable_audit(audit, problem),
        checkpoint_every=checkpoint_every,
        checkpoint_seconds=checkpoint_seconds,
        keep_best=checked_keep_best(keep_best),
        keep_checkpoints=checks.at_least(1, keep_checkpoints, "keep_checkpoints", "one is needed to resume"),
        trace=checked_kept(trace),
        **wires_of(cluster),
    )
    check_slowed_workers(plan.slowdown, plan.most)
    if checks.flag(resume, "resume") and folder is None:
        raise ValueError("resume=True continues the run in a folder: give folder= as well")
    if checks.flag(allow_changes, "allow_changes") and not resume:
        raise ValueError("allow_changes=True is for a run that goes on: give resume=True and folder= as well")
    if watch and folder is None:
        folder = fresh_folder("runs/train")
    if folder is None and not (checkpoint_every is None and checkpoint_seconds is None):
        raise ValueError("checkpoints are written to a folder: give folder= as well")
    if folder is None and keep_best is not None:
        raise ValueError("keep_best writes best.safetensors to the folder of the run: give folder= as well")
    if watch and folder is not None:
        watch_in_background(folder)
    existing = ExistingRun.of(folder, plan if workers else replace(plan, workers=None)) if resume and folder else None
    if existing is not None:
        options: dict[str, Any] = {"speeds": speeds, "callbacks": callbacks, "engine": engine, "progress": progress}
        options |= {"audit": audit, "server_threads": server_threads, "metrics_port": metrics_port}
        options |= {"allow_changes": bool(allow_changes)}
        return existing.run(problem, {"method": method, "update": update, "output": output}, options)
    with connected_plan(plan) as ready:
        check_slowed_workers(ready.slowdown, ready.most)
        return run_training(
            Training(
                plan=ready,
                problem=problem,
                method=method,
                update=update,
                output=output,
                callbacks=callbacks,
                called=called,
                progress=progress,
                folder=folder,
                initial=initial,
                labels=kept_labels,
                server_threads=threads,
                metrics_address=metrics_address,
            )
        )
