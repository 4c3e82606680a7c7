"""Commands on the paper's theory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nowait.cli import completion, values
from nowait.cli.exits import refused_as_options
from nowait.cli.options import Config, FirstSeed, Json


def tables(  # noqa: PLR0917 (typer makes options of them)
    seconds_per_gradient: Annotated[
        str, typer.Option("--seconds-per-gradient", "--seconds", help="Of every worker, with commas between them.")
    ] = "1,1,1,10",
    budget: Annotated[
        float, typer.Option(help="How many seconds the workers compute.", callback=values.above_zero)
    ] = 1_000.0,
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
    from nowait.cli.tables import run_tables
    from nowait.cli.texts import numbers

    if excess is None and smoothness is not None and distance is not None:
        excess = smoothness * distance**2 / 2
    with refused_as_options():
        constants = nw.theory.Constants(L=smoothness, mu=mu, sigma=sigma, B=distance, Delta=excess)
        run_tables(numbers(seconds_per_gradient, "--seconds-per-gradient"), budget, constants, as_json)


def certify(  # noqa: PLR0917 (typer makes options of them)
    setting: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting, such as convex; may be repeated.",
            show_default="all six",
            autocompletion=completion.setting_names,
        ),
    ] = None,
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            help="A delay pattern; may be repeated.",
            show_default="all six",
            autocompletion=completion.delay_patterns,
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="How many workers.", min=2)] = 4,
    steps: Annotated[int, typer.Option(help="Steps of a run.", min=1)] = 4_000,
    seeds: Annotated[int, typer.Option(help="Runs of a row.", min=2)] = 16,
    seed: FirstSeed = 0,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Also make the runs with planted mistakes, and show which rows find them.")
    ] = False,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Also draw errors against the longest delay into this file (.png, .pdf, .svg).",
            callback=values.new_file,
        ),
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Check the paper's theorems against measurements, on hard instances and under five delay patterns.

    Every theorem on problems that satisfy its assumptions: the mean error over the seeds, the bounds, and whether they
    hold. Lemma 1, the delay identity, the stepsizes and the output rule are checked on the same runs. Ends with what
    happens when delays depend on the data. Takes a few minutes, with --mutants ten or more. The exit status is 1 if
    anything is violated, or if no row finds one of the planted mistakes.

    Example: nowait certify --setting convex --pattern hard --mutants
    """
    from nowait.cli.certify import CertifySettings, run_certify

    if not run_certify(CertifySettings(setting, pattern, workers, steps, seeds, seed, mutants, figure, as_json)):
        raise typer.Exit(1)
