"""Commands that train, and continue or repeat runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nowait.cli import completion, values
from nowait.cli.exits import WrongOptionError, end
from nowait.cli.new_folders import free_folder
from nowait.cli.options import (
    Address,
    AllowChanges,
    Audit,
    BatchSize,
    CheckpointEvery,
    CheckpointSeconds,
    Config,
    Encrypt,
    Engine,
    EvaluateEvery,
    Folder,
    FolderToTrain,
    Gradients,
    Json,
    KeepBest,
    Log,
    Loss,
    Method,
    MetricsPort,
    ProblemArgument,
    Resume,
    RunFolder,
    Schedule,
    Seconds,
    Seed,
    Slowdown,
    Steps,
    Stepsize,
    StoredAudit,
    StoredLoss,
    StoredMethod,
    Straggler,
    Target,
    TargetLoss,
    Update,
    chosen,
    engine_of,
    listening,
)
from nowait.cli.texts import audit_of, port_of, target_of
from nowait.fleet.options import NAMES as ENGINES


def simulate(  # noqa: PLR0917 (typer makes options of them)
    problem: ProblemArgument = None,
    method: Method = "asynchronous",
    stepsize: Stepsize = None,
    update: Update = None,
    schedule: Schedule = None,
    workers: Annotated[int, typer.Option(help="How many workers; times are lognormal around 1 s.", min=1)] = 8,
    straggler: Straggler = 10.0,
    speeds: Annotated[
        str | None,
        typer.Option(help="Instead: seconds per gradient with commas between them, or a recorded job's file."),
    ] = None,
    steps: Steps = None,
    gradients: Gradients = None,
    seconds: Annotated[
        float | None, typer.Option(help="End after this many virtual seconds.", callback=values.above_zero)
    ] = None,
    target_loss: TargetLoss = None,
    target: Target = None,
    evaluate_every: EvaluateEvery = None,
    log: Log = None,
    loss: Loss = "least-squares",
    batch_size: BatchSize = 16,
    seed: Seed = 0,
    folder: Folder = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Train in virtual time with workers of any speed, and save the run.

    Example: nowait simulate --speeds 1,1,1,10 --method ringmaster:max_delay=8 --stepsize 0.1 --steps 2000
    """
    from nowait.cli.loggers import loggers_of
    from nowait.cli.runs import RunSettings, run_simulate

    folder = free_folder(Path("runs/simulate")) if folder is None else folder
    asked = chosen(RunSettings, locals())
    end(run_simulate(asked, speeds, straggler, loggers_of(log, folder)))


def train(  # noqa: PLR0917 (typer makes options of them)
    problem: ProblemArgument = None,
    method: Method = "asynchronous",
    stepsize: Stepsize = None,
    update: Update = None,
    schedule: Schedule = None,
    workers: Annotated[int, typer.Option(help="How many workers.", min=1)] = 4,
    most_workers: Annotated[
        int | None,
        typer.Option(
            help="With --engine ray: start with --workers and add up to this many.", min=1, show_default="no more"
        ),
    ] = None,
    engine: Engine = "processes",
    address: Address = None,
    steps: Steps = None,
    gradients: Gradients = None,
    seconds: Seconds = None,
    target_loss: TargetLoss = None,
    target: Target = None,
    evaluate_every: EvaluateEvery = None,
    slowdown: Slowdown = None,
    audit: Audit = None,
    checkpoint_every: CheckpointEvery = None,
    checkpoint_seconds: CheckpointSeconds = None,
    keep_best: KeepBest = None,
    metrics_port: MetricsPort = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show the run on a local web page while it runs.")] = False,
    log: Log = None,
    loss: Loss = "least-squares",
    batch_size: BatchSize = 16,
    seed: Seed = 0,
    folder: FolderToTrain = None,
    resume: Resume = False,
    allow_changes: AllowChanges = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Train with real workers, on this machine or on Ray; checkpoints, Ctrl-C and resume as in nw.train.

    Example: nowait train mine.py:problem --workers 8 --steps 10000 --stepsize 0.05 --checkpoint-every 1000
    """
    from nowait.cli.loggers import loggers_of
    from nowait.cli.runs import RunSettings, run_train

    if allow_changes and not resume:
        raise WrongOptionError("--allow-changes is for a run that goes on: give --resume and --folder as well")
    if resume and folder is None:
        raise WrongOptionError("--resume needs --folder, the folder of the run to start or to continue")
    folder = free_folder(Path("runs/train")) if folder is None else folder
    asked = chosen(RunSettings, locals())
    if most_workers is not None and engine != "ray":
        raise WrongOptionError(f"--most-workers is for --engine ray, not for --engine {engine}")
    where = {"engine": engine_of(engine, address), "workers": (workers, most_workers) if most_workers else workers}
    kept = {
        "checkpoint_every": checkpoint_every,
        "checkpoint_seconds": checkpoint_seconds,
        "keep_best": keep_best,
        "metrics_port": port_of(metrics_port),
        "watch": watch,
        "resume": resume,
        "allow_changes": allow_changes,
        "audit": audit_of(audit, otherwise=True),
        "callbacks": loggers_of(log, folder),
    }
    end(run_train(asked, where, slowdown, kept))


def resume(  # noqa: PLR0917 (typer makes options of them)
    folder: RunFolder,
    problem: Annotated[
        str | None, typer.Option(help="As in nowait train.", show_default="as stored in the run")
    ] = None,
    loss: StoredLoss = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per gradient.", min=1, show_default="as stored")] = None,
    method: StoredMethod = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="processes or ray.",
            show_default="as it was",
            callback=values.one_of(*ENGINES),
            autocompletion=completion.names(*ENGINES),
        ),
    ] = None,
    address: Address = None,
    listen: Annotated[
        str | None, typer.Option(help="Let workers connect to HOST:PORT, as in serve.", show_default="not")
    ] = None,
    key_file: Annotated[Path | None, typer.Option(help="With --listen, as in serve.")] = None,
    encrypt: Encrypt = True,
    steps: Annotated[
        int | None, typer.Option(help="Go on to this many steps in all.", min=1, show_default="as stored")
    ] = None,
    gradients: Annotated[
        int | None, typer.Option(help="Go on to this many gradients in all.", min=1, show_default="as stored")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Go on to this many seconds in all.", show_default="as stored", callback=values.above_zero),
    ] = None,
    target_loss: Annotated[
        float | None, typer.Option(help="Go on to this loss.", show_default="as stored", callback=values.finite)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Go on until metrics reach values, as in train.", show_default="as stored", callback=values.target
        ),
    ] = None,
    audit: StoredAudit = None,
    allow_changes: AllowChanges = False,
    metrics_port: MetricsPort = None,
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Continue a run from its last checkpoint, after a crash or Ctrl-C, or beyond its end with a new budget.

    Code that the folder names runs only after you confirm it; --problem and --method name it explicitly.

    Example: nowait resume runs/train-1 --steps 20000
    """
    from nowait.cli.loggers import loggers_of
    from nowait.cli.runs import Named, run_resume

    where: Any = None if engine is None and address is None else engine_of(engine or "ray", address)
    if listen is not None:
        if where is not None:
            raise WrongOptionError("--listen is an engine of its own: leave out --engine and --address")
        where = listening(listen, key_file, encrypt=encrypt)
    budget = {
        "steps": steps,
        "gradients": gradients,
        "seconds": seconds,
        "target_loss": target_loss,
        "target": target_of(target),
        "audit": audit_of(audit),
        "allow_changes": allow_changes,
        "metrics_port": port_of(metrics_port),
        "callbacks": loggers_of(log, folder),
    }
    end(run_resume(folder, Named(problem, loss, batch_size, method), where, budget, as_json))


def replay(
    folder: RunFolder,
    problem: Annotated[
        str | None, typer.Option(help="As in nowait train.", show_default="as stored in the run")
    ] = None,
    loss: StoredLoss = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per gradient.", min=1, show_default="as stored")] = None,
    method: StoredMethod = None,
    as_json: Json = False,
) -> None:
    """Replay a recorded run from its trace and compare the params bit for bit.

    Code that the folder names runs only after you confirm it; --problem and --method name it explicitly.

    Example: nowait replay runs/train-1
    """
    from nowait.cli.runs import Named, run_replay

    run_replay(folder, Named(problem, loss, batch_size, method), as_json)
