"""Where progress is drawn: on the terminal with rich, or in the output of a notebook cell."""

from __future__ import annotations

import contextlib
import io
import sys
from html import escape
from time import monotonic
from typing import Any, Protocol, final

from nowait.engines.notebook import CellOutput, in_notebook
from nowait.html import preformatted

SECONDS_BETWEEN_DRAWINGS = 0.2
"""A bar in a notebook is redrawn no more often than this."""
NOTEBOOK_COLUMNS = 100


def is_on_terminal() -> bool:
    """Return True if standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def is_watched() -> bool:
    """Return True if a person can see progress: on a terminal or in a notebook."""
    return is_on_terminal() or in_notebook()


class Screen(Protocol):
    """Shows something that is replaced by the next thing shown."""

    def show(self, content: Any) -> None:
        """Show a renderable of rich instead of the last one."""

    def close(self) -> None:
        """Remove what is shown."""


class Bar(Protocol):
    """A progress bar."""

    def show(self, share: float | None, words: str = "") -> None:
        """Show the finished fraction of the work, None if it is not known, and what else there is to say."""

    def close(self) -> None:
        """Remove the bar."""


def open_screen() -> Screen:
    """Return the screen that can be used here."""
    return NotebookScreen() if in_notebook() else TerminalScreen()


def open_bar(label: str) -> Bar:
    """Return the bar that can be used here."""
    return NotebookBar(label) if in_notebook() else TerminalBar(label)


@final
class TerminalScreen:
    """Redraws the last lines of the terminal."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(console=_console(), auto_refresh=False, transient=True)
        self._live.start()

    def show(self, content: Any) -> None:
        """Show it."""
        self._live.update(content, refresh=True)

    def close(self) -> None:
        """Remove it, unless the terminal was closed."""
        with contextlib.suppress(OSError):
            self._live.stop()


@final
class NotebookScreen:
    """Shows the same text as the terminal in the output of the cell."""

    def __init__(self) -> None:
        self._output = CellOutput()

    def show(self, content: Any) -> None:
        """Show it."""
        text = _plain(content)
        self._output.show(preformatted(text), text)

    def close(self) -> None:
        """Remove it."""
        self._output.clear()


@final
class TerminalBar:
    """The bar of rich, with a spinner and the time so far."""

    def __init__(self, label: str) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        text = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
        numbers = (BarColumn(bar_width=24), TextColumn("{task.fields[share]}"), TimeElapsedColumn())
        columns = (*text, *numbers, TextColumn("{task.fields[words]}", markup=False))
        self._bar = Progress(*columns, console=_console(), transient=True)
        self._task = self._bar.add_task(label, total=None, share="", words="")
        self._bar.start()

    def show(self, share: float | None, words: str = "") -> None:
        """Show the share and the words."""
        percent = "" if share is None else f"{share:.0%}"
        total = None if share is None else 1.0
        self._bar.update(self._task, completed=share or 0.0, total=total, share=percent, words=words)

    def close(self) -> None:
        """Remove the bar, unless the terminal was closed."""
        with contextlib.suppress(OSError):
            self._bar.stop()


@final
class NotebookBar:
    """The progress element of HTML, which every browser draws in the colours of the page."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._output = CellOutput()
        self._began = monotonic()
        self._last = -SECONDS_BETWEEN_DRAWINGS

    def show(self, share: float | None, words: str = "") -> None:
        """Show the share and the words, unless the bar was drawn a moment ago."""
        passed = monotonic() - self._began
        if passed - self._last < SECONDS_BETWEEN_DRAWINGS:
            return
        self._last = passed
        text = f"{self._label}, {passed:.0f} s" if share is None else f"{self._label} {share:.0%}, {passed:.0f} s"
        text = f"{text}, {words}" if words else text
        value = "" if share is None else f' value="{share:.3f}"'
        self._output.show(f'<progress max="1"{value}></progress> {escape(text)}', text)

    def close(self) -> None:
        """Remove the bar."""
        self._output.clear()


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False)


def _plain(content: Any) -> str:
    """Return what rich would draw, as text without colours."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=NOTEBOOK_COLUMNS, color_system=None, force_jupyter=False, emoji=False)
    console.print(content, markup=False)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())
