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
            help="Folders of runs, or folders that contain them.",
            callback=values.existing_folder,
            autocompletion=completion.run_folders,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write.", callback=values.new_file)] = Path("report.html"),
    minimum: Annotated[float, typer.Option(help="F*, which is subtracted from losses.", callback=values.finite)] = 0.0,
) -> None:
    """Write one interactive HTML file about any runs.

    Example: nowait report runs/train-1 runs/simulate-1 --out report.html
    """
    from nowait.cli.runs import run_report

    run_report(folders, out, minimum)
