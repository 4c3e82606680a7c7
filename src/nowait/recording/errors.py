"""The errors for damaged and incomplete folders of runs."""

from __future__ import annotations

from typing import Any, final


@final
class NotARunError(FileNotFoundError):
    """A folder does not have all files of a run."""


@final
class DamagedFileError(ValueError):
    """A file of a run is damaged. ``whole`` is the number of undamaged bytes at its beginning."""

    def __init__(self, name: Any, why: str, whole: int = 0) -> None:
        super().__init__(f"{name} is damaged: {why}")
        self.name = str(name)
        self.whole = whole
