"""``nowait``: the commands and their options."""

from __future__ import annotations

import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, final

import typer
from typer.core import TyperGroup

import nowait
from nowait.cli.options import (
    Address,
    BatchSize,
    Config,
    Engine,
    EvaluateEvery,
    Folder,
    Gradients,
    Json,
    Loss,
    Method,
    Problem,
    ProblemArgument,
    Seed,
    Steps,
    Stepsize,
    Target,
    TargetLoss,
    chosen,
    engine_of,
)
from nowait.engines.watch import Watch

DIVERGED, KILLED = 3, 128
"""Exit statuses: 0 success, 1 a user error printed in one line, 2 wrong options. A signal gives 128 plus its number, as
in shells: 130 for Ctrl-C, 143 for SIGTERM."""


@final
class Commands(TyperGroup):
    """All commands. A signal ends each with the exit status for that signal."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            with Watch():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            words = str(error) or "interrupted"
            typer.echo(f"nowait: {words}", err=True)
            raise typer.Exit(_status_of(error)) from error


app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def nowait_command(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Train with workers of any speed and never wait for the slowest one."""
    if version:
        typer.echo(nowait.__version__)
        raise typer.Exit


@app.command()
def race(  # noqa: PLR0917 (typer makes options of them)
    workers: Annotated[int, typer.Option(help="How many workers.", min=2)] = 40,
    method: Annotated[
        list[str] | None, typer.Option(help="A further method, such as ringmaster:max_delay=80; may be repeated.")
    ] = None,
    engine: Annotated[str, typer.Option(help="processes, on this machine, ray, or simulate.")] = "processes",
    address: Address = None,
    native: Annotated[bool, typer.Option("--native", help="Do not slow any worker.")] = False,
    straggler: Annotated[
        float | None,
        typer.Option(help="How many times slower one worker is.", min=1.0, show_default="10; none if native"),
    ] = None,
    gradients: Annotated[
        int | None,
        typer.Option(
            help="Every method gets the time in which asynchronous SGD computes this many gradients.",
            min=100,
            show_default="32,000; 2,000 if quick",
        ),
    ] = None,
    problem: Problem = None,
    loss: Loss = "least-squares",
    batch_size: Annotated[int, typer.Option(help="Rows per gradient.", min=1)] = 256,
    seeds: Annotated[int, typer.Option(help="Runs of every method; several give bands.", min=1)] = 1,
    seed: Seed = 0,
    folder: Annotated[
        Path | None, typer.Option(help="Where report, figures and runs go, a new folder.", show_default="runs/race-N")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer gradients and stepsizes: about 20 seconds on an idle machine.")
    ] = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Race minibatch SGD against asynchronous SGD, with real worker processes. About two minutes.

    The paper's least squares problem (10,000 rows, 400 dimensions, batches of 256). The workers are slowed like a mixed
    cluster with one straggler, unless --native. Stepsizes are tuned first, in virtual time on compute times measured
    in a probe; then every method runs live for the same wall-clock time. Prints a table and conclusions; writes
    report.html, figures and the runs.

    Example: nowait race --workers 40 --straggler 100 --method ringmaster:max_delay=80
    """
    from nowait.cli.race import RaceSettings, run_race

    folder = _free(Path("runs/race")) if folder is None else folder
    run_race(
        RaceSettings(
            workers,
            method or [],
            engine_of(engine, address),
            native,
            straggler,
            gradients,
            problem,
            loss,
            batch_size,
            seeds,
            seed,
            folder,
            quick,
            as_json,
        )
    )


@app.command()
def simulate(  # noqa: PLR0917 (typer makes options of them)
    problem: ProblemArgument = None,
    method: Method = "asynchronous",
    stepsize: Stepsize = None,
    workers: Annotated[int, typer.Option(help="How many workers; times are lognormal around 1 s.", min=1)] = 8,
    straggler: Annotated[float, typer.Option(help="How many times slower one worker is.", min=1.0)] = 10.0,
    speeds: Annotated[
        str | None, typer.Option(help="Instead: seconds per gradient of every worker, with commas between them.")
    ] = None,
    steps: Steps = None,
    gradients: Gradients = None,
    seconds: Annotated[float | None, typer.Option(help="End after this many virtual seconds.")] = None,
    target_loss: TargetLoss = None,
    target: Target = None,
    evaluate_every: EvaluateEvery = None,
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
    from nowait.cli.runs import RunSettings, run_simulate

    folder = _free(Path("runs/simulate")) if folder is None else folder
    asked = chosen(RunSettings, locals())
    _end(run_simulate(asked, speeds, straggler))


@app.command()
def train(  # noqa: PLR0917 (typer makes options of them)
    problem: ProblemArgument = None,
    method: Method = "asynchronous",
    stepsize: Stepsize = None,
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
    seconds: Annotated[float | None, typer.Option(help="End after this many seconds.")] = None,
    target_loss: TargetLoss = None,
    target: Target = None,
    evaluate_every: EvaluateEvery = None,
    slowdown: Annotated[str | None, typer.Option(help="Simulated stragglers, such as 0=100,3=2.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.", min=1)] = None,
    checkpoint_seconds: Annotated[float | None, typer.Option(help="Seconds between checkpoints.")] = None,
    keep_best: Annotated[
        str | None, typer.Option(help="Keep the params with the best loss, or metric of this name.")
    ] = None,
    loss: Loss = "least-squares",
    batch_size: BatchSize = 16,
    seed: Seed = 0,
    folder: Folder = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Train with real workers, on this machine or on Ray; checkpoints, Ctrl-C and resume as in nw.train.

    Example: nowait train mine.py:problem --workers 8 --steps 10000 --stepsize 0.05 --checkpoint-every 1000
    """
    from nowait.cli.runs import RunSettings, run_train

    folder = _free(Path("runs/train")) if folder is None else folder
    asked = chosen(RunSettings, locals())
    where = {"engine": engine_of(engine, address), "workers": (workers, most_workers) if most_workers else workers}
    kept = {
        "checkpoint_every": checkpoint_every,
        "checkpoint_seconds": checkpoint_seconds,
        "keep_best": keep_best,
    }
    _end(run_train(asked, where, slowdown, kept))


@app.command()
def resume(  # noqa: PLR0917 (typer makes options of them)
    folder: Annotated[Path, typer.Argument(help="The folder of a run of nowait train or nw.train.")],
    problem: Annotated[
        str | None, typer.Option(help="As in nowait train.", show_default="as stored in the run")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="Of a LIBSVM file.", show_default="as stored")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per gradient.", show_default="as stored")] = None,
    engine: Annotated[str | None, typer.Option(help="processes or ray.", show_default="as it was")] = None,
    address: Address = None,
    steps: Annotated[
        int | None, typer.Option(help="Go on to this many steps in all.", show_default="as stored")
    ] = None,
    gradients: Annotated[
        int | None, typer.Option(help="Go on to this many gradients in all.", show_default="as stored")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Go on to this many seconds in all.", show_default="as stored")
    ] = None,
    target_loss: Annotated[float | None, typer.Option(help="Go on to this loss.", show_default="as stored")] = None,
    target: Annotated[
        str | None, typer.Option(help="Go on until metrics reach values, as in train.", show_default="as stored")
    ] = None,
    as_json: Json = False,
) -> None:
    """Continue a run from its last checkpoint, after a crash or Ctrl-C, or beyond its end with a new budget.

    Code that the folder names runs only after you confirm it; --problem names it explicitly.

    Example: nowait resume runs/train-1 --steps 20000
    """
    from nowait.cli.runs import Named, run_resume, target_of

    where = None if engine is None and address is None else engine_of(engine or "ray", address)
    budget = {
        "steps": steps,
        "gradients": gradients,
        "seconds": seconds,
        "target_loss": target_loss,
        "target": target_of(target),
    }
    _end(run_resume(folder, Named(problem, loss, batch_size), where, budget, as_json))


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    problem: Annotated[
        str | None, typer.Option(help="As in nowait train.", show_default="as stored in the run")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="Of a LIBSVM file.", show_default="as stored")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per gradient.", show_default="as stored")] = None,
    as_json: Json = False,
) -> None:
    """Replay a recorded run from its trace and compare the params bit for bit.

    Code that the folder names runs only after you confirm it; --problem names it explicitly.

    Example: nowait replay runs/train-1
    """
    from nowait.cli.runs import Named, run_replay

    run_replay(folder, Named(problem, loss, batch_size), as_json)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, finished or not.")],
    as_json: Json = False,
) -> None:
    """Compare every file of a run with its checksums, and say what can be done with the folder.

    Nothing is changed, and no code is run. The exit status is 1 if a file is damaged.

    Example: nowait check runs/mine
    """
    from nowait.cli.check import run_check

    if not run_check(folder, as_json):
        raise typer.Exit(1)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain them.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    minimum: Annotated[float, typer.Option(help="F*, which is subtracted from losses.")] = 0.0,
) -> None:
    """Write one interactive HTML file about any runs.

    Example: nowait report runs/train-1 runs/simulate-1 --out report.html
    """
    from nowait.cli.runs import run_report

    run_report(folders, out, minimum)


@app.command()
def sweep(  # noqa: PLR0917 (typer makes options of them)
    method: Annotated[
        str, typer.Option(help="A method and its parameters, such as ringmaster:max_delay=80.")
    ] = "asynchronous",
    stepsizes: Annotated[
        str | None, typer.Option(help="Numbers with commas between them.", show_default="nine around 1/L")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 3,
    gradients: Annotated[int, typer.Option(help="How many gradients each run gets.", min=1)] = 32_000,
    workers: Annotated[int, typer.Option(help="How many workers.", min=1)] = 40,
    straggler: Annotated[float, typer.Option(help="How many times slower one worker is.", min=1.0)] = 10.0,
    problem: Problem = None,
    loss: Loss = "least-squares",
    batch_size: Annotated[int, typer.Option(help="Rows per gradient.", min=1)] = 1,
    device: Annotated[str, typer.Option(help="Where runs are executed: cpu, cuda or cuda:1.")] = "cpu",
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

    folder = _free(Path("runs/sweep")) if folder is None else folder
    run_sweep(chosen(SweepSettings, locals()))


@app.command()
def tune(  # noqa: PLR0917 (typer makes options of them)
    problem: ProblemArgument = None,
    method: Method = "asynchronous",
    stepsize: Annotated[
        float | None, typer.Option(help="The first γ to try.", show_default="half of 1/(ML), or of 1/L")
    ] = None,
    trials: Annotated[int, typer.Option(help="How many stepsizes to try.", min=1)] = 6,
    workers: Annotated[
        int | None, typer.Option(help="How many real workers.", min=1, show_default="one for each core")
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option(help="Simulate instead: seconds per gradient of every worker, with commas between them."),
    ] = None,
    engine: Engine = "processes",
    address: Address = None,
    steps: Steps = None,
    gradients: Gradients = None,
    seconds: Annotated[
        float | None, typer.Option(help="End every trial after this many seconds, virtual with --speeds.")
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
    best. The exit status is 3 if every trial diverged.

    Example: nowait tune mine.py:problem --workers 4 --steps 300 --stepsize 0.05
    """
    from nowait.cli.tune import TuneSettings, run_tune

    if run_tune(chosen(TuneSettings, locals()), engine_of(engine, address)).diverged:
        raise typer.Exit(DIVERGED)


@app.command()
def plan(  # noqa: PLR0917 (typer makes options of them)
    seconds_per_gradient: Annotated[
        str | None,
        typer.Option("--seconds-per-gradient", "--seconds", help="Of every worker, with commas between them."),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="The folder of a run, whose compute times are taken.")] = None,
    workers: Annotated[int | None, typer.Option(help="Probe this machine with this many workers.", min=1)] = None,
    probe: Annotated[float, typer.Option(help="Seconds that the probe takes.")] = 3.0,
    problem: Annotated[
        str | None,
        typer.Option(
            help="A LIBSVM file, module:function or file.py:function.", show_default="a small least squares problem"
        ),
    ] = None,
    loss: Loss = "least-squares",
    batch_size: Annotated[int, typer.Option(help="Rows per gradient.", min=1)] = 16,
    target_loss: Annotated[
        float | None, typer.Option(help="The loss to reach.", show_default="one that all methods reach")
    ] = None,
    gradients: Annotated[
        int | None,
        typer.Option(
            help="Gradients of asynchronous SGD in the simulated time.", show_default="20,000, or fewer if slow"
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds.", min=1, show_default="3, or 1 if gradients are slow")
    ] = None,
    seed: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Estimate what asynchrony would gain with these workers, with which method, and which workers to leave out.

    From seconds per gradient, from a recorded run, or from a probe of this machine on your own problem. Methods are
    compared by formula and by simulation in virtual time, each with its stepsize tuned.

    Example: nowait plan --seconds-per-gradient 1,1,1,10
    """
    from nowait.cli.plan import PlanSettings, run_plan

    run_plan(chosen(PlanSettings, locals()))


@app.command()
def tables(  # noqa: PLR0917 (typer makes options of them)
    seconds_per_gradient: Annotated[
        str, typer.Option("--seconds-per-gradient", "--seconds", help="Of every worker, with commas between them.")
    ] = "1,1,1,10",
    budget: Annotated[float, typer.Option(help="How many seconds the workers compute.")] = 1_000.0,
    smoothness: Annotated[float | None, typer.Option("--L", help="F is L-smooth.")] = 1.0,
    mu: Annotated[float | None, typer.Option("--mu", help="F is mu-strongly convex.")] = None,
    sigma: Annotated[float | None, typer.Option("--sigma", help="The standard deviation of a gradient.")] = 1.0,
    distance: Annotated[float | None, typer.Option("--B", help="From x_0 to the minimiser.")] = 1.0,
    excess: Annotated[float | None, typer.Option("--Delta", help="F(x_0) − F*.", show_default="L·B²/2")] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Print the paper's Tables 1 and 2 with your numbers: rates, updates in a given time, speedups.

    Example: nowait tables --seconds-per-gradient 1,1,1,10 --budget 1000 --mu 0.01
    """
    import nowait as nw
    from nowait.cli.tables import numbers, run_tables

    if excess is None and smoothness is not None and distance is not None:
        excess = smoothness * distance**2 / 2
    constants = nw.theory.Constants(L=smoothness, mu=mu, sigma=sigma, B=distance, Delta=excess)
    run_tables(numbers(seconds_per_gradient, "--seconds-per-gradient"), budget, constants, as_json)


@app.command()
def certify(  # noqa: PLR0917 (typer makes options of them)
    setting: Annotated[
        list[str] | None, typer.Option(help="A setting, such as convex; may be repeated.", show_default="all six")
    ] = None,
    pattern: Annotated[
        list[str] | None, typer.Option(help="A delay pattern; may be repeated.", show_default="all five")
    ] = None,
    workers: Annotated[int, typer.Option(help="How many workers.", min=2)] = 8,
    steps: Annotated[int, typer.Option(help="Steps of a run.", min=1)] = 2_000,
    seeds: Annotated[int, typer.Option(help="Runs of a row.", min=2)] = 16,
    seed: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw errors against the longest delay into this file (.png, .pdf, .svg).")
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Check the paper's theorems against measurements, under five delay patterns. About a minute.

    Every theorem on problems that satisfy its assumptions: the mean error over the seeds, the guarantee, and whether it
    holds. Lemma 1, the delay identity and the sum of the stepsizes are checked on the same runs. Ends with what happens
    when delays depend on the data. The exit status is 1 if anything is violated.

    Example: nowait certify --setting convex --pattern straggler
    """
    from nowait.cli.certify import CertifySettings, run_certify

    if not run_certify(CertifySettings(setting, pattern, workers, steps, seeds, seed, figure, as_json)):
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; user errors are printed in one line and end with status 1."""
    try:
        app()
    except (ValueError, TypeError, OSError, ArithmeticError, nowait.BadWorkerError, nowait.WorkerFailedError) as error:
        typer.echo(f"nowait: {_place_of(error)}{_printable(str(error))}", err=True)
        sys.exit(1)
    except Exception as error:
        place = _place_of(error)
        if not place:
            raise
        typer.echo(f"nowait: {place}{type(error).__name__}: {_printable(str(error))}", err=True)
        sys.exit(1)


def _status_of(error: KeyboardInterrupt) -> int:
    name = error.signal if isinstance(error, nowait.Interrupted) else "SIGINT"
    return KILLED + int(signal.Signals[name])


def _printable(text: str) -> str:
    """Return the text with control characters escaped: an error may quote an untrusted file."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text)


def _place_of(error: BaseException) -> str:
    """Return the place in the user's own code where an error was raised; empty if it was raised elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not is_of_the_user(frames[-1].filename):
        return ""
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}: "


def is_of_the_user(filename: str) -> bool:
    """Return True if a file belongs neither to this library nor to any installed package."""
    own = str(Path(nowait.__file__).parent)
    return not (filename.startswith((own, sys.base_prefix, sys.prefix, "<")) or "site-packages" in filename)


def _end(run: nowait.Run) -> None:
    """Set the exit status according to how a run ended."""
    if run.stats.interrupted:
        raise nowait.Interrupted.of(run)
    if run.stats.diverged:
        raise typer.Exit(DIVERGED)


def _free(folder: Path) -> Path:
    """Return the first numbered variant of a folder name that does not exist."""
    candidates = (folder.with_name(f"{folder.name}-{number}") for number in range(1, 1_000_000))
    return next(candidate for candidate in candidates if not candidate.exists())
