"""Commands that take many runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nowait.cli import completion, values
from nowait.cli.exits import DIVERGED
from nowait.cli.new_folders import free_folder
from nowait.cli.options import (
    DEVICES,
    Address,
    BatchSize,
    Config,
    Engine,
    FirstSeed,
    Gradients,
    Json,
    Log,
    Loss,
    Method,
    Problem,
    ProblemArgument,
    Schedule,
    Seed,
    Steps,
    Straggler,
    Target,
    TargetLoss,
    Update,
    chosen,
    engine_of,
)
from nowait.studies.race_setup import ENGINES


def race(  # noqa: PLR0917 (typer makes options of them)
    workers: Annotated[int, typer.Option(help="How many workers.", min=2)] = 40,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A further method, such as ringmaster:max_delay=80, or one of your own, file.py:Class; may be "
            "repeated; all are listed below.",
            callback=values.method,
            autocompletion=completion.method_names,
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="processes, on this machine, ray, or simulate.",
            callback=values.one_of(*ENGINES),
            autocompletion=completion.names(*ENGINES),
        ),
    ] = "processes",
    address: Address = None,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help="Only the methods of the paper's Figure 1: minibatch and asynchronous SGD, plain."
        ),
    ] = False,
    native: Annotated[bool, typer.Option("--native", help="Do not slow any worker.")] = False,
    straggler: Annotated[
        float | None,
        typer.Option(
            help="Make one worker so many times slower than the median of the others, instead of spread speeds.",
            min=1.0,
            show_default="no straggler",
            callback=values.above_zero,
        ),
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option(
            help="How far workers' speeds are spread: the standard deviation of the logarithms of their seconds.",
            min=0.0,
            max=10.0,
            show_default="1; none if native or with a straggler",
            callback=values.finite,
        ),
    ] = None,
    gradients: Annotated[
        int | None,
        typer.Option(
            help="Every method gets the time in which asynchronous SGD computes this many gradients.",
            min=100,
            show_default="32,000; 7,500 if quick",
        ),
    ] = None,
    problem: Problem = None,
    loss: Loss = "least-squares",
    batch_size: Annotated[int, typer.Option(help="Rows per gradient.", min=1)] = 256,
    seeds: Annotated[int, typer.Option(help="Runs of every method; several give bands.", min=1)] = 1,
    seed: Seed = 0,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where report, figures and runs go, a new folder.",
            show_default="runs/race-N",
            callback=values.new_folder,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer gradients and trials: about half a minute on an idle machine.")
    ] = False,
    thorough: Annotated[
        bool,
        typer.Option("--thorough", help="Tune with 12 trials and 3 seeds, for the whole time of the race."),
    ] = False,
    log: Log = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Race five methods with real worker processes: minibatch and asynchronous SGD, and rivals with momentum.

    Minibatch SGD and asynchronous SGD (the paper's), minibatch SGD with momentum, the first m gradients of every round
    with momentum, and Auto; --paper races the paper's three instead. The problem is the paper's least squares problem
    (10,000 rows, 400 dimensions, batches of 256). The workers are slowed like a cluster of machines of spread speeds,
    unless --native or --straggler. Methods are tuned first, with as many trials each, in virtual time on compute times
    measured in a probe; then every method runs live for the same wall-clock time. Takes about two minutes. Prints a
    table and conclusions; writes report.html, figures and the runs.

    Example: nowait race --workers 40 --straggler 100 --method ringmaster:max_delay=80
    """
    from nowait.cli.loggers import race_loggers
    from nowait.cli.race import RaceSettings, run_race

    folder = free_folder(Path("runs/race")) if folder is None else folder
    run_race(
        RaceSettings(
            workers,
            method or [],
            paper,
            engine_of(engine, address),
            native,
            straggler,
            spread,
            gradients,
            problem,
            loss,
            batch_size,
            seeds,
            seed,
            folder,
            quick,
            thorough,
            as_json,
        ),
        race_loggers(log, folder),
    )


def sweep(  # noqa: PLR0917 (typer makes options of them)
    method: Method = "asynchronous",
    update: Update = None,
    schedule: Schedule = None,
    stepsizes: Annotated[
        str | None, typer.Option(help="Numbers with commas between them.", show_default="nine around 1/L")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 3,
    gradients: Annotated[int, typer.Option(help="How many gradients each run gets.", min=1)] = 32_000,
    workers: Annotated[int, typer.Option(help="How many workers.", min=1)] = 40,
    straggler: Straggler = 10.0,
    problem: Problem = None,
    loss: Loss = "least-squares",
    batch_size: Annotated[int, typer.Option(help="Rows per gradient.", min=1)] = 1,
    device: Annotated[
        str,
        typer.Option(help="Where runs are executed: cpu, cuda or cuda:1.", autocompletion=completion.names(*DEVICES)),
    ] = "cpu",
    folder: Annotated[
        Path | None, typer.Option(help="Where the figure goes, a new folder.", show_default="runs/sweep-N")
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Try stepsizes: every one with every seed, in virtual time, on all cores.

    Prints the final losses and which stepsize is best (the lowest median over the seeds among those that never
    diverged), and draws them.

    Example: nowait sweep --method asynchronous:stepsize=constant --stepsizes 0.01,0.03,0.1,0.3
    """
    from nowait.cli.sweep import SweepSettings, run_sweep

    folder = free_folder(Path("runs/sweep")) if folder is None else folder
    run_sweep(chosen(SweepSettings, locals()))


def tune(  # noqa: PLR0917 (typer makes options of them)
    problem: ProblemArgument = None,
    method: Method = "asynchronous",
    stepsize: Annotated[
        float | None,
        typer.Option(help="The first γ to try.", show_default="half of 1/(ML), or of 1/L", callback=values.above_zero),
    ] = None,
    update: Update = None,
    schedule: Schedule = None,
    momentum: Annotated[
        str | None,
        typer.Option(
            help="Momenta to try, with commas between them: of the method if it has one, else Nesterov's.",
            show_default="that of the method, or of --update",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="How many trials to make.", min=1)] = 6,
    workers: Annotated[
        int | None, typer.Option(help="How many real workers.", min=1, show_default="one for each core")
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option(help="Simulate instead: seconds per gradient with commas between them, or a recorded job."),
    ] = None,
    engine: Engine = "processes",
    address: Address = None,
    steps: Steps = None,
    gradients: Gradients = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="End every trial after this many seconds, virtual with --speeds.", callback=values.above_zero
        ),
    ] = None,
    target_loss: TargetLoss = None,
    target: Target = None,
    monitor: Annotated[str, typer.Option(help="The metric to compare: loss, or one of the problem.")] = "loss",
    evaluate_every: Annotated[
        int | None, typer.Option(help="Steps between evaluations.", min=1, show_default="a tenth of the steps")
    ] = None,
    loss: Loss = "least-squares",
    batch_size: BatchSize = 16,
    seed: Seed = 0,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Find a stepsize by a few short runs, with real workers or, with --speeds, in virtual time.

    Every trial has the budget given. The first stepsize is followed by larger or smaller ones, then by others near the
    best. For the method auto, trials run minibatch SGD with Nesterov's momentum, whose stepsize it takes. The exit
    status is 3 if every trial diverged.

    Example: nowait tune mine.py:problem --workers 4 --steps 300 --stepsize 0.05
    """
    from nowait.cli.tune import TuneSettings, run_tune

    if run_tune(chosen(TuneSettings, locals()), engine_of(engine, address)).diverged:
        raise typer.Exit(DIVERGED)


def tolerance(  # noqa: PLR0917 (typer makes options of them)
    problem: ProblemArgument = None,
    update: Annotated[
        list[str] | None,
        typer.Option(
            help="Optimisers with commas between them, such as sgd,adamw,muon:beta=0.9; may be repeated; all are "
            "listed below.",
            show_default="sgd,momentum,adam",
            callback=values.updates,
            autocompletion=completion.update_names,
        ),
    ] = None,
    delays: Annotated[str, typer.Option(help="Mean delays, with commas between them.")] = "1,2,4,8,16,32",
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            help="constant, uniform or straggler; may be repeated.",
            show_default="all three",
            autocompletion=completion.tolerance_patterns,
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of a run.", min=1)] = 500,
    rule: Annotated[
        str,
        typer.Option(
            help="The stepsize rule: constant or adaptive.", autocompletion=completion.names("constant", "adaptive")
        ),
    ] = "constant",
    schedule: Annotated[
        str,
        typer.Option(
            help="Factors of the stepsize over the steps, such as cosine or warmup:steps=50,linear.",
            callback=values.schedule,
            autocompletion=completion.schedule_names,
        ),
    ] = "constant",
    retune: Annotated[bool, typer.Option("--retune", help="Also tune the stepsize again at every delay.")] = False,
    trials: Annotated[int, typer.Option(help="How many stepsizes to try at delay 1.", min=1)] = 6,
    start: Annotated[
        str | None,
        typer.Option(
            help="First stepsizes to try, such as sgd=0.1,adamw=0.001.", show_default="by the length of the first step"
        ),
    ] = None,
    keep: Annotated[
        float,
        typer.Option(
            help="A delay is tolerated if this share of the progress is kept.",
            min=0.0,
            max=0.9999,
            callback=values.finite,
        ),
    ] = 0.95,
    seeds: Annotated[int, typer.Option(help="Runs of every row.", min=1)] = 3,
    loss: Loss = "least-squares",
    batch_size: BatchSize = 16,
    seed: FirstSeed = 0,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where figure and data go, a new folder.",
            show_default="runs/tolerance-N",
            callback=values.new_folder,
        ),
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Find out how much delay an optimiser tolerates: train under growing delays, in virtual time.

    Every optimiser is tuned at delay 1, then run at every mean delay, under delays that are all equal, spread evenly,
    and mostly 1 with a few very long ones. Prints how much of the progress at delay 1 is kept, and draws loss against
    delay.

    Example: nowait tolerance mine.py:problem --update adamw,muon,sgd --delays 1,2,4,8,16,32 --retune
    """
    from nowait.cli.tolerance import ToleranceSettings, run_tolerance

    update = update or ["sgd,momentum,adam"]
    folder = free_folder(Path("runs/tolerance")) if folder is None else folder
    run_tolerance(chosen(ToleranceSettings, locals()))


def plan(  # noqa: PLR0917 (typer makes options of them)
    seconds_per_gradient: Annotated[
        str | None,
        typer.Option("--seconds-per-gradient", "--seconds", help="Of every worker, with commas between them."),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            help="A recorded job: the folder of a run, or what nowait whatif reads, such as alibaba:4.",
            autocompletion=completion.run_folders,
        ),
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option(
            help="A speed model of your own, file.py:name, where name is nw.speeds.… or a function that returns it; "
            "or a recorded job, or seconds with commas between them."
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Probe this machine with this many workers.", min=1)] = None,
    probe: Annotated[float, typer.Option(help="Seconds that the probe takes.", callback=values.above_zero)] = 3.0,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A further method, such as ringmaster:max_delay=80, or one of your own, file.py:Class; may be "
            "repeated.",
            callback=values.method,
            autocompletion=completion.method_names,
        ),
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(
            help="A LIBSVM file, module:function or file.py:function.", show_default="a small least squares problem"
        ),
    ] = None,
    loss: Loss = "least-squares",
    batch_size: Annotated[int, typer.Option(help="Rows per gradient.", min=1)] = 16,
    target_loss: Annotated[
        float | None,
        typer.Option(help="The loss to reach.", show_default="one that all methods reach", callback=values.finite),
    ] = None,
    gradients: Annotated[
        int | None,
        typer.Option(
            help="Gradients of asynchronous SGD in the simulated time.",
            min=100,
            show_default="20,000, or fewer if slow",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="How many seeds tune stepsizes; times are of others.",
            min=1,
            show_default="3, or 1 if gradients are slow",
        ),
    ] = None,
    seed: FirstSeed = 0,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Estimate what asynchrony would gain with these workers, with which method, and which workers to leave out.

    From seconds per gradient, from a recorded run, or from a probe of this machine on your own problem. Methods are
    compared by formula and by simulation in virtual time, each with its stepsize tuned.

    Example: nowait plan --seconds-per-gradient 1,1,1,10
    """
    from nowait.cli.plan import PlanSettings, run_plan

    method = method or []
    run_plan(chosen(PlanSettings, locals()))


def whatif(  # noqa: PLR0917 (typer makes options of them)
    files: Annotated[
        list[str],
        typer.Argument(
            help="A CSV or Parquet table, the profiler traces of all ranks (or their folder), the folder of a run, "
            "or alibaba:1 to alibaba:4.",
            autocompletion=completion.run_folders,
        ),
    ],
    worker_column: Annotated[str | None, typer.Option(help="The column with the worker of each time.")] = None,
    seconds_column: Annotated[str | None, typer.Option(help="The column with the times.")] = None,
    start_column: Annotated[str | None, typer.Option(help="The column with their starts, which order them.")] = None,
    step_column: Annotated[str | None, typer.Option(help="The column with the numbers of the steps.")] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            help="The unit of a table's times: s, ms, us, ns or min.",
            show_default="s",
            callback=values.one_of("s", "ms", "us", "ns", "min"),
            autocompletion=completion.names("s", "ms", "us", "ns", "min"),
        ),
    ] = None,
    event: Annotated[
        str | None, typer.Option(help="The events of a trace that are steps.", show_default="ProfilerStep")
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(
            help="How many workers the job had.", show_default="what the traces or the workers' numbers say", min=1
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the ranges.", min=0, callback=values.seed)] = 0,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where figure and data go, a new folder.", show_default="runs/whatif-N", callback=values.new_folder
        ),
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Tell how much sooner a recorded synchronous job would end if nobody waited for its slowest worker.

    Compares the job with asynchronous SGD, without its slowest workers, and with steps that end when the first m of n
    workers have finished. Nothing is trained or simulated: it counts gradients.

    Example: nowait whatif trace.parquet --worker-column rank --seconds-column step_ms --unit ms
    """
    from nowait.cli.whatif import WhatIfSettings, run_whatif

    folder = free_folder(Path("runs/whatif")) if folder is None else folder
    run_whatif(chosen(WhatIfSettings, locals()))
