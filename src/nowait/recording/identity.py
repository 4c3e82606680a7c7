"""The id of a run, which all its files have: files of two runs that were mixed up are noticed."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from nowait.recording.errors import DamagedFileError

RUN = "run"
"""The entry with the id, in every file."""
ID = re.compile(r"[0-9a-f]{16}")


@final
class OtherRunError(ValueError):
    """A file in the folder of a run is that of another run."""


@final
class EarlierVersionError(ValueError):
    """A folder was written by a version of nowait whose files have no id of the run."""


def new_run_id() -> str:
    """Return a random id for a run. It has nothing to do with the run's seed, and no result depends on it."""
    return secrets.token_hex(8)


def checked_id(value: Any) -> str:
    """Return the id of a run, or raise."""
    if not isinstance(value, str) or ID.fullmatch(value) is None:
        raise ValueError(f"it must be the id of the run, 16 hexadecimal digits, got {value!r:.80}")
    return value


def check_version(config: Mapping[str, Any], folder: Path) -> None:
    """Raise ``EarlierVersionError`` if a run's ``config.json`` has no id."""
    if RUN not in config:
        raise EarlierVersionError(
            f"{folder} was written by an earlier version of nowait, whose files have no id of the run (config.json has "
            f"no {RUN}): read or resume it with that version"
        )


def run_in(config: Mapping[str, Any], folder: Path) -> str:
    """Return the id in a run's ``config.json``. Raises ``EarlierVersionError`` if it has none."""
    check_version(config, folder)
    try:
        return checked_id(config.get(RUN))
    except ValueError as error:
        raise DamagedFileError(folder / "config.json", f'its entry "{RUN}" is wrong: {error}') from None


def check_run(path: Path, theirs: Any, run: str) -> None:
    """Raise ``OtherRunError`` if a file has another id than the ``config.json`` of its folder."""
    if theirs != run:
        name = f"run {theirs}" if theirs else "no run"
        raise OtherRunError(
            f"{path} is of {name}, but config.json of that folder is of run {run}: files of different runs were mixed "
            f"up; put back those of one run"
        )
