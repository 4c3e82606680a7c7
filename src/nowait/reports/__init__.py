"""Reports of runs, each a single self-contained HTML file; and the chart library of such pages."""

from nowait.reports.charts import chart_script, chart_style, json_for_page
from nowait.reports.page import write_report

__all__ = ["chart_script", "chart_style", "json_for_page", "write_report"]
