"""Reports of runs, each a single self-contained HTML file."""

from nowait.reports.page import write_report

__all__ = ["write_report"]
