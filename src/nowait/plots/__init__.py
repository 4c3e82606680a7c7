"""Figures of runs, with matplotlib."""

from nowait.plots.figures import delays, errors, race, sweep

__all__ = ["delays", "errors", "race", "sweep"]
