"""What a notebook shows of the results of studies: small tables with sparklines, as HTML."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nowait.html import card, preformatted, sentences, shown, sparkline, table
from nowait.recording.notebook import loss_sparkline

if TYPE_CHECKING:
    from nowait.studies.advice import Advice
    from nowait.studies.bench.result import Bench
    from nowait.studies.certify import Certificate
    from nowait.studies.race import Race
    from nowait.studies.reproduce.result import Reproduction
    from nowait.studies.tolerated import Tolerance
    from nowait.studies.tune import Tuning
    from nowait.studies.whatif_result import WhatIf


def html_of_race(race: Race) -> str:
    """Return a row for every method, and the findings."""
    rows = []
    for row in race.rows:
        loss = "diverged" if row.diverged else shown(row.loss)
        delays = f"{shown(row.delay_median)} / {shown(row.delay_max)}"
        counts = (shown(row.steps), shown(row.gradients), delays)
        rows.append([row.method, loss_sparkline(race.runs[row.method][0]), loss, *counts, times(row.measured)])
    header = ["method", "", "loss", "steps", "gradients", "delay median / max", "speedup"]
    virtual = "virtual " if race.engine == "simulate" else ""
    note = f"{shown(race.seconds)} {virtual}seconds for every method"
    return card(f"Race on {race.problem}", table(header, rows), sentences(race.findings), note=note)


def times(factor: float | None) -> str:
    """Return a speedup as 2.5 ×, or a dash if there is none."""
    return f"{shown(factor)} ×" if factor is not None and math.isfinite(factor) else "–"


def html_of_advice(advice: Advice) -> str:
    """Return the simulated methods, the fastest first, and the sentences."""
    rows = []
    for one in advice.simulated:
        if math.isinf(one.seconds):
            rows.append([one.method, "–", f"over {shown(advice.budget_seconds)}", "–", "–"])
            continue
        numbers = (shown(one.stepsize), shown(one.seconds), shown(round(one.gradients)))
        rows.append([one.method, *numbers, times(advice.minibatch.seconds / one.seconds)])
    header = ["method", "stepsize", "seconds to the target", "gradients", "speedup over minibatch SGD"]
    note = f"from {advice.source}; simulated on {advice.problem}, to a loss of {shown(advice.target_loss)}"
    return card("Plan", table(header, rows), sentences(advice.sentences), note=note)


def html_of_certificate(found: Certificate) -> str:
    """Return every theorem with its measured error, its guarantee and the verdict."""
    rows = []
    for row in found.rows:
        broken = f", broken: {', '.join(row.lemmas_broken)}" if row.lemmas_broken else ""
        numbers = (shown(row.longest_delay), shown(row.mean), shown(row.guarantee), shown(row.sharpened))
        rows.append([row.theorem, row.problem, row.pattern, row.verdict + broken, *numbers])
    header = ["theorem", "problem", "delays", "verdict", "longest delay", "error", "guarantee", "sharper bound"]
    title = "No guarantee is violated" if found.holds else "A guarantee or a lemma is violated"
    note = f"{found.workers} workers, {found.steps:,} steps, {found.seeds} seeds"
    return card(title, table(header, rows, text_columns=4), note=note)


def html_of_tuning(found: Tuning) -> str:
    """Return every trial, the smallest stepsize first."""
    rows = []
    for trial in sorted(found.trials, key=lambda trial: trial.stepsize):
        curve = sparkline(trial.history.loss.tolist(), "loss at every evaluation")
        word = "diverged" if trial.diverged else ("best" if trial is found.best else "")
        numbers = (trial.value, trial.steps, trial.mean_delay)
        reached = "–" if math.isinf(trial.seconds_to_target) else shown(trial.seconds_to_target)
        momentum = [] if trial.momentum is None else [shown(trial.momentum)]
        rows.append([shown(trial.stepsize), *momentum, curve, *map(shown, numbers), reached, word])
    header = [
        "stepsize",
        *(["momentum"] if found.momentum is not None else []),
        "",
        found.monitor.name,
        "steps",
        "mean delay",
        "seconds to the target",
        "",
    ]
    best = "every trial diverged" if found.diverged else f"best stepsize {shown(found.stepsize)}"
    return card("Tuning", table(header, rows), sentences([found.advice]), note=f"{len(found.trials)} trials, {best}")


def html_of_whatif(found: WhatIf) -> str:
    """Return the alternatives and the sentences."""
    rows = []
    for one in found.alternatives:
        saved = [_percent(value) for value in (one.saved, one.low, one.high)]
        ends = ["", ""] if one is found.synchronous else [saved[0], f"{saved[1]} to {saved[2]}"]
        rows.append([one.name, shown(one.seconds), *ends])
    header = ["the same gradients", "seconds", "ends sooner by", "range (95 %)"]
    note = f"{found.speedup.workers} workers, {found.steps:,} steps"
    return card(f"What if: {found.source}", table(header, rows), sentences(found.sentences), note=note)


def _percent(share: float) -> str:
    return f"{shown(round(100 * share))} %"


def html_of_bench(found: Bench) -> str:
    """Return the standings of the methods."""
    rows = [
        [one.method, f"{one.score:.3f}", shown(one.mean_rank), shown(one.wins), f"{one.reached} of {one.columns}"]
        for one in found.standings()
    ]
    note = f"{len(found.scores.columns)} pairs of a problem and a cluster"
    return card("Benchmark", table(["method", "score", "mean rank", "best in", "reached"], rows), note=note)


def html_of_reproduction(found: Reproduction) -> str:
    """Return what the paper reports beside what was measured, and the error of every method."""
    claims = [[claim.reported, claim.got, claim.agreement, claim.source] for claim in found.claims]
    curves = []
    for curve in found.curves:
        line = sparkline(curve.middle[1].tolist(), "median error")
        curves.append([curve.panel, curve.label, line, "diverged" if curve.diverged else shown(curve.final)])
    parts = [table(["panel", "method", "", "final error"], curves, text_columns=2)]
    if claims:
        parts.insert(0, table(["the paper reports", "measured", "", "source"], claims, text_columns=4))
    return card(f"Reproduction of {found.citation}", *parts, note="quick" if found.quick else "")


def html_of_tolerance(found: Tolerance) -> str:
    """Return the text of the study, which is a table."""
    return card("Tolerance of delays", preformatted(str(found)))
