"""``nowait check``: which files of a run are undamaged."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nowait.cli.results import print_json
from nowait.recording.check import FolderCheck, check_folder


def run_check(folder: Path, as_json: bool) -> bool:
    """Print the state of each file. Return True if none is damaged."""
    found = check_folder(folder)
    if as_json:
        print_json({"whole": found.whole, "summary": found.summary, "files": [asdict(file) for file in found.files]})
    else:
        _show(found)
    return found.whole


def _show(found: FolderCheck) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("file", "state", "contents"):
        table.add_column(column, overflow="fold")
    for file in found.files:
        state = Text("whole", style="green") if file.whole else Text("damaged", style="red")
        table.add_row(Text(file.name), state, Text(file.words))
    console = Console()
    console.print(table)
    console.print(Text(found.summary))
