"""The command that runs published experiments again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nowait.cli import completion, values
from nowait.cli.new_folders import free_folder
from nowait.cli.options import Config, Json


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Of the paper.",
            show_default="lists them",
            callback=values.paper,
            autocompletion=completion.paper_names,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A much smaller setting: a few seconds.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where figure and data go, a new folder.",
            show_default="runs/reproduce-NAME-N",
            callback=values.new_folder,
        ),
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Run a published experiment again, in virtual time, and compare it with what the paper reports.

    Prints the errors of every method and a table of claims: what the paper reports, what we get, and whether they
    agree. Without a name, lists the papers and about how long each takes. The exit status is 0 also if claims disagree.

    Example: nowait reproduce asynchronous-sgd --quick
    """
    from nowait.cli.reproduce import ReproduceSettings, print_papers, run_reproduction

    if name is None:
        print_papers(as_json=as_json)
        return
    folder = free_folder(Path(f"runs/reproduce-{name}")) if folder is None else folder
    run_reproduction(ReproduceSettings(name, quick, folder, as_json))
