"""Single runs from the command line: simulate, train, resume, replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

import nowait as nw
from nowait.api.recorded import LOCAL_ADDRESSES, cluster_of, entry, part, read_config
from nowait.api.train_arguments import check_slowdown
from nowait.cli.cluster import JITTER, check_new_folder, mixed_cluster
from nowait.cli.consent import confirm_cluster, confirm_problem
from nowait.cli.exits import kept_run, on_interrupt, other_settings_refused, refused_as_options
from nowait.cli.methods import remembered_method
from nowait.cli.own_runs import method_of, stepsize_of
from nowait.cli.problems import BUILT_IN_LOSS, COMMAND, load_problem, remembered
from nowait.cli.records import speeds_of
from nowait.cli.results import open_console, print_json
from nowait.cli.stepping import Stepping, stepping_of
from nowait.cli.texts import slowdown_of, target_of
from nowait.core import checks
from nowait.core.randomness import checked_seed
from nowait.fleet.options import checked_engine
from nowait.fleet.sources.ray_cluster import import_ray


@final
@dataclass(frozen=True)
class RunSettings:
    """The options of a command that makes one run."""

    problem: str | None
    loss: str
    batch_size: int
    method: str
    stepsize: float | None
    update: str | None
    schedule: str | None
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

    @property
    def stepping(self) -> Stepping:
        """The method with its schedule, and the update."""
        stepping = stepping_of(self.method, self.update, self.schedule, self.steps)
        if self.stepsize is None:
            stepping.check_default_stepsize(None, "--stepsize")
        return stepping

    def labels(self, stepsize: float, **more: Any) -> dict[str, Any]:
        """Return the options to store in the run's folder, so that it can be resumed and replayed without them."""
        values = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
        named = {"problem": remembered(self.problem), "method": remembered_method(self.method)}
        return {COMMAND: values | more | named | {"stepsize": stepsize}}


def run_simulate(
    asked: RunSettings, speeds: str | None, straggler: float, callbacks: list[nw.loggers.Logger]
) -> nw.Run:
    """Make a run in virtual time."""
    with refused_as_options():
        budget, stepping = asked.budget, asked.stepping
        check_new_folder(asked.folder)
        model = _mixed(asked.workers, straggler) if speeds is None else speeds_of(speeds, "--speeds")
        problem = _problem(asked, stepping)
    method, size = stepping.method(asked.stepsize, problem, model.num_workers)
    with on_interrupt(lambda: _kept_simulation(asked.folder)):
        try:
            run = nw.simulate(
                problem,
                method,
                model,
                **budget,
                evaluate_every=asked.evaluate_every,
                update=stepping.update,
                seed=asked.seed,
                callbacks=callbacks,
                labels=asked.labels(size, workers=model.num_workers, speeds=speeds, straggler=straggler),
            )
        except nw.Interrupted as error:
            if error.run is not None:
                error.run.save(asked.folder)
                _finished(error.run, asked.folder, asked.as_json)
            raise
        run.save(asked.folder)
        return _finished(run, asked.folder, asked.as_json)


def _kept_simulation(folder: Path) -> str:
    if not (folder / "stats.json").is_file():
        return ""
    return f"The run so far is in {folder}. A simulation cannot be continued: start it again."


def _mixed(workers: int, straggler: float) -> nw.speeds.Speeds:
    return nw.speeds.LogNormal(mixed_cluster(workers, straggler, seed=0).tolist(), sigma=JITTER)


def run_train(
    asked: RunSettings,
    where: Mapping[str, Any],
    slowdown: str | None,
    kept: Mapping[str, Any],
) -> nw.Run:
    """Make a run with real workers; ``where`` and ``kept`` are arguments of ``nw.train``.

    With ``resume`` among them, a run that was started without a stepsize keeps the one that was chosen then.
    """
    with refused_as_options():
        budget, stepping, slower = asked.budget, asked.stepping, slowdown_of(slowdown)
        cluster = checked_engine(where["engine"])
        check_slowdown(slower, where["workers"], None, cluster)
        existing = (
            read_config(asked.folder) if kept.get("resume") and (asked.folder / "config.json").is_file() else None
        )
        if existing is None:
            check_new_folder(asked.folder)
        if isinstance(cluster, nw.RayCluster):
            import_ray()
        problem = _problem(asked, stepping)
    stepsize = stepsize_of(existing) if existing is not None and asked.stepsize is None else asked.stepsize
    method, size = stepping.method(stepsize, problem, asked.workers)
    with on_interrupt(lambda: kept_run(asked.folder)), other_settings_refused():
        run = nw.train(
            problem,
            method,
            **where,
            **budget,
            evaluate_every=asked.evaluate_every,
            update=stepping.update,
            seed=asked.seed,
            slowdown=slower,
            folder=asked.folder,
            **kept,
            labels=asked.labels(size, slowdown=slowdown),
        )
        return _finished(run, asked.folder, asked.as_json)


@final
@dataclass(frozen=True)
class Named:
    """A problem and a method named on the command line; None means as stored in the run."""

    problem: str | None
    loss: str | None
    batch_size: int | None
    method: str | None


def run_resume(
    folder: Path, named: Named, engine: str | nw.RayCluster | nw.Listen | None, budget: dict[str, Any], as_json: bool
) -> nw.Run:
    """Continue a run of ``nowait train``, or of ``nw.train`` if the problem is named."""
    with on_interrupt(lambda: kept_run(folder)), other_settings_refused():
        config = read_config(folder)
        engine = _cluster_of(folder, config) if engine is None else engine
        method = method_of(folder, config, named.method)
        run = nw.resume(folder, _problem_of(folder, config, named), method=method, engine=engine, **budget)
        return _finished(run, folder, as_json)


def run_replay(folder: Path, named: Named, as_json: bool) -> nw.Run:
    """Replay a recorded run and compare the params."""
    recorded = nw.load(folder)
    config = read_config(folder)
    if "method" not in config:
        raise ValueError(f"{folder} does not say which method it ran: replay it with nw.replay")
    own = method_of(folder, config, named.method)
    problem = _problem_of(folder, config, named)
    method = part(config, "method", problem) if own is None else own
    update, output = (part(config, name, problem) for name in ("update", "output"))
    seed = entry(config, "seed", checked_seed)
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


def _problem(asked: RunSettings, stepping: Stepping) -> Any:
    """Return the problem; raise if a stepsize is missing, and print the update."""
    problem = load_problem(asked.problem, asked.loss, asked.batch_size)
    if asked.stepsize is None:
        stepping.check_default_stepsize(problem, "--stepsize")
    open_console(stderr=True).print(stepping.words_on_update(problem), highlight=False)
    return problem


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
    """Print a run; raise ``nw.Interrupted`` if a signal ended it."""
    if as_json:
        history = {"loss": run.history.loss, "step": run.history.step, "metrics": run.history.metrics}
        history |= {"missed_target": run.missed_target}
        print_json({"folder": str(folder), "stats": asdict(run.stats)} | history)
    else:
        _print_run(run, folder)
    if run.stats.interrupted:
        raise nw.Interrupted.of(run)
    return run


def _print_run(run: nw.Run, folder: Path) -> None:
    console = open_console()
    console.print(f"{run}; {run.stats.steps_per_second:,.4g} steps/s, {run.stats.engine}", highlight=False)
    if len(run.trace):
        delay = run.trace.delay
        console.print(
            f"delays: median {np.median(delay):.0f}, mean {delay.mean():.1f}, longest {delay.max()}", highlight=False
        )
    if run.stats.decision:
        console.print(run.stats.decision, highlight=False)
    if run.stats.diagnosis:
        console.print(run.stats.diagnosis, highlight=False)
    if run.stats.advice and not run.stats.interrupted:  # else it is the last line of the command
        console.print(run.stats.advice, style="yellow", highlight=False)
    if run.missed_target:
        console.print(_words_on_missed_target(run), style="yellow", highlight=False)
    console.print(f"Run: {folder}", highlight=False)


def _words_on_missed_target(run: nw.Run) -> str:
    """Return what was missed, and the last values of the loss and of the metrics that have a target."""
    last, names = run.history.rows()[-1], ["loss", *(run.config["budget"]["target"] or {})]
    values = ", ".join(f"{name} {last[name]:.6g}" for name in dict.fromkeys(names) if name in last)
    return f"The target {run.missed_target} was missed: at step {last['step']:,} the run had {values}."
