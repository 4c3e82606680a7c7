"""The paper that figures are drawn on: its size, its panels and its one legend."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from nowait.core import checks
from nowait.plots.style import FONTS_IN_FILES, TEXT_SIZES

Into = Axes | Sequence[Axes] | None
"""The axes to draw into; None makes a new figure."""
Drawn = Figure | Any
"""A new figure, or the axes that were given: a notebook shows their figure by itself, and would show it twice."""
USUAL_WIDTHS = {1: 5.2, 2: 8.4}
WIDEST = 10.8
"""The width of a new figure with three panels or more, in inches."""
NARROWEST_PANEL = 2.1
"""Panels stand side by side if each has this many inches, otherwise one above the other."""
HEIGHT_OF_WIDTH, LOWEST, HIGHEST = 0.74, 1.9, 3.6
"""The height of a panel: this share of its width, between these limits in inches."""
INCHES_PER_TICK = 0.6
CHARACTERS_PER_INCH = 15
"""Of text with 9 points."""
DOTS_PER_INCH = 192
"""Of the image in a notebook, which is shown at half its size, so that it is sharp on every screen."""


@final
class PaperFigure(Figure):
    """A matplotlib ``Figure`` that notebooks show, and whose files contain fonts and text as publishers ask for."""

    def savefig(self, fname: Any, **kwargs: Any) -> None:
        """Write a file as ``Figure.savefig`` does, with TrueType fonts in PDF and text as text in SVG."""
        with mpl.rc_context(FONTS_IN_FILES):
            super().savefig(fname, **kwargs)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=DOTS_PER_INCH)
        width, height = (round(inches * DOTS_PER_INCH / 2) for inches in self.get_size_inches())
        return file.getvalue(), {"width": width, "height": height}


@final
class Sheet:
    """A figure and the axes to draw into."""

    def __init__(self, figure: Figure, axes: list[Axes], columns: int, *, is_new: bool) -> None:
        self.figure = figure
        self.axes = axes
        self._columns = columns
        self._is_new = is_new
        """False if the axes are the user's: their sizes and texts are not changed."""

    @property
    def drawn(self) -> Drawn:
        """The new figure; if the axes are the user's, these: one, or a list."""
        if self._is_new:
            return self.figure
        return self.axes[0] if len(self.axes) == 1 else self.axes

    def legend(self, handles: Sequence[Any] | None = None) -> None:
        """Draw one legend for all panels: above them in a new figure, in the first panel if the axes are the user's.

        Without ``handles`` it names every label of the panels once.
        """
        if handles is None:
            found = [axes.get_legend_handles_labels() for axes in self.axes]
            pairs = {text: one for ones, texts in found for one, text in zip(ones, texts, strict=True)}
        else:
            pairs = {str(one.get_label()): one for one in handles}
        if not pairs:
            return
        if self._is_new:
            self._add_height(_legend_above(self.figure, pairs).get_window_extent().height / self.figure.dpi)
        else:
            self.axes[0].legend(list(pairs.values()), list(pairs))

    def title(self, words: str) -> None:
        """Write a title over all panels, in lines that fit, if the figure is new."""
        if self._is_new:
            lines = textwrap.wrap(words, _characters(self.figure))
            self.figure.suptitle("\n".join(lines))
            self._add_height(len(lines) * 12 / 72)

    def height(self, inches: float) -> None:
        """Set the height of a new figure before its legend is drawn."""
        if self._is_new:
            self.figure.set_size_inches(self.figure.get_size_inches()[0], inches)

    @property
    def characters_of_a_panel(self) -> int:
        """How many characters of text fit below a panel."""
        return max(16, int((self.figure.get_size_inches()[0] / self._columns - 0.7) * CHARACTERS_PER_INCH))

    def _add_height(self, inches: float) -> None:
        width, height = self.figure.get_size_inches()
        self.figure.set_size_inches(width, height + inches)


@contextmanager
def new_sheet(panels: int, width: float | None, ax: Into, most_columns: int = 3) -> Iterator[Sheet]:
    """Yield axes for this many panels. While they are drawn into, new texts have the sizes of ``TEXT_SIZES``.

    With ``ax``, the axes are the user's and so are the sizes.
    """
    if ax is not None:
        yield _users_sheet(panels, width, ax)
        return
    usual = USUAL_WIDTHS.get(min(panels, most_columns), WIDEST)
    inches = usual if width is None else checks.positive(width, "width", "it is the width of the figure in inches")
    with mpl.rc_context(TEXT_SIZES):
        sheet = _blank_sheet(panels, inches, most_columns)
        yield sheet
        for axes in sheet.axes:
            axes.tick_params(labelsize=TEXT_SIZES["xtick.labelsize"])  # ticks are made later, when it is drawn
            for text in (axes.xaxis.label, axes.title):
                text.set_text(textwrap.fill(text.get_text(), sheet.characters_of_a_panel))


def _blank_sheet(panels: int, inches: float, most_columns: int) -> Sheet:
    columns = max(1, min(panels, most_columns, int(inches / NARROWEST_PANEL)))
    rows = -(-panels // columns)
    height = min(max(HEIGHT_OF_WIDTH * inches / columns, LOWEST), HIGHEST)
    figure = PaperFigure(figsize=(inches, rows * height), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in places[panels:]:
        axes.remove()
    for axes in places[:panels]:
        axes.locator_params(axis="x", nbins=max(3, int(inches / columns / INCHES_PER_TICK)))
    return Sheet(figure, places[:panels], columns, is_new=True)


def _users_sheet(panels: int, width: float | None, ax: Axes | Sequence[Axes]) -> Sheet:
    axes = list(np.ravel(np.asarray(ax, dtype=object)))
    if width is not None:
        raise ValueError("width= is for a new figure: with ax=, give your own figure the width that you want")
    if len(axes) != panels or not all(isinstance(one, Axes) for one in axes):
        wanted = "a matplotlib Axes" if panels == 1 else f"a sequence of {panels} matplotlib Axes"
        raise TypeError(f"ax must be {wanted}, because this figure has {panels} panel(s), got {ax!r}")
    return Sheet(axes[0].figure.figure, axes, 1, is_new=False)


def _legend_above(figure: Figure, pairs: dict[str, Any]) -> Legend:
    """Draw a legend above the panels with as many columns as fit; long names are wrapped."""
    names = [textwrap.fill(name, _characters(figure) - 8) for name in pairs]
    room = figure.get_size_inches()[0] * figure.dpi
    for columns in range(min(len(names), 6), 0, -1):
        legend = figure.legend(
            list(pairs.values()),
            names,
            loc="outside upper center",
            ncols=columns,
            frameon=False,
            columnspacing=1.2,
            handlelength=2.4,
            borderaxespad=0.2,
        )
        if columns == 1 or legend.get_window_extent().width <= room:
            break
        legend.remove()
    return legend


def _characters(figure: Figure) -> int:
    """Return how many characters of text fit into the width of a figure."""
    return max(20, int(figure.get_size_inches()[0] * CHARACTERS_PER_INCH))
