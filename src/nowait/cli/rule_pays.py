"""The rule-pays command: where the delay-adaptive stepsize is better than a constant one, as tables and a figure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from rich.console import Console
from rich.table import Table

import nowait as nw
from nowait.cli.layout import number_table, side_by_side
from nowait.cli.results import open_console, print_json
from nowait.html.numbers import shown
from nowait.studies import Cluster, Ratio, RulePays, rule_pays

QUICK: dict[str, Any] = {
    "seeds": 1,
    "noises": (1.0, 0.0),
    "clusters": (Cluster(0.0), Cluster(1.2), Cluster(2.0), Cluster(0.0, 100.0)),
    "batches": (8,),
}
EXPLAINED = (
    "Above 1 the rule γ·min(1, M/τ) is better. Numbers are the geometric mean over the clusters drawn, and the lowest "
    "to the highest."
)


@final
@dataclass(frozen=True)
class RulePaysSettings:
    """The options of the command."""

    workers: int
    seeds: int | None
    quick: bool
    figure: Path | None
    as_json: bool


def run_rule_pays(asked: RulePaysSettings) -> RulePays:
    """Make the comparison, print it, and draw the figure."""
    seeds = {} if asked.seeds is None else {"seeds": asked.seeds}
    found = rule_pays(workers=asked.workers, **(QUICK if asked.quick else {}) | seeds)
    if asked.as_json:
        print_json(_as_dictionary(found))
    else:
        _print(open_console(), found)
    if asked.figure is not None:
        nw.plots.rule_pays(found).savefig(asked.figure, dpi=150)
        if not asked.as_json:
            open_console().print(f"Figure: {asked.figure}", highlight=False)
    return found


def _as_dictionary(found: RulePays) -> dict[str, object]:
    def described(ratio: Ratio) -> dict[str, object]:
        return asdict(ratio) | {"middle": ratio.middle, "low": ratio.low, "high": ratio.high}

    return {
        "workers": found.workers,
        "seeds": found.seeds,
        "steps": found.steps,
        "noises": found.noises,
        "clusters": found.clusters,
        "prescribed": [asdict(one) for one in found.prescribed],
        "times": [described(one) for one in found.times],
        "stays": [described(one) for one in found.stays],
        "losses": [described(one) for one in found.losses],
    }


def _print(console: Console, found: RulePays) -> None:
    console.print(_prescribed_table(found))
    for table in _maps(found, console.width):
        console.print(table)
    console.print(EXPLAINED, highlight=False, markup=False)


def _prescribed_table(found: RulePays) -> Table:
    title = (
        f"With the stepsizes of the theory: error after {found.steps:,} steps / at the start, {found.workers} workers"
    )
    table = number_table(title, ["problem"], ["straggler", "γ·min(1, M/τ)", "constant, by τ_max"])
    for one in found.prescribed:
        table.add_row(one.problem, f"× {one.factor:,g}", f"{one.adaptive:.2g}", f"{one.constant:.2g}")
    return table


def _maps(found: RulePays, width: int) -> list[Table]:
    """Return the tables for tuned stepsizes, as many as it takes to fit this width."""
    times = "Tuned: time to the target,\nconstant / rule, by noise σ²/(M·L·ε)"
    stays = "Tuned: time from which losses stay below the target,\nconstant / rule"
    losses = "Tuned, least squares: error after the same time,\nconstant / rule"
    titled = ((times, found.times), (stays, found.stays), (losses, found.losses))
    return [table for title, ratios in titled for table in _ratio_tables(title, ratios, width)]


def _ratio_tables(title: str, ratios: list[Ratio], width: int) -> list[Table]:
    problems, clusters = (list(dict.fromkeys(getattr(one, by) for one in ratios)) for by in ("problem", "cluster"))
    cells = {(one.cluster, one.problem): _cell(one) for one in ratios}
    rows = {cluster: [cells[cluster, problem] for problem in problems] for cluster in clusters}
    return list(side_by_side(title, problems, rows, width)) if ratios else []


def _cell(ratio: Ratio) -> str:
    range_of = "" if len(ratio.each) == 1 else f" ({shown(ratio.low, 2)}–{shown(ratio.high, 2)})"
    return shown(ratio.middle, trim=False) + range_of
