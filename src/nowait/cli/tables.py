"""The tables command: the paper's Tables 1 and 2 with the user's numbers, and a ranking of methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from rich.table import Table

import nowait as nw
from nowait.cli.layout import number_table
from nowait.cli.results import open_console, print_json


@final
@dataclass(frozen=True)
class TablesSettings:
    """The options of the command."""

    seconds: Sequence[float]
    budget_seconds: float
    constants: nw.theory.Constants
    accuracy: float
    setting: str
    as_json: bool


def run_tables(settings: TablesSettings) -> None:
    """Compute and print the tables."""
    seconds, budget_seconds, constants = settings.seconds, settings.budget_seconds, settings.constants
    gain = nw.theory.speedup(seconds)
    second = nw.theory.table_2(seconds, budget_seconds=budget_seconds)
    steps = second[-1].updates
    first = nw.theory.table_1(constants, workers=gain.workers, steps=steps, max_delay=gain.max_delay)
    ranked = nw.theory.ranking(seconds, constants, settings.accuracy, settings.setting)
    if settings.as_json:
        rows = [_ranked_json(row) for row in ranked]
        tables = {"table_1": first, "table_2": second, "ranking": rows}
        print_json(tables | {"max_delay": gain.max_delay, "steps": steps})
        return
    console = open_console()
    console.print(
        f"{gain.workers} workers, {gain.seconds.min():g} to {gain.seconds.max():g} s per gradient; harmonic mean "
        f"{gain.harmonic_mean:.4g} s, longest delay {gain.max_delay:.4g} steps; {budget_seconds:g} s; {constants}",
        highlight=False,
        markup=False,
    )
    console.print(_table_1(first, steps))
    console.print(_table_2(second, budget_seconds))
    console.print(_ranking(ranked, settings))
    console.print(_about_workers(gain), highlight=False, markup=False)
    bound = _lower_bound(settings)
    if bound:
        console.print(bound, highlight=False, markup=False)


def _table_1(rows: list[nw.theory.Table1Row], steps: int) -> Table:
    title = f"Table 1: rates after {steps:,} gradients, without constants and logarithms"
    table = number_table(title, ["method"], ["convex,\nF − F*", "strongly convex,\nF − F*", "non-convex,\n‖∇F‖²"])
    for row in rows:
        values = (row.convex, row.strongly_convex, row.nonconvex)
        table.add_row(
            row.method, *("a constant\nis missing" if math.isnan(value) else f"{value:.3g}" for value in values)
        )
    return table


def _table_2(rows: list[nw.theory.Table2Row], budget_seconds: float) -> Table:
    title = f"Table 2: {budget_seconds:g} seconds"
    table = number_table(title, ["method"], ["updates", "optimisation\nterm", "speedup"])
    for row in rows:
        table.add_row(row.method, f"{row.updates:,}", f"{row.optimisation:.3g}", f"{row.speedup:.3g}")
    return table


def _ranking(rows: list[nw.theory.RankedMethod], settings: TablesSettings) -> Table:
    measure = "‖∇F‖²" if settings.setting in ("nonconvex", "nonconvex-lipschitz", "heterogeneous") else "F − F*"
    title = f"{settings.setting}: when {measure} ≤ {settings.accuracy:g} is guaranteed"
    table = number_table(title, ["method", "with"], ["steps", "seconds"])
    for row in rows:
        p = row.prescription
        if p is None:
            table.add_row(row.method, "", "", "never")
        else:
            table.add_row(row.method, _parameters(p, len(settings.seconds)), f"{p.steps:,}", f"{row.seconds:,.6g}")
    return table


def _parameters(p: nw.theory.Prescription, workers: int) -> str:
    """Return the numbers that were chosen, as text: the parameters, and how many workers if not all are used."""
    chosen = [f"{name}={value:,}" for name, value in p.parameters.items() if not isinstance(value, bool)]
    return ", ".join(chosen + ([f"{p.workers} of {workers} workers"] if p.workers < workers else []))


def _ranked_json(row: nw.theory.RankedMethod) -> dict[str, Any]:
    p = row.prescription
    if p is None:
        return {"method": row.method, "seconds": row.seconds}
    return {
        "method": row.method,
        "seconds": row.seconds,
        "call": p.call,
        "stepsize": str(p.stepsize),
        "workers": p.workers,
        "steps": p.steps,
        "guarantee": float(p.guarantee.best),
    }


def _lower_bound(settings: TablesSettings) -> str:
    """Return a sentence on the lower bound, in the settings that have one."""
    if settings.setting not in ("nonconvex", "heterogeneous"):
        return ""
    least = nw.theory.lower_bound_time(settings.seconds, settings.constants, settings.accuracy, settings.setting)
    return (
        f"On the hardest function with these constants no method can be faster than {least:,.4g} s times a constant, "
        f"whose value is not known (Tyurin and Richtárik 2023)."
    )


def _about_workers(gain: nw.theory.Speedup) -> str:
    slow = gain.worth_removing
    words = f"it would be smaller without worker {' or '.join(map(str, slow[:10]))}" if slow else ""
    return (
        f"A further worker makes the optimisation term M/K smaller if it takes at most {gain.harmonic_mean:.4g} s"
        + (f"; {words}. " if words else ". ")
        + "The noise term gains from every worker."
    )
