"""Figures of runs, with matplotlib."""

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

__all__ = ["delays", "errors", "longest_delay", "race", "reproduction", "sweep", "timeline", "tolerance", "work_share"]
