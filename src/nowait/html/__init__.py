"""HTML for notebooks: small tables and sparklines, without scripts, and readable on light and dark backgrounds."""

from nowait.html.elements import card, preformatted, sentences, table
from nowait.html.numbers import shown
from nowait.html.sparkline import sparkline

__all__ = ["card", "preformatted", "sentences", "shown", "sparkline", "table"]
