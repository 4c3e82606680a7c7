"""What is raised when a file of a run is not what was written."""

from __future__ import annotations

from typing import Any, final


@final
class DamagedFileError(ValueError):
    """A file of a run does not hold what was written. ``whole``: so many bytes of it do."""

    def __init__(self, name: Any, why: str, whole: int = 0) -> None:
        super().__init__(f"{name} is damaged: {why}")
        self.whole = whole
