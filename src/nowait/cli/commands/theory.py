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
    zeta: Annotated[float | None, typer.Option("--zeta", help="How much the workers' data differ.")] = None,
    accuracy: Annotated[
        float, typer.Option(help="The error to reach, for the ranking of all methods.", callback=values.above_zero)
    ] = 0.01,
    setting: Annotated[str, typer.Option(help="The setting of the ranking, such as nonconvex.")] = "convex",
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Print the paper's Tables 1 and 2 with your numbers, and a ranking of all methods that have a guarantee.

    Table 1 has rates, Table 2 the updates in a given time and speedups. The ranking has the time after which each
    method is guaranteed to reach an accuracy.

    Example: nowait tables --seconds-per-gradient 1,1,1,10 --accuracy 0.001 --setting nonconvex
    """
    import nowait as nw
    from nowait.cli.tables import TablesSettings, run_tables
    from nowait.cli.texts import numbers

    if excess is None and smoothness is not None and distance is not None:
        excess = smoothness * distance**2 / 2
    with refused_as_options():
        constants = nw.theory.Constants(L=smoothness, mu=mu, sigma=sigma, B=distance, Delta=excess, zeta=zeta)
        seconds = numbers(seconds_per_gradient, "--seconds-per-gradient")
        run_tables(TablesSettings(seconds, budget, constants, accuracy, setting, as_json))


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
            help="A delay pattern, or hard; may be repeated.",
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
            callback=values.new_figure,
        ),
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Check the paper's theorems against measurements, on hard instances and under five delay patterns.

    Every theorem on problems that satisfy its assumptions: the mean error over the seeds, the bounds, and whether they
    hold. Lemma 1, the delay identity, the stepsizes and the output rule are checked on the same runs. Ends with what
    happens when delays depend on the data. Takes a minute or two, with --mutants about twice as long. The exit status
    is 1 if anything is violated, or if a planted mistake is found by no row.

    Example: nowait certify --setting convex --pattern hard --mutants
    """
    from nowait.cli.certify import CertifySettings, run_certify

    if not run_certify(CertifySettings(setting, pattern, workers, steps, seeds, seed, mutants, figure, as_json)):
        raise typer.Exit(1)


def rule_pays(
    workers: Annotated[int, typer.Option(help="How many workers.", min=2)] = 16,
    seeds: Annotated[
        int | None,
        typer.Option(help="How many clusters of each kind are drawn.", min=1, show_default="5; 1 if quick"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A coarser map; takes a minute.")] = False,
    figure: Annotated[
        Path | None,
        typer.Option(help="Also draw the map into this file (.png, .pdf, .svg).", callback=values.new_figure),
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show where the delay-adaptive stepsize is better than a constant one, and where it is not.

    In virtual time: errors with the stepsizes that theory prescribes while one straggler becomes slower, and with tuned
    stepsizes the time to a target for much and little noise and for clusters of many kinds. Takes about ten minutes.

    Example: nowait rule-pays --figure when-the-rule-pays.png
    """
    from nowait.cli.rule_pays import RulePaysSettings, run_rule_pays

    run_rule_pays(RulePaysSettings(workers, seeds, quick, figure, as_json))
