"""``nw.train`` and ``nw.resume``: real workers, on this machine or on a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any, final

from nowait.api.parts import checked_kept, make_parts, warn_of_split
from nowait.api.rebuild import rebuild
from nowait.api.recorded import (
    budget_of,
    check_complete,
    count,
    count_or_none,
    engine_of,
    entry,
    fingerprint_of,
    flag,
    labels_of,
    part,
    read_config,
    seconds_or_none,
    slowdown_keys,
)
from nowait.core import Method, Output, Problem, Update, checks
from nowait.core.problem import checked_problem
from nowait.core.randomness import checked_seed
from nowait.core.types import Vector
from nowait.engines.budget import Budget
from nowait.engines.cluster import RayCluster, checked_engine, connected
from nowait.engines.fingerprint import Fingerprint, Identification, other_problem
from nowait.engines.keeper import Keeper, checkpoint_of
from nowait.engines.processes import ProcessOptions, SharedSlots
from nowait.engines.processes import train as run_processes
from nowait.engines.processes.platform import require_ray_hosts, require_worker_processes
from nowait.engines.session import Parts
from nowait.recording import HistoryRecorder, Run, describe
from nowait.recording.folder import RunFolder
from nowait.speeds import Adversary, Speeds

logger = logging.getLogger("nowait")

MOST_WORKERS = 2**22
"""The largest number of process ids that Linux allows."""


def train(
    problem: Problem,
    method: Method,
    *,
    workers: int | tuple[int, int] | None = None,
    engine: str | RayCluster = "processes",
    steps: int | None = None,
    gradients: int | None = None,
    seconds: float | None = None,
    target_loss: float | None = None,
    evaluate_every: int | None = None,
    update: Update | None = None,
    output: Output | None = None,
    callbacks: Iterable[Any] = (),
    initial: Any = None,
    seed: int = 0,
    slowdown: Mapping[int, float] | None = None,
    speeds: Speeds | None = None,
    replace_hung: bool = False,
    max_failures: int = 5,
    folder: str | Path | None = None,
    checkpoint_every: int | None = None,
    checkpoint_seconds: float | None = None,
    keep_checkpoints: int = 3,
    trace: str = "full",
    labels: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Run:
    """Train with real worker processes: on this machine, by default one for each core, or on a Ray cluster.

    ``engine="ray"``, or ``engine=nw.RayCluster(address="auto", ...)``, has Ray place the workers, by default as many as
    there is room for; ``workers=(2, 16)`` begins with two and goes on with as many as there is room for, up to 16.

    The run ends at whichever of ``steps``, ``gradients``, ``seconds`` and ``target_loss`` comes first. Losses are
    evaluated beside the run, on snapshots; one that is due while another is being computed waits for it.

    ``slowdown={0: 100.0}`` makes worker 0 take 100 times as long; ``speeds`` makes workers take at least as long as a
    speed model says. A worker that dies is replaced under its number, unless it dies more than ``max_failures`` times
    without delivering a gradient in between. One that takes far longer than it used to is named in a warning, and
    replaced with ``replace_hung=True``.

    With a ``folder`` the run is written to disk as it goes on, with a checkpoint every ``checkpoint_every`` steps or
    ``checkpoint_seconds``, of which the last ``keep_checkpoints`` and the best stay: after a crash ``nw.resume`` goes
    on from there. ``trace="sampled"`` or ``"none"`` keeps less of the trace of a very long run, which then cannot be
    replayed.
    The first Ctrl-C, SIGTERM or SIGHUP ends the run well and returns it; a second one kills it. ``labels`` are kept in
    ``config.json``, for whatever you want to remember. ``progress`` None shows a live view on a terminal.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=10, sigma=0.1)
    >>> run = nw.train(problem, nw.AsynchronousSGD(nw.DelayAdaptive(0.1)), workers=2, steps=500)
    >>> run.stats.steps, run.stats.engine, bool(run.history.loss[-1] < 0.01)
    (500, 'processes', True)
    """
    called = perf_counter()
    require_worker_processes()
    cluster = checked_engine(engine)
    plan = Plan(
        workers=_checked_workers(workers, speeds, cluster),
        engine=cluster,
        budget=Budget(steps, gradients, seconds, target_loss),
        evaluate_every=evaluate_every,
        seed=checked_seed(seed),
        slowdown=_checked_slowdown(slowdown),
        speeds=_checked_speeds(speeds),
        replace_hung=bool(replace_hung),
        max_failures=checks.at_least(0, max_failures, "max_failures", "it counts deaths without a gradient"),
        checkpoint_every=checkpoint_every,
        checkpoint_seconds=checkpoint_seconds,
        keep_checkpoints=checks.at_least(1, keep_checkpoints, "keep_checkpoints", "one is needed to resume"),
        trace=checked_kept(trace),
    )
    check_slowed_workers(plan.slowdown, plan.most)
    if folder is None and not (checkpoint_every is None and checkpoint_seconds is None):
        raise ValueError("checkpoints need a place: give folder= as well")
    with _placed(plan) as placed:
        check_slowed_workers(placed.slowdown, placed.most)
        return _train(
            placed,
            problem,
            method=method,
            update=update,
            output=output,
            callbacks=callbacks,
            initial=initial,
            folder=folder,
            resumed=None,
            fingerprint=None,
            labels=dict(labels or {}),
            called=called,
            progress=progress,
        )


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
    progress: bool | None = None,
) -> Run:
    """Go on with a run of ``nw.train`` from the last complete checkpoint in its folder.

    Method, update, output and speeds are made again from ``config.json``; one of your own has to be passed again, and
    so has the problem, which is compared with the one of the run. A run that a signal ended can be resumed too.
    It goes on with the engine it had, unless ``engine`` names another one or another cluster; a cluster that was joined
    by ``host:port`` has to be named again. No code that the folder names is run.
    Gradients after the checkpoint are computed anew, those that were in flight or held by the method are lost, none is
    applied twice. The trace goes on with a "resumed" event.
    """
    called = perf_counter()
    require_worker_processes()
    path = Path(folder)
    config = read_config(path)
    plan = Plan.of(config, speeds, engine)
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
        with _placed(plan) as placed:
            return _train(
                placed,
                problem,
                method=checks.instance(method, Method, "method", "nw.AsynchronousSGD(nw.DelayAdaptive(0.01))"),
                update=update,
                output=output,
                callbacks=callbacks,
                initial=None,
                folder=path,
                resumed=run_folder,
                fingerprint=fingerprint,
                labels=labels,
                called=called,
                progress=progress,
            )
    finally:
        run_folder.close()


@final
@dataclass(frozen=True)
class Plan:
    """All that ``nw.resume`` needs to know of a run beside its parts."""

    workers: int | tuple[int, int] | None
    """Or the fewest and the most; or as many as there is room for."""
    engine: RayCluster | None
    """None: processes on this machine."""
    budget: Budget
    evaluate_every: int | None
    seed: int
    slowdown: dict[int, float]
    speeds: Speeds | None
    replace_hung: bool
    max_failures: int
    checkpoint_every: int | None
    checkpoint_seconds: float | None
    keep_checkpoints: int
    trace: str

    def __post_init__(self) -> None:
        if self.checkpoint_every is not None:
            checks.at_least(1, self.checkpoint_every, "checkpoint_every", "it counts the steps between two of them")
        if self.checkpoint_seconds is not None:
            checks.positive(self.checkpoint_seconds, "checkpoint_seconds", "it is the time between two of them")

    @property
    def fewest(self) -> int:
        """So many workers have to be there at the start."""
        return self.workers[0] if isinstance(self.workers, tuple) else self.workers or 1

    @property
    def most(self) -> int | None:
        """So many workers are wanted in the end; None if that depends on the room."""
        return self.workers[1] if isinstance(self.workers, tuple) else self.workers

    @classmethod
    def of(cls, config: dict[str, Any], speeds: Speeds | None, engine: str | RayCluster | None) -> Plan:
        """The plan that is written in a ``config.json``."""
        config = {"engine": None, "trace": "full"} | config
        needed = [*(field.name for field in fields(cls)), "method", "update", "output", "fingerprint"]
        check_complete(config, needed)
        cluster = entry(config, "engine", engine_of) if engine is None else checked_engine(engine)
        workers = entry(config, "workers", lambda value: _workers_of(value, cluster))
        values = {name: entry(config, name, check) for name, check in _CHECKS.items()}
        plan = cls(
            workers=workers,
            engine=cluster,
            speeds=entry(config, "speeds", _speeds_of) if speeds is None else _checked_speeds(speeds),
            **values,
        )
        entry(config, "slowdown", lambda _: check_slowed_workers(plan.slowdown, plan.most))
        return plan


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "budget": budget_of,
    "evaluate_every": count_or_none,
    "seed": checked_seed,
    "slowdown": lambda value: _checked_slowdown(slowdown_keys(value)),
    "replace_hung": flag,
    "max_failures": count(0),
    "checkpoint_every": count_or_none,
    "checkpoint_seconds": seconds_or_none,
    "keep_checkpoints": count(1),
    "trace": checked_kept,
}
"""Of the entries of ``config.json`` that become fields of a plan as they are."""


@contextlib.contextmanager
def _placed(plan: Plan) -> Iterator[Plan]:
    """The plan with a number of workers, on this machine or connected to Ray."""
    if plan.engine is None:
        yield plan
        return
    require_ray_hosts()
    with connected(plan.engine, plan.most) as room:
        yield replace(plan, workers=max(1, room)) if plan.workers is None else plan


def _train(
    plan: Plan,
    problem: Problem,
    *,
    method: Method,
    update: Update | None,
    output: Output | None,
    callbacks: Iterable[Any],
    initial: Any,
    folder: str | Path | None,
    resumed: RunFolder | None,
    fingerprint: Any,
    labels: dict[str, Any],
    called: float,
    progress: bool | None,
) -> Run:
    if resumed is None:
        warn_of_split(problem, plan.most or 1)
    checkpoint = None if resumed is None else resumed.latest()
    slots: list[SharedSlots] = []

    def share(params: Vector) -> Callable[[], Vector]:
        slots.append(SharedSlots(params.size, params.dtype))
        return slots[0].allocate

    parts = make_parts(
        problem,
        method,
        list(range(plan.fewest)) if checkpoint is None else checkpoint.state.workers,
        plan.budget,
        evaluate_every=plan.evaluate_every,
        update=update,
        output=output,
        callbacks=callbacks,
        initial=initial if checkpoint is None else checkpoint.state.params,
        seed=plan.seed,
        resumed=checkpoint is not None,
        trace=plan.trace,
        share=share,
    )
    parts.checkpoint, parts.called = checkpoint, called
    parts.config |= {field.name: describe(getattr(plan, field.name)) for field in fields(plan)}
    parts.config["labels"] = describe(labels)
    try:
        if folder is not None:
            parts.keeper = _keeper(plan, parts, folder, resumed, fingerprint)
        return _run(plan, parts, slots[0], progress)
    finally:
        slots[0].close()
        if parts.keeper is not None:
            parts.keeper.close()


def _run(plan: Plan, parts: Parts, points: SharedSlots, progress: bool | None) -> Run:
    """With the engine of the plan."""
    log = None if parts.keeper is None else parts.keeper.folder.path / "workers.log"
    options = ProcessOptions(
        slowdown=plan.slowdown,
        speeds=plan.speeds,
        replace_hung=plan.replace_hung,
        max_failures=plan.max_failures,
        log=log,
        most_workers=plan.most or 0,
    )
    if plan.engine is None:
        return run_processes(parts, points, options, plan.seed, progress)
    from nowait.engines.cluster.engine import train as run_cluster

    fewest = plan.fewest if parts.checkpoint is None else max(1, min(plan.fewest, len(parts.checkpoint.wanted)))
    return run_cluster(plan.engine, fewest, parts, points, options, seed=plan.seed, progress=progress)


def _keeper(plan: Plan, parts: Parts, folder: str | Path, resumed: RunFolder | None, recorded: Any) -> Keeper:
    """Make the ``Keeper`` of a run, and set up recording or comparing of the fingerprint (None: not known yet)."""
    config = parts.config
    config["fingerprint"] = recorded
    run_folder = resumed or _new_folder(plan, parts, folder)

    def keep(fingerprint: dict[str, Any]) -> None:
        config["fingerprint"] = fingerprint
        run_folder.write_config(config)

    parts.identification = Identification(parts.problem, recorded, str(run_folder.path), keep)
    return Keeper(run_folder, plan.checkpoint_every or math.inf, plan.checkpoint_seconds or math.inf)


def _new_folder(plan: Plan, parts: Parts, folder: str | Path) -> RunFolder:
    """Create the folder, with a checkpoint of the start in it."""
    state, wanted = parts.server.initial_state(), list(range(plan.most or plan.fewest))
    return RunFolder.create(
        folder,
        parts.config,
        plan.keep_checkpoints,
        parts.recorder,
        first=lambda recorder: checkpoint_of(state, recorder, wanted, HistoryRecorder()),
    )


def _check_size(problem: Problem, recorded: Any, path: Path) -> None:
    """Refuse a problem of another dimension; its gradient is compared later, by a worker."""
    fingerprint = Fingerprint.read(recorded)
    if fingerprint is None:
        logger.warning("the problem cannot be compared with the one of %s: the run has no fingerprint", path)
    elif fingerprint.size != problem.dimension:
        raise other_problem(path, recorded, f"{problem.dimension} params")


def _checked_workers(workers: Any, speeds: Speeds | None, cluster: RayCluster | None) -> int | tuple[int, int] | None:
    if workers is None:
        if isinstance(speeds, Speeds):
            return speeds.num_workers
        return None if cluster is not None else os.cpu_count() or 1
    if not isinstance(workers, (tuple, list)):
        return _checked_number(1, workers, "workers", "somebody has to compute gradients")
    if cluster is None:
        raise ValueError(
            f"workers={workers!r}: a fewest and a most are for engine='ray'; on one machine, give a number"
        )
    if len(workers) != 2:
        raise ValueError(f"workers must be a number, or the fewest and the most, as in (2, 16), got {workers!r}")
    fewest = _checked_number(1, workers[0], "the fewest workers", "somebody has to compute gradients")
    return fewest, _checked_number(fewest, workers[1], "the most workers", "it is the second of workers=(fewest, most)")


def _checked_number(least: int, workers: Any, name: str, why: str) -> int:
    number = checks.at_least(least, workers, name, why)
    if number > MOST_WORKERS:
        raise ValueError(f"{name} must be at most {MOST_WORKERS:,}, got {number:,}: no machine runs so many processes")
    return number


def _workers_of(description: Any, cluster: RayCluster | None) -> int | tuple[int, int] | None:
    """Those written in a ``config.json``. A run of a fewest and a most that leaves its cluster wants the most."""
    if cluster is None and isinstance(description, list):
        description = description[-1]
    return _checked_workers(description, None, cluster)


def _speeds_of(description: Any) -> Speeds | None:
    """Those written in a ``config.json``."""
    return _checked_speeds(rebuild(description, "speeds"))


def _checked_speeds(speeds: Speeds | None) -> Speeds | None:
    if speeds is None:
        return None
    checks.instance(speeds, Speeds, "speeds", "nw.speeds.Fixed([0.01, 0.01, 0.1])")
    if isinstance(speeds, Adversary):
        raise TypeError("real workers cannot follow Adversary, which decides the order of arrivals itself")
    return speeds


def _checked_slowdown(slowdown: Mapping[int, float] | None) -> dict[int, float]:
    if slowdown is None:
        return {}
    if not isinstance(slowdown, Mapping):
        raise TypeError(f"slowdown must say which worker is slower by what, as in {{0: 100.0}}, got {slowdown!r}")
    checked = {}
    for worker, factor in slowdown.items():
        number = checks.at_least(0, worker, "a worker in slowdown", "workers are numbered from 0")
        checked[number] = checks.positive(factor, f"slowdown[{number}]", "it multiplies compute times")
        if checked[number] < 1:
            raise ValueError(f"slowdown[{number}] must be at least 1, got {factor!r}: no worker can be made faster")
    return checked


def check_slowed_workers(slowdown: Mapping[int, float], most: int | None) -> None:
    """Raise if a worker that is to be slowed will not exist; how many there will be may not be known yet (None)."""
    unknown = [] if most is None else sorted(worker for worker in slowdown if worker >= most)
    if unknown:
        those = "the only worker is 0" if most == 1 else f"the workers are 0 to {(most or 1) - 1}"
        raise ValueError(f"slowdown names worker {', '.join(map(str, unknown))}, but {those}")
