"""Recorded jobs on the command line: a file, the traces of several ranks, the folder of a run, or a job's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nowait.cli.results import open_console
from nowait.cli.texts import numbers
from nowait.speeds import Fixed, Recorded, Speeds, alibaba

ALIBABA = "alibaba:"


def record_of(files: Sequence[str], options: Mapping[str, str | None] | None = None) -> Recorded:
    """Return the recorded job in these files. ``options`` are keyword arguments of ``Recorded.read``."""
    given = {name: value for name, value in (options or {}).items() if value is not None}
    if len(files) == 1 and files[0].startswith(ALIBABA):
        if given:
            raise ValueError(f"{files[0]} comes with the package: omit options that describe a file")
        return alibaba(_job(files[0].removeprefix(ALIBABA)))
    try:
        with open_console(stderr=True).status(f"reading {files[0]}"):
            return Recorded.read(list(files), **given)
    except ImportError as error:
        raise ValueError(str(error)) from error


def speeds_of(text: str, option: str) -> Speeds:
    """Return the speeds that an option gives: seconds per gradient with commas between them, or a recorded job."""
    if text.startswith(ALIBABA) or (text and Path(text).exists()):
        return record_of([text])
    return Fixed(numbers(text, option))


def _job(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"the jobs that come with the package are alibaba:1 to alibaba:4, got {ALIBABA}{text}")
    return int(text)
