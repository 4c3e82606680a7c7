"""The page of a benchmark: one HTML file that works offline. Text comes from here, numbers from the results."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from nowait.plots import phases, profiles
from nowait.recording.files import replace_file
from nowait.studies.bench.records import Entry
from nowait.studies.bench.result import Bench
from nowait.studies.bench.scores import Scores, Standing
from nowait.studies.bench.suite import Suite, Workload

ASSETS = Path(__file__).with_name("assets")
PAGE = "index.html"
BEST_SHADE = 0.55
"""The opacity of the colour behind the best time of a column."""


def write_page(bench: Bench, suite: Suite, folder: Path, command: str) -> Path:
    """Write the page of a benchmark to a folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / PAGE, page(bench, suite, command).encode())
    return folder / PAGE


def page(bench: Bench, suite: Suite, command: str) -> str:
    """Return the page as HTML."""
    css, script = (ASSETS / "page.css").read_text(), (ASSETS / "page.js").read_text()
    parts = [
        *_introduction(bench, suite, command),
        *_standings(bench.standings(), len(bench.scores.columns)),
        "<h2>Performance profiles</h2>",
        "<p>The share of columns in which a method takes at most r times as long as the best one.</p>",
        _image(profiles(bench), "Performance profiles of the methods"),
        *_phase_diagram(bench),
        *_tables(bench, suite),
        *_rules(suite),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>nowait benchmark, {escape(suite.name)} suite</title>\n<style>\n{css}</style>\n</head>\n"
        '<body data-shown="seconds">\n' + "\n".join(parts) + f"\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _introduction(bench: Bench, suite: Suite, command: str) -> Iterator[str]:
    header = bench.header
    yield "<h1>Benchmark of optimisation methods</h1>"
    yield (
        f'<p class="soft">{escape(suite.name)} suite, version {escape(header["version"])}, digest '
        f"<code>{escape(header['digest'][:16])}</code>; nowait {escape(header['nowait'])}; {escape(header['date'])}; "
        f"<code>{escape(command)}</code></p>"
    )
    yield (
        f"<p>{len(bench.scores.methods)} methods on {len(bench.scores.columns)} pairs of a problem and a cluster of "
        "ten workers, in virtual time. Each method is tuned with the same number of trials; its best setting runs with "
        "other seeds. What counts is the time until the loss reaches the target of the problem.</p>"
    )


def _standings(standings: list[Standing], columns: int) -> Iterator[str]:
    yield "<h2>Over all problems and clusters</h2>"
    yield (
        "<p>The score is the area under the performance profile up to 4 times the best time, as in AlgoPerf: 1 would "
        f"be the best in all {columns} columns. “Best” counts the columns in which the median is within 5 % of the "
        "best; “reached” those in which the median reached the target.</p>"
    )
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(f"<th>{name}</th>" for name in ("method", "score", "mean rank", "best", "reached"))
    yield "</tr></thead><tbody>"
    for standing in standings:
        yield (
            f"<tr><td>{escape(standing.method)}</td><td>{standing.score:.3f}</td><td>{standing.mean_rank:.1f}</td>"
            f"<td>{standing.wins}</td><td>{standing.reached} of {standing.columns}</td></tr>"
        )
    yield "</tbody></table></div>"


def _phase_diagram(bench: Bench) -> Iterator[str]:
    if not bench.phases:
        return
    yield "<h2>The fastest method by noise and spread of speeds</h2>"
    yield (
        "<p>A quadratic with a condition number of 10; the target is 1 % of the loss at the start. Each of six methods "
        "is tuned at every point. Circles are the four recorded jobs, numbered: each has the colour of the method that "
        "is first with the times of the job itself. ≈ marks a lead of less than 5 %.</p>"
    )
    yield _image(phases(bench), "Phase diagram: the first method by noise, spread of speeds and number of workers")


def _tables(bench: Bench, suite: Suite) -> Iterator[str]:
    yield "<h2>Time to the target</h2>"
    yield (
        "<p>The median over the seeds in virtual seconds with its range, as a multiple of the best median of the "
        "column, or the rank in the column; – is not reached. Point at a number for its setting; click a heading to "
        "sort.</p>"
    )
    yield (
        '<p><button data-show="seconds" aria-pressed="true">seconds</button>'
        '<button data-show="ratios" aria-pressed="false">multiples of the best</button>'
        '<button data-show="ranks" aria-pressed="false">ranks</button></p>'
    )
    for workload in suite.workloads:
        own = [entry for entry in bench.entries if entry.problem == workload.problem.name]
        if own:
            yield f"<h2>{escape(workload.problem.title.capitalize())}</h2>"
            yield f"<p>Target: a loss of {workload.problem.target:g} within {workload.problem.seconds:g} s.</p>"
            yield from _table(Scores(own), suite)


def _table(scores: Scores, suite: Suite) -> Iterator[str]:
    yield '<div class="scroll"><table><thead><tr><th>method</th>'
    for _, cluster in scores.columns:
        yield f'<th title="{escape(suite.clusters[cluster].title)}">{escape(cluster)}</th>'
    yield "</tr></thead><tbody>"
    ratios, ranks = scores.ratios, scores.ranks
    for method in (standing.method for standing in scores.standings()):
        place = scores.methods.index(method)
        cells = (
            _cell(scores.entries.get((method, column)), float(ratio), float(rank))
            for column, ratio, rank in zip(scores.columns, ratios[place], ranks[place], strict=True)
        )
        yield f"<tr><td>{escape(method)}</td>" + "".join(cells) + "</tr>"
    yield "</tbody></table></div>"


def _cell(entry: Entry | None, ratio: float, rank: float) -> str:
    if entry is None:
        return "<td></td>"
    note = escape(_note(entry))
    if not math.isfinite(entry.median):
        return f'<td class="missed" data-value="1e9" title="{note}">–</td>'
    shade = BEST_SHADE * max(0.0, 1.0 - math.log(ratio) / math.log(4.0))
    kind = ' class="best"' if ratio <= 1.05 else ""
    return (
        f'<td{kind} data-value="{entry.median:.6g}" title="{note}" style="background: rgba(var(--good), {shade:.2f})">'
        f'<span class="seconds">{_seconds(entry.median)} <small>{_range(entry)}</small></span>'
        f'<span class="ratios">{ratio:.2f}</span><span class="ranks">{rank:g}</span></td>'
    )


def _range(entry: Entry) -> str:
    """Return the shortest and the longest time over the seeds."""
    longest = max(entry.times)
    return f"{_seconds(min(entry.times))}–{'∞' if longest == math.inf else _seconds(longest)}"


def _note(entry: Entry) -> str:
    reached = sum(time < math.inf for time in entry.times)
    return (
        f"reached by {reached} of {len(entry.times)} seeds; {entry.config['method']}; "
        f"update: {entry.config['update']}. nowait bench --verify FOLDER --only '{entry.task.key}'"
    )


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _rules(suite: Suite) -> Iterator[str]:
    yield "<h2>Rules</h2><ul>"
    for workload in suite.workloads:
        yield f"<li>{_rule(workload)}</li>"
    yield (
        "<li>The clusters have ten workers, and the harmonic mean of their seconds per gradient is 1: with all workers "
        "busy every cluster computes ten gradients per second.</li>"
    )
    for name in dict.fromkeys(cluster for workload in suite.workloads for cluster in workload.clusters):
        yield f"<li><b>{escape(name)}</b>: {escape(suite.clusters[name].title)}</li>"
    yield (
        "<li>alibaba-1 to alibaba-4 are production jobs of Alibaba's cluster-trace-gpu-v2020 (CC BY 4.0; Xiao et al., "
        "AntMan, OSDI 2020). The data sets are from the UCI repository (CC BY 4.0).</li></ul>"
    )


def _rule(workload: Workload) -> str:
    return (
        f"{escape(workload.problem.title)}: {workload.tuning.trials} trials on {len(workload.tuning_seeds)} tuning "
        f"{'seed' if len(workload.tuning_seeds) == 1 else 'seeds'}, {len(workload.seeds)} other seeds for the result, "
        f"an evaluation every {workload.evaluate_seconds:g} s"
    )


def _image(figure: Figure, words: str) -> str:
    """Return a figure as an image inside the page."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<figure><img src="data:image/png;base64,{data}" alt="{escape(words)}"></figure>'
