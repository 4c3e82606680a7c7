"""Figures of runs and studies, with matplotlib, for notebooks and papers.

Every function returns a ``Figure``: a notebook shows it, ``savefig`` writes it. ``width`` is the width of the figure in
inches; text is 8 to 9 points whatever the width. ``ax`` draws into axes of your own, one for every panel, and returns
them: a notebook shows their figure once, by itself.
"""

from nowait.plots.bench_figures import phases, profiles
from nowait.plots.rule_pays import rule_pays
from nowait.plots.runs import delays, errors, race
from nowait.plots.studies import longest_delay, reproduction, sweep, tolerance
from nowait.plots.waiting import waiting
from nowait.plots.whatif import whatif
from nowait.plots.workers import timeline, work_share

__all__ = [
    "delays",
    "errors",
    "longest_delay",
    "phases",
    "profiles",
    "race",
    "reproduction",
    "rule_pays",
    "sweep",
    "timeline",
    "tolerance",
    "waiting",
    "whatif",
    "work_share",
]
