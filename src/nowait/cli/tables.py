"""The tables command: the paper's Tables 1 and 2 with the user's numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

import nowait as nw
from nowait.cli.layout import number_table
from nowait.cli.results import open_console, print_json


def run_tables(seconds: Sequence[float], budget_seconds: float, constants: nw.theory.Constants, as_json: bool) -> None:
    """Compute and print both tables."""
    gain = nw.theory.speedup(seconds)
    second = nw.theory.table_2(seconds, budget_seconds=budget_seconds)
    steps = second[-1].updates
    first = nw.theory.table_1(constants, workers=gain.workers, steps=steps, max_delay=gain.max_delay)
    if as_json:
        print_json({"table_1": first, "table_2": second, "max_delay": gain.max_delay, "steps": steps})
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
    console.print(_about_workers(gain), highlight=False, markup=False)


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


def _about_workers(gain: nw.theory.Speedup) -> str:
    slow = gain.worth_removing
    words = f"it would be smaller without worker {' or '.join(map(str, slow[:10]))}" if slow else ""
    return (
        f"A further worker makes the optimisation term M/K smaller if it takes at most {gain.harmonic_mean:.4g} s"
        + (f"; {words}. " if words else ". ")
        + "The noise term gains from every worker."
    )
