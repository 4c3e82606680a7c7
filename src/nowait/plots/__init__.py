"""Figures of runs, with matplotlib."""

from nowait.plots.bench_figures import phases, profiles
from nowait.plots.figures import (
    delays,
    errors,
    longest_delay,
    race,
    reproduction,
    sweep,
    timeline,
    tolerance,
    work_share,
)
from nowait.plots.whatif import whatif

__all__ = [
    "delays",
    "errors",
    "longest_delay",
    "phases",
    "profiles",
    "race",
    "reproduction",
    "sweep",
    "timeline",
    "tolerance",
    "whatif",
    "work_share",
]
