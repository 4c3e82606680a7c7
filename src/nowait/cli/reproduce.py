"""The reproduce command: published experiments run again, with a table of what agrees."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import nowait as nw
from nowait.cli.cluster import make_folder
from nowait.cli.exits import kept_study, on_interrupt, refused_as_options
from nowait.cli.results import open_console, print_json
from nowait.studies.reproduce import PAPERS, paper_named
from nowait.studies.reproduce.result import FIGURE, SUMMARY
from nowait.studies.reproduce.text import list_of


@final
@dataclass(frozen=True)
class ReproduceSettings:
    """The options of the command."""

    name: str
    quick: bool
    folder: Path
    as_json: bool


def print_papers(*, as_json: bool) -> None:
    """Print the papers, what their figures show, and about how long they take."""
    if as_json:
        names = ("name", "citation", "shows", "minutes")
        print_json([{name: getattr(paper, name) for name in names} for paper in PAPERS.values()])
    else:
        print(list_of(PAPERS.values()))


def run_reproduction(asked: ReproduceSettings) -> nw.Reproduction:
    """Make the runs, print the result, and write the figure and the data into the folder."""
    with refused_as_options():
        paper_named(asked.name)
        make_folder(asked.folder)
    console = open_console(stderr=asked.as_json)
    with on_interrupt(lambda: kept_study(asked.folder, SUMMARY)):
        try:
            found = nw.reproduce(
                asked.name,
                quick=asked.quick,
                folder=asked.folder,
                tell=lambda words: console.print(words, highlight=False),
            )
        except nw.Interrupted as error:
            if error.reproduction is not None and error.reproduction.curves:
                _tell(error.reproduction, asked)
            raise
        _tell(found, asked)
    return found


def _tell(found: nw.Reproduction, asked: ReproduceSettings) -> None:
    """Print the result, and where the figure is."""
    if asked.as_json:
        print_json(found.as_dictionary())
    else:
        print(f"\n{found}\n")
    words = f"Figure: {asked.folder / FIGURE}; the data are beside it, as JSON."
    open_console(stderr=asked.as_json).print(words, highlight=False)
