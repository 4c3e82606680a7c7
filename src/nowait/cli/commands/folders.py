"""Commands on folders of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nowait.cli import completion, values
from nowait.cli.options import Json, RunFolder


def check(
    folder: RunFolder,
    as_json: Json = False,
) -> None:
    """Compare every file of a run with its checksums, and say what can be done with the folder.

    Nothing is changed, and no code is run. The exit status is 1 if a file is damaged.

    Example: nowait check runs/mine
    """
    from nowait.cli.check import run_check

    if not run_check(folder, as_json):
        raise typer.Exit(1)


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs, races and sweeps, or folders that contain them.",
            callback=values.existing_folder,
            autocompletion=completion.run_folders,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write.", callback=values.new_file)] = Path("report.html"),
    minimum: Annotated[
        float | None,
        typer.Option(
            help="F*, which is subtracted from losses.",
            show_default="that of a race, otherwise 0",
            callback=values.finite,
        ),
    ] = None,
) -> None:
    """Write one interactive HTML file about any runs, also those that are running or were killed.

    Folders that cannot be read are skipped, and the reason is printed.

    Example: nowait report runs/train-1 runs/simulate-1 --out report.html
    """
    from nowait.cli.report import run_report

    run_report(folders, out, minimum)
