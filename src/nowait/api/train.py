"""``nw.train`` and ``nw.resume``: real workers, on this machine or on a Ray cluster."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

from nowait.api.parts import make_parts, warn_of_split
from nowait.api.rebuild import rebuild
from nowait.core import Method, Output, Update, checks, sampler
from nowait.core.problem import checked_problem, initial_params
from nowait.core.randomness import checked_seed
from nowait.core.types import Vector, norm
from nowait.engines.budget import Budget
from nowait.engines.cluster import RayCluster, checked_engine, connected
from nowait.engines.keeper import Keeper
from nowait.engines.processes import ProcessOptions, SharedSlots
from nowait.engines.processes import train as run_processes
from nowait.engines.processes.platform import require_ray_hosts, require_worker_processes
from nowait.engines.session import Parts
from nowait.recording import Run, describe
from nowait.recording.folder import RunFolder
from nowait.recording.run import write_json
from nowait.speeds import Adversary, Speeds


def train(
    problem: Any,
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
    ``checkpoint_seconds``, of which the last ``keep_checkpoints`` stay: after a crash ``nw.resume`` goes on from there.
    The first Ctrl-C or SIGTERM ends the run well and returns it; a second one kills it. ``labels`` are kept in
    ``config.json``, for whatever you want to remember. ``progress`` None shows a live view on a terminal.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=10, sigma=0.1)
    >>> run = nw.train(problem, nw.AsynchronousSGD(nw.DelayAdaptive(0.1)), workers=2, steps=500)
    >>> run.stats.steps, run.stats.way, bool(run.history.loss[-1] < 0.01)
    (500, 'processes', True)
    """
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
    )
    if folder is None and not (checkpoint_every is None and checkpoint_seconds is None):
        raise ValueError("checkpoints need a place: give folder= as well")
    with _placed(plan) as placed:
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
            labels=dict(labels or {}),
            progress=progress,
        )


def resume(
    folder: str | Path,
    problem: Any,
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
    It goes on with the engine it had, unless ``engine`` names another one or another cluster.
    Gradients after the checkpoint are computed anew, those that were in flight or held by the method are lost, none is
    applied twice. The trace goes on with a "resumed" event.
    """
    require_worker_processes()
    path = Path(folder)
    config_path = path / "config.json"
    if not config_path.is_file():
        raise FileNotFoundError(f"{path} is not the folder of a run: it has no config.json")
    config = json.loads(config_path.read_text(encoding="utf-8"))
    plan = Plan.of(config, speeds, engine)
    _check_fingerprint(problem, config, path)
    run_folder = RunFolder(path, plan.keep_checkpoints)
    if run_folder.is_finished():
        raise ValueError(f"the run in {path} is finished: read it with nw.load")
    method = rebuild(config["method"], "method") if method is None else method
    update = rebuild(config["update"], "update") if update is None else update
    output = rebuild(config["output"], "output") if output is None else output
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
                labels=config.get("labels", {}),
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
        config = {"engine": None} | config
        needed = [*(field.name for field in fields(cls)), "method", "update", "output", "fingerprint"]
        missing = [name for name in needed if name not in config]
        if missing:
            raise ValueError(f"config.json has no {', no '.join(missing)}: the run was not made by nw.train")
        values = {field.name: config[field.name] for field in fields(cls)}
        values["engine"] = _engine_of(config["engine"]) if engine is None else checked_engine(engine)
        try:
            values["budget"] = Budget(**{name: value for name, value in config["budget"].items() if name != "type"})
            values["slowdown"] = _checked_slowdown({int(key): factor for key, factor in config["slowdown"].items()})
            values["workers"] = _workers_of(config["workers"], values["engine"])
            values["seed"] = checked_seed(config["seed"])
            checks.at_least(1, config["keep_checkpoints"], "keep_checkpoints", "one is needed to resume")
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"config.json was changed: {error}") from error
        values["speeds"] = rebuild(config["speeds"], "speeds") if speeds is None else _checked_speeds(speeds)
        return cls(**values)


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
    problem: Any,
    *,
    method: Method,
    update: Update | None,
    output: Output | None,
    callbacks: Iterable[Any],
    initial: Any,
    folder: str | Path | None,
    resumed: RunFolder | None,
    labels: dict[str, Any],
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
        share=share,
    )
    parts.checkpoint = checkpoint
    parts.config |= {field.name: describe(getattr(plan, field.name)) for field in fields(plan)}
    parts.config["labels"] = describe(labels)
    try:
        if folder is not None:
            parts.keeper = _keeper(plan, problem, parts, folder, resumed)
        return _run(plan, parts, slots[0], progress)
    finally:
        slots[0].close()
        if parts.keeper is not None:
            parts.keeper.folder.leave()


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


def _keeper(plan: Plan, problem: Any, parts: Parts, folder: str | Path, resumed: RunFolder | None) -> Keeper:
    parts.config["fingerprint"] = _fingerprint(problem)
    run_folder = resumed or RunFolder.create(folder, parts.config, plan.keep_checkpoints)
    if resumed is not None and parts.checkpoint is not None:
        resumed.rewind(parts.checkpoint)
        write_json(resumed.path / "config.json", parts.config)  # it may go on with another engine
    return Keeper(run_folder, plan.checkpoint_every or math.inf, plan.checkpoint_seconds or math.inf)


def _fingerprint(problem: Any) -> dict[str, Any]:
    """By what a problem is known again: its shape, and the norm of one gradient."""
    point = initial_params(problem)
    point.flags.writeable = False
    gradient = problem.gradient(point, sampler(0).sample(0, 0))
    return {"problem": repr(problem)[:200], "params": [point.size, str(point.dtype)], "gradient_norm": norm(gradient)}


def _check_fingerprint(problem: Any, config: dict[str, Any], path: Path) -> None:
    recorded, given = config["fingerprint"], _fingerprint(checked_problem(problem))
    close = math.isclose(recorded["gradient_norm"], given["gradient_norm"], rel_tol=1e-6, abs_tol=1e-300)
    if recorded["params"] != given["params"] or not close:
        raise ValueError(
            f"{path} is a run of another problem: that was {recorded['problem']} with params {recorded['params']} and "
            f"a first gradient of norm {recorded['gradient_norm']:.9g}; this one has params {given['params']} and "
            f"{given['gradient_norm']:.9g}"
        )


def _checked_workers(workers: Any, speeds: Speeds | None, cluster: RayCluster | None) -> int | tuple[int, int] | None:
    if workers is None:
        if isinstance(speeds, Speeds):
            return speeds.num_workers
        return None if cluster is not None else os.cpu_count() or 1
    if not isinstance(workers, (tuple, list)):
        return checks.at_least(1, workers, "workers", "somebody has to compute gradients")
    if cluster is None:
        raise ValueError(
            f"workers={workers!r}: a fewest and a most are for engine='ray'; on one machine, give a number"
        )
    if len(workers) != 2:
        raise ValueError(f"workers must be a number, or the fewest and the most, as in (2, 16), got {workers!r}")
    fewest = checks.at_least(1, workers[0], "the fewest workers", "somebody has to compute gradients")
    return fewest, checks.at_least(fewest, workers[1], "the most workers", "it is the second of workers=(fewest, most)")


def _workers_of(description: Any, cluster: RayCluster | None) -> int | tuple[int, int] | None:
    """Those written in a ``config.json``. A run of a fewest and a most that leaves its cluster wants the most."""
    if cluster is None and isinstance(description, list):
        description = description[-1]
    return _checked_workers(description, None, cluster)


def _engine_of(description: Any) -> RayCluster | None:
    """The cluster that is written in a ``config.json``."""
    if description is None:
        return None
    values = {name: value for name, value in description.items() if name != "type"}
    if values.pop("has_runtime_env", False):
        raise ValueError("the run had a runtime_env, which config.json does not hold: pass engine= again")
    return RayCluster(**values)


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
