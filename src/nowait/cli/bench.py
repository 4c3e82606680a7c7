"""The bench command: computes or verifies the frozen comparison, and writes its page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from nowait.cli.exits import on_interrupt, refused_as_options
from nowait.cli.results import open_console, print_json
from nowait.studies.bench import Bench, Verified, bench, verify
from nowait.studies.bench.bench import checked_request
from nowait.studies.bench.folder import BenchFolder
from nowait.studies.bench.page import write_page

MOST_LINES = 20
"""How many differing runs are listed."""


@final
@dataclass(frozen=True)
class BenchSettings:
    """The options of the command."""

    tier: str
    folder: Path
    method: list[str]
    problem: list[str]
    processes: int | None
    page: Path | None
    as_json: bool


def run_bench(asked: BenchSettings) -> Bench:
    """Compute what is missing, print the standings and write the page."""
    console = open_console(stderr=asked.as_json)
    with refused_as_options():
        chosen, _, _ = checked_request(asked.tier, asked.method, asked.problem or None)
        BenchFolder.open_or_create(asked.folder, chosen)
    console.print(
        f"{chosen.name} suite; results go to {asked.folder}. An interrupted benchmark goes on with the same command.",
        highlight=False,
    )
    with on_interrupt(lambda: f"All complete results are in {asked.folder}: the same command computes the rest."):
        found = bench(
            asked.tier,
            folder=asked.folder,
            methods=asked.method,
            problems=asked.problem or None,
            processes=asked.processes,
        )
    if asked.as_json:
        print_json(found.as_dictionary())
    else:
        print(found)
    if asked.page is not None:
        BenchFolder.open(asked.folder).copy_to(asked.page)
    page = write_page(found, chosen, asked.page or asked.folder, _command(asked))
    console.print(f"Page: {page}", highlight=False)
    return found


def run_verify(folder: Path, sample: int | None, only: str, as_json: bool) -> bool:
    """Verify entries, print what differs, and return True if nothing does."""
    found = verify(folder, sample=sample, only=only)
    differing = [run for run in found if run.differing]
    if as_json:
        print_json(found)
    else:
        for run in differing[:MOST_LINES]:
            print(f"{run.key}{'' if run.seed is None else f', seed {run.seed}'}: {', '.join(run.differing)} differ")
        print(_summary(found, differing))
    return not differing


def _summary(found: list[Verified], differing: list[Verified]) -> str:
    runs = [run for run in found if run.seed is not None]
    entries, replayed = len({run.key for run in runs}), sum(run.replayed for run in runs)
    words = f"{len(runs)} runs of {entries} entries computed again ({replayed} also replayed from their traces)"
    points = len(found) - len(runs)
    words += f" and {points} points of the phase diagram" if points else ""
    return f"{words}: {f'{len(differing)} differ' if differing else 'all have the same bits'}."


def _command(asked: BenchSettings) -> str:
    methods = "".join(f" --method {text}" for text in asked.method)
    problems = "".join(f" --problem {text}" for text in asked.problem)
    return f"nowait bench --tier {asked.tier}{methods}{problems}"
