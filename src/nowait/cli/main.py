"""``nowait``: the commands and what they take."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import nowait

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

Problem = Annotated[
    str | None,
    typer.Option(help="A LIBSVM file, module:function or file.py:function.", show_default="the paper's least squares"),
]
Loss = Annotated[str, typer.Option(help="Of a LIBSVM file: least-squares or logistic.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def nowait_command(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Train with workers of any speed and never wait for the slowest one."""
    if version:
        typer.echo(nowait.__version__)
        raise typer.Exit


@app.command()
def race(  # noqa: PLR0917 (typer makes options of them)
    workers: Annotated[int, typer.Option(help="How many workers.", min=2)] = 40,
    gradients: Annotated[
        int, typer.Option(help="How long: the time asynchronous SGD takes for so many.", min=100)
    ] = 32_000,
    straggler: Annotated[float, typer.Option(help="How many times slower one worker is.", min=1.0)] = 10.0,
    batch_size: Annotated[int, typer.Option(help="Rows per gradient.", min=1)] = 256,
    seed: Annotated[int, typer.Option(help="Fixes samples and speeds.", min=0)] = 0,
    folder: Annotated[
        Path | None, typer.Option(help="Where the figure and the runs go, a new folder.", show_default="runs/race-N")
    ] = None,
    quick: Annotated[bool, typer.Option(help="A tenth of the gradients.")] = False,
) -> None:
    """Race minibatch SGD against asynchronous SGD in virtual time.

    The paper's least squares problem (10,000 rows, 400 dimensions) on a simulated cluster of unequal workers, one of
    them a straggler. Stepsizes are tuned first; then every method gets the same virtual time. Prints a table and
    writes a figure.

    Example: nowait race --workers 40 --straggler 100
    """
    from nowait.cli.race import Settings, run_race

    folder = _free(Path("runs/race")) if folder is None else folder
    gradients = max(100, gradients // 10) if quick else gradients
    settings = Settings(workers, gradients, straggler, batch_size, seed, folder)
    run_race(settings)


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
    folder: Annotated[
        Path | None, typer.Option(help="Where the figure goes, a new folder.", show_default="runs/sweep-N")
    ] = None,
) -> None:
    """Try stepsizes: every one with every seed, in virtual time, on all cores.

    Prints the final losses and which stepsize is best (the lowest median over the seeds among those that never
    diverged), and draws them.

    Example: nowait sweep --method asynchronous:stepsize=constant --stepsizes 0.01,0.03,0.1,0.3
    """
    from nowait.cli.sweep import SweepSettings, run_sweep

    folder = _free(Path("runs/sweep")) if folder is None else folder
    run_sweep(SweepSettings(method, problem, loss, batch_size, workers, straggler, gradients, stepsizes, seeds, folder))


@app.command()
def plan(  # noqa: PLR0917 (typer makes options of them)
    seconds: Annotated[
        str | None, typer.Option(help="Seconds per gradient of every worker, with commas between them.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="The folder of a run, whose compute times are taken.")] = None,
    workers: Annotated[int | None, typer.Option(help="Probe this machine with so many workers.", min=1)] = None,
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
        int | None, typer.Option(help="How many asynchronous SGD simulates.", show_default="20,000, or fewer if slow")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="The first of them.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """What would asynchrony gain with these workers, with which method, and whom to leave out?

    From seconds per gradient, from a recorded run, or from a probe of this machine on your own problem. Methods are
    compared by formula and by simulation in virtual time, each with its stepsize tuned.

    Example: nowait plan --seconds 1,1,1,10
    """
    from nowait.cli.plan import PlanSettings, run_plan

    run_plan(
        PlanSettings(
            seconds, trace, workers, probe, problem, loss, batch_size, target_loss, gradients, seeds, seed, as_json
        )
    )


@app.command()
def tables(  # noqa: PLR0917 (typer makes options of them)
    seconds: Annotated[
        str, typer.Option(help="Seconds per gradient of every worker, with commas between them.")
    ] = "1,1,1,10",
    budget: Annotated[float, typer.Option(help="How many seconds they work.")] = 1_000.0,
    smoothness: Annotated[float | None, typer.Option("--L", help="F is L-smooth.")] = 1.0,
    mu: Annotated[float | None, typer.Option("--mu", help="F is mu-strongly convex.")] = None,
    sigma: Annotated[float | None, typer.Option("--sigma", help="The standard deviation of a gradient.")] = 1.0,
    distance: Annotated[float | None, typer.Option("--B", help="From x_0 to the minimiser.")] = 1.0,
    excess: Annotated[float | None, typer.Option("--Delta", help="F(x_0) − F*.", show_default="L·B²/2")] = None,
    as_json: Json = False,
) -> None:
    """The paper's Tables 1 and 2 with your numbers: rates, updates in a given time, speedups.

    Example: nowait tables --seconds 1,1,1,10 --budget 1000 --mu 0.01
    """
    import nowait as nw
    from nowait.cli.tables import numbers, run_tables

    if excess is None and smoothness is not None and distance is not None:
        excess = smoothness * distance**2 / 2
    constants = nw.theory.Constants(L=smoothness, mu=mu, sigma=sigma, B=distance, Delta=excess)
    run_tables(numbers(seconds, "--seconds"), budget, constants, as_json)


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
    """Run the command line; user errors are told in one line and end with status 1."""
    try:
        app()
    except (ValueError, TypeError, OSError, nowait.BadWorkerError, nowait.WorkerFailedError) as error:
        typer.echo(f"nowait: {error}", err=True)
        sys.exit(1)


def _free(folder: Path) -> Path:
    """The first folder like this one, with a number behind, that does not exist."""
    candidates = (folder.with_name(f"{folder.name}-{number}") for number in range(1, 1_000_000))
    return next(candidate for candidate in candidates if not candidate.exists())
