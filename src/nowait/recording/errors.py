"""The errors for damaged and incomplete folders of runs, and for runs that go on with other settings."""

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


ANYWAY = "\0"
"""Stands in the text of an ``OtherSettingsError`` for how to go on all the same."""
ALLOW = "allow_changes=True"
"""The argument with which a run goes on all the same."""


@final
class OtherSettingsError(ValueError):
    """A run is resumed with other settings than it had. ``ANYWAY`` in the text stands for how to go on all the same."""

    def __init__(self, text: str) -> None:
        super().__init__(text.replace(ANYWAY, ALLOW))
        self._text = text

    def with_option(self, option: str) -> str:
        """Return the message for a command that has this option in place of the argument."""
        return self._text.replace(ANYWAY, option)
