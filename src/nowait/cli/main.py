"""``nowait``: the commands and what they take."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import nowait

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


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
    problem: Annotated[
        Path | None, typer.Option(help="A LIBSVM file.", show_default="the paper's least squares")
    ] = None,
    loss: Annotated[str, typer.Option(help="least-squares or logistic.")] = "least-squares",
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


def main() -> None:
    """Run the command line; user errors are told in one line and end with status 1."""
    try:
        app()
    except (ValueError, TypeError, OSError) as error:
        typer.echo(f"nowait: {error}", err=True)
        sys.exit(1)


def _free(folder: Path) -> Path:
    """The first folder like this one, with a number behind, that does not exist."""
    candidates = (folder.with_name(f"{folder.name}-{number}") for number in range(1, 1_000_000))
    return next(candidate for candidate in candidates if not candidate.exists())
