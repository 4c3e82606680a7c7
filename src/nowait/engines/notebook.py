"""Output of a notebook cell that is replaced in place, through the display protocol of IPython: no widgets needed."""

from __future__ import annotations

import sys
from typing import Any, final


def in_notebook() -> bool:
    """Return True if this code runs in a Jupyter kernel, also that of an editor or of a service."""
    shells, core = sys.modules.get("ipykernel.zmqshell"), sys.modules.get("IPython")
    if shells is None or core is None:  # a kernel has imported both
        return False
    return isinstance(core.get_ipython(), shells.ZMQInteractiveShell)


@final
class CellOutput:
    """One output of the current cell. It appears at the first ``show``; later calls replace it."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, html: str, text: str) -> None:
        """Show HTML, and the text in front ends without HTML."""
        from IPython.display import display

        data = {"text/html": html, "text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)

    def clear(self) -> None:
        """Remove what is shown."""
        if self._handle is not None:
            self._handle.update({"text/html": "", "text/plain": ""}, raw=True)
            self._handle = None
