"""Single runs from the command line: simulate, train, resume, replay, report."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

import nowait as nw
from nowait.api.recorded import LOCAL_ADDRESSES, cluster_of, entry, part, read_config
from nowait.cli.cluster import mixed_cluster
from nowait.cli.consent import confirm_cluster, confirm_problem
from nowait.cli.methods import default_stepsize, parse_method
from nowait.cli.problems import BUILT_IN_LOSS, COMMAND, load_problem, remembered, unit_of
from nowait.cli.records import speeds_of
from nowait.cli.results import open_console, print_json
from nowait.core import Method, checks
from nowait.core.randomness import checked_seed
from nowait.reports.groups import grouped


@final
@dataclass(frozen=True)
class RunSettings:
    """The options of a command that makes one run."""

    problem: str | None
    loss: str
    batch_size: int
    method: str
    stepsize: float | None
    workers: int
    steps: int | None
    gradients: int | None
    seconds: float | None
    target_loss: float | None
    target: str | None
    evaluate_every: int | None
    seed: int
    folder: Path
    as_json: bool
    config: Path | None = None

    @property
    def budget(self) -> dict[str, Any]:
        """The options that end the run; an error if there is none."""
        budget = {name: getattr(self, name) for name in ("steps", "gradients", "seconds", "target_loss")}
        budget["target"] = target_of(self.target)
        if all(value is None for value in budget.values()):
            raise ValueError("say when the run ends: --steps, --gradients, --seconds, --target-loss or --target")
        return budget

    def labels(self, method: Method, **more: Any) -> dict[str, Any]:
        """Return the options to store in the run's folder, so that it can be resumed and replayed without them."""
        values = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
        rule = getattr(method, "stepsize", None)
        size = getattr(rule, "gamma", self.stepsize)
        return {COMMAND: values | more | {"problem": remembered(self.problem), "stepsize": size}}


def run_simulate(
    asked: RunSettings, speeds: str | None, straggler: float, callbacks: list[nw.loggers.Logger]
) -> nw.Run:
    """Make a run in virtual time."""
    budget = asked.budget
    if asked.folder.exists():
        raise FileExistsError(f"{asked.folder} exists: choose another --folder")
    problem = load_problem(asked.problem, asked.loss, asked.batch_size)
    model = _mixed(asked.workers, straggler) if speeds is None else speeds_of(speeds, "--speeds")
    method = _method(asked, problem, model.num_workers)
    try:
        run = nw.simulate(
            problem,
            method,
            model,
            **budget,
            evaluate_every=asked.evaluate_every,
            seed=asked.seed,
            callbacks=callbacks,
            labels=asked.labels(method, workers=model.num_workers, speeds=speeds, straggler=straggler),
        )
    except nw.Interrupted as error:
        if error.run is not None:
            error.run.save(asked.folder)
            _finished(error.run, asked.folder, asked.as_json)
        raise
    run.save(asked.folder)
    return _finished(run, asked.folder, asked.as_json)


def _mixed(workers: int, straggler: float) -> nw.speeds.Speeds:
    return nw.speeds.LogNormal(mixed_cluster(workers, straggler, seed=0).tolist(), sigma=0.2)


def run_train(
    asked: RunSettings,
    where: Mapping[str, Any],
    slowdown: str | None,
    kept: Mapping[str, Any],
) -> nw.Run:
    """Make a run with real workers; ``where`` and ``kept`` are arguments of ``nw.train``."""
    budget, slower = asked.budget, _slowdown(slowdown)
    problem = load_problem(asked.problem, asked.loss, asked.batch_size)
    method = _method(asked, problem, asked.workers)
    run = nw.train(
        problem,
        method,
        **where,
        **budget,
        evaluate_every=asked.evaluate_every,
        seed=asked.seed,
        slowdown=slower,
        folder=asked.folder,
        **kept,
        labels=asked.labels(method, slowdown=slowdown),
    )
    return _finished(run, asked.folder, asked.as_json)


@final
@dataclass(frozen=True)
class Named:
    """A problem named on the command line; None means as stored in the run."""

    problem: str | None
    loss: str | None
    batch_size: int | None


def run_resume(
    folder: Path, named: Named, engine: str | nw.RayCluster | nw.Listen | None, budget: dict[str, Any], as_json: bool
) -> nw.Run:
    """Continue a run of ``nowait train``, or of ``nw.train`` if the problem is named."""
    config = read_config(folder)
    engine = _cluster_of(folder, config) if engine is None else engine
    return _finished(nw.resume(folder, _problem_of(folder, config, named), engine=engine, **budget), folder, as_json)


def run_replay(folder: Path, named: Named, as_json: bool) -> nw.Run:
    """Replay a recorded run and compare the params."""
    recorded = nw.load(folder)
    config = read_config(folder)
    if "method" not in config:
        raise ValueError(f"{folder} does not say which method it ran: replay it with nw.replay")
    method, update, output = (part(config, name) for name in ("method", "update", "output"))
    seed = entry(config, "seed", checked_seed)
    problem = _problem_of(folder, config, named)
    replayed = nw.replay(recorded.trace, problem, method, update=update, output=output, seed=seed)
    same = bool(np.array_equal(replayed.last, recorded.last))
    if as_json:
        print_json({"same": same, "stats": asdict(replayed.stats)})
    else:
        words = "the same params, bit for bit" if same else "other params than were recorded"
        open_console().print(f"{len(recorded.trace):,} arrivals replayed: {words}.", highlight=False)
    if not same:
        raise ValueError(f"the replay of {folder} ended at other params: was it made on another kind of machine?")
    return replayed


def run_report(folders: list[Path], target: Path, minimum: float) -> Path:
    """Write one report of all the runs in these folders; runs that differ only in their seed form a group."""
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder: give --out a file")
    inside = [one for folder in folders for one in _runs_inside(folder)]
    runs = grouped((one.name, nw.load(one)) for one in dict.fromkeys(inside))
    path = nw.report(runs, target, minimum=minimum)
    open_console().print(f"Report: {path}", highlight=False)
    return path


def _runs_inside(folder: Path) -> list[Path]:
    if (folder / "stats.json").is_file():
        return [folder]
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    inside = sorted(path.parent for path in (*folder.glob("*/stats.json"), *folder.glob("*/*/stats.json")))
    if not inside:
        raise FileNotFoundError(f"{folder} is neither a finished run nor a folder of finished runs")
    return inside


def _method(asked: RunSettings, problem: Any, workers: int) -> Method:
    make = parse_method(asked.method)
    if asked.stepsize is not None:
        return make(asked.stepsize)
    size, text = default_stepsize(make(1.0), unit_of(problem), workers)
    open_console(stderr=True).print(f"No --stepsize given: using {size:.3g}, half of {text}.", highlight=False)
    return make(size)


def _slowdown(text: str | None) -> Mapping[int, float] | None:
    """Parse ``0=100,3=2``: worker 0 a hundred times slower, worker 3 twice."""
    if text is None:
        return None
    try:
        return {int(worker): float(factor) for worker, factor in (item.split("=") for item in text.split(","))}
    except ValueError:
        raise ValueError(f"--slowdown must be written like 0=100,3=2 (worker=factor), got {text!r}") from None


def target_of(text: str | None) -> dict[str, Any] | None:
    """Parse ``accuracy=0.9,perplexity<=20``; without a direction it is that of ``nw.train``."""
    if text is None:
        return None
    target: dict[str, Any] = {}
    for item in text.split(","):
        found = re.fullmatch(r"\s*([^<>=]+?)\s*(<=|>=|=)\s*([^<>=]+)", item)
        try:
            name, sign, value = found.groups()  # type: ignore[union-attr]
            target[name] = float(value) if sign == "=" else (sign, float(value))
        except (AttributeError, ValueError):
            raise ValueError(f"--target must be written like accuracy=0.9,perplexity<=20, got {text!r}") from None
    return target


def _problem_of(folder: Path, config: dict[str, Any], named: Named) -> Any:
    """Return the problem named, or the one stored in the run; code named by the folder runs only if confirmed."""
    command = entry({"labels": {}} | config, "labels", _command_of)
    if command is None and named.problem is None:
        raise ValueError(f"{folder} was not made by a command, so its problem is not known: give --problem")
    problem, loss, batch_size = (None, BUILT_IN_LOSS, 1) if command is None else command
    if named.problem is None and problem is not None:
        confirm_problem(folder, problem)
    return load_problem(
        problem if named.problem is None else named.problem,
        loss if named.loss is None else named.loss,
        batch_size if named.batch_size is None else named.batch_size,
    )


def _command_of(labels: Any) -> tuple[str | None, str, int] | None:
    """Return problem, loss and batch size that a command stored in the labels; None if no command did."""
    asked = labels.get(COMMAND) if isinstance(labels, dict) else None
    if not isinstance(asked, dict) or not asked:
        return None
    problem, loss, size = asked.get("problem"), asked.get("loss", BUILT_IN_LOSS), asked.get("batch_size", 1)
    if not isinstance(problem, str | None) or not isinstance(loss, str):
        raise ValueError(f"problem and loss must be text, got {problem!r:.80} and {loss!r:.80}")
    return problem, loss, checks.at_least(1, size, "batch_size", "a gradient needs a row")


def _cluster_of(folder: Path, config: dict[str, Any]) -> nw.RayCluster | None:
    """Return the run's cluster if it is on other machines and the user confirms it; None keeps the run's engine."""
    cluster = entry({"engine": None} | config, "engine", cluster_of)
    if cluster is None or cluster.address in LOCAL_ADDRESSES:
        return None
    confirm_cluster(folder, str(cluster.address))
    return cluster


def _finished(run: nw.Run, folder: Path, as_json: bool) -> nw.Run:
    if as_json:
        history = {"loss": run.history.loss, "step": run.history.step, "metrics": run.history.metrics}
        print_json({"folder": str(folder), "stats": asdict(run.stats)} | history)
        return run
    console = open_console()
    console.print(f"{run}; {run.stats.steps_per_second:,.4g} steps/s, {run.stats.engine}", highlight=False)
    if len(run.trace):
        delay = run.trace.delay
        console.print(
            f"delays: median {np.median(delay):.0f}, mean {delay.mean():.1f}, longest {delay.max()}", highlight=False
        )
    if run.stats.diagnosis:
        console.print(run.stats.diagnosis, highlight=False)
    if run.stats.advice:
        console.print(run.stats.advice, style="yellow", highlight=False)
    resumable = run.stats.interrupted and run.stats.engine in ("processes", "ray", "listen")
    ending = f"; continue with: nowait resume {shlex.quote(str(folder))}" if resumable else ""
    console.print(f"Run: {folder}{ending}", highlight=False)
    return run
