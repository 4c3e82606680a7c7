"""A report of runs: one HTML file with everything in it."""

from nowait.reports.page import write_report

__all__ = ["write_report"]
