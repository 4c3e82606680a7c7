"""The command ``nowait bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nowait.cli import completion, values
from nowait.cli.exits import WrongOptionError
from nowait.cli.options import Json


def bench(  # noqa: PLR0917 (typer makes options of them)
    tier: Annotated[
        str,
        typer.Option(
            help="small, five minutes on two cores, or full, an hour.",
            autocompletion=completion.names("small", "full"),
        ),
    ] = "small",
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where results go; an interrupted benchmark goes on there.", show_default="runs/bench-<tier>"
        ),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method of your own, file.py:Class; may be repeated.")
    ] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this problem of the suite; may be repeated.",
            show_default="all",
            autocompletion=completion.bench_problems,
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="How many processes compute.", min=1, show_default="one for each core")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Write the page, and a copy of the results, here.", show_default="the folder of the results"),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(
            help="Compute the entries in this folder again and compare them, bit for bit.",
            callback=values.existing_folder,
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(help="With --verify: how many entries, spread evenly.", min=1, show_default="all")
    ] = None,
    only: Annotated[str, typer.Option(help="With --verify: entries with this text in their name.")] = "",
    as_json: Json = False,
) -> None:
    """Compare all methods on the same problems and clusters, in virtual time.

    Each is tuned with the same number of trials. The suite is frozen: problems, clusters, seeds, search spaces and
    budgets never change within a version. Prints the standings and writes an HTML page with times to the target,
    performance profiles and a phase diagram. With --verify the exit status is 1 if a result has other bits.

    Example: nowait bench --method my_method.py:Mine
    """
    from nowait.cli.bench import BenchSettings, run_bench, run_verify

    if verify is not None:
        if folder or method or problem or processes or page:
            raise WrongOptionError("with --verify only --sample, --only and --json are used")
        if not run_verify(verify, sample, only, as_json):
            raise typer.Exit(1)
        return
    if sample is not None or only:
        raise WrongOptionError("--sample and --only are for --verify")
    settings = BenchSettings(
        tier, folder or Path(f"runs/bench-{tier}"), method or [], problem or [], processes, page, as_json
    )
    run_bench(settings)
