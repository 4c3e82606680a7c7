"""The certify command: the theorems against measurements, as a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from rich.console import Console
from rich.table import Table

import nowait as nw
from nowait.cli.exits import refused_as_options
from nowait.cli.layout import number_table
from nowait.cli.results import open_console, print_json
from nowait.studies import Certificate, CertifiedRow, certify, longest_delay
from nowait.studies.certified import OPEN, VIOLATED
from nowait.studies.certify import check_request
from nowait.studies.mutants import BOUND, CHECKS, MISSED, NONE

BIAS = (
    "Without Assumption 1: F(x) = E ½(x − ξ)², ξ = ±1, and samples of +1 take a hundred times longer. The minimiser "
    "is 0. Rules that give old gradients less weight give samples of +1 less weight."
)


@final
@dataclass(frozen=True)
class CertifySettings:
    """The options of the command."""

    settings: Sequence[str] | None
    patterns: Sequence[str] | None
    workers: int
    steps: int
    seeds: int
    seed: int
    mutants: bool
    figure: Path | None
    as_json: bool


def run_certify(asked: CertifySettings) -> bool:
    """Certify and print. Return True if everything holds."""
    with refused_as_options():
        check_request(asked.settings, asked.patterns, asked.workers, asked.steps)
    found = certify(
        settings=asked.settings,
        patterns=asked.patterns,
        workers=asked.workers,
        steps=asked.steps,
        seeds=asked.seeds,
        seed=asked.seed,
        mutants=asked.mutants,
    )
    if asked.as_json:
        print_json(_as_dictionary(found))
    else:
        _print(open_console(), found)
    if asked.figure is not None:
        nw.plots.longest_delay(longest_delay()).savefig(asked.figure, dpi=150)
        if not asked.as_json:
            open_console().print(f"Figure: {asked.figure}", highlight=False)
    return found.holds


def _as_dictionary(found: Certificate) -> dict[str, object]:
    rows = [asdict(row) | {"ratio": row.ratio, "verdict": row.verdict} for row in found.rows]
    more = {"bias": found.bias, "mutants": found.mutants, "workers": found.workers, "steps": found.steps}
    return {"holds": found.holds, "rows": rows} | more


def _print(console: Console, found: Certificate) -> None:
    console.print(_table(found), highlight=False, markup=False)
    console.print(_lemmas(found), highlight=False, markup=False)
    console.print(BIAS, highlight=False, markup=False)
    console.print(_bias_table(found))
    if found.mutants:
        console.print(_mutant_table(found))
        console.print(_mutant_rows(found), highlight=False, markup=False)
    console.print(_verdict(found), style="bold" if found.holds else "bold red", highlight=False, markup=False)


def _verdict(found: Certificate) -> str:
    if not found.holds:
        missed = ", ".join(row.mutant for row in found.mutants if not row.is_caught)
        broken = any(row.verdict == VIOLATED or row.lemmas_broken for row in found.rows)
        return "VIOLATED: see the rows above." if broken else f"No row found these planted mistakes: {missed}."
    undecided = sum(row.verdict == OPEN for row in found.rows)
    if not undecided:
        return "Everything holds."
    rows = "1 row is" if undecided == 1 else f"{undecided} rows are"
    return f"Nothing is violated, but {rows} open: the bound lies inside the error's interval. Use more seeds."


def _table(found: Certificate) -> str:
    """Return a line for every row, under the theorem and the problem that it is about. All lines fit 80 columns."""
    lines = [f"Theorems and measurements: {found.workers} workers, {found.steps:,} steps, {found.seeds} seeds"]
    lines += textwrap.wrap(COLUMNS, 79)
    group = ""
    for row in found.rows:
        if group != f"{row.theorem}, {row.problem}":
            group = f"{row.theorem}, {row.problem}"
            lines += ["", group, _line(HEADINGS)]
        lines.append(_line(_cells(row)))
        if row.lemmas_broken:
            lines.append(f"    broken: {', '.join(row.lemmas_broken)}")
    return "\n".join(lines)


COLUMNS = (
    "Error is the mean over the seeds, with half of its 99 % interval. The bounds are the paper's, and nowait's for "
    "the delays of these runs. Ratio is nowait's bound divided by the error."
)
HEADINGS = ("delays", "longest", "error", "paper's", "nowait's", "ratio", "")


def _line(cells: Sequence[str]) -> str:
    delays, longest, error, paper, nowait, ratio, verdict = cells
    return f"  {delays:<16} {longest:>7} {error:>16} {paper:>8} {nowait:>8} {ratio:>7}  {verdict}".rstrip()


def _cells(row: CertifiedRow) -> list[str]:
    return [
        row.pattern,
        f"{row.longest_delay:,}",
        f"{row.mean:.2e} ± {row.high - row.mean:.0e}",
        f"{row.guarantee:.1e}",
        f"{row.given_delays:.1e}",
        f"{row.ratio:.3g}",
        row.verdict,
    ]


def _lemmas(found: Certificate) -> str:
    runs = len(found.rows) * found.seeds
    broken = sum(bool(row.lemmas_broken) for row in found.rows)
    if broken:
        return f"A check of the algorithm failed in {broken} rows."
    strict = sum(row.could_fail for row in found.rows)
    return (
        f"Lemma 1, the delay identity, the stepsizes, their sum and the output: checked on all {runs:,} runs, none "
        f"failed. In {strict} of {len(found.rows)} rows the bound is below the error of x_0: a method that never "
        f"moves would violate it."
    )


def _mutant_table(found: Certificate) -> Table:
    """Return a table of the planted mistakes: how many rows find each by their bound, only by the checks, or not."""
    headings = ["by the bound", "by the checks", "missed", "cannot have it"]
    table = number_table("Planted mistakes: how many rows find them", ["mistake"], headings)
    for number, row in enumerate(found.mutants, start=1):
        table.add_row(f"{number} {row.mutant}", *(str(row.count(how)) for how in (BOUND, CHECKS, MISSED, NONE)))
    return table


def _mutant_rows(found: Certificate) -> str:
    """Return a line for every row: how it finds each of the numbered mistakes."""
    marks = {BOUND: "B", CHECKS: "c", MISSED: "·", NONE: NONE}
    names = list(found.mutants[0].found)
    width = max(map(len, names))
    numbers = " ".join(str(number) for number in range(1, len(found.mutants) + 1))
    lines = ["Which row finds which: B by its bound, c by the checks, · not, – cannot have it"]
    lines.append(f"  {'':<{width}}  {numbers}")
    lines += [f"  {name:<{width}}  {' '.join(marks[row.found[name]] for row in found.mutants)}" for name in names]
    return "\n".join(lines)


def _bias_table(found: Certificate) -> Table:
    table = number_table("", ["asynchronous SGD"], ["x on average"])
    for row in found.bias:
        table.add_row(row.method, f"{row.mean:+.3f}")
    return table
