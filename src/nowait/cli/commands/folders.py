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


def watch(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of runs, or folders that contain them.",
            show_default="runs",
            autocompletion=completion.run_folders,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines open the page.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.", min=0, max=65_535)] = 0,
    token: Annotated[
        str | None,
        typer.Option(
            help="The token in the address. All users of this machine see it in ps: prefer the variable.",
            envvar="NOWAIT_WATCH_TOKEN",
            show_default="a random one",
        ),
    ] = None,
    browser: Annotated[
        bool | None, typer.Option("--browser/--no-browser", help="Open a browser.", show_default="if there is a screen")
    ] = None,
) -> None:
    """Show runs on a local web page while they run: curves, who is slow, delays and a timeline.

    The page also shows runs that have finished or were killed. New runs in the folders appear on it. Ctrl-C ends it.

    Example: nowait watch runs
    """
    from nowait.cli.watch import run_watch

    run_watch(folders or [Path("runs")], host, port, token, browser)


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
