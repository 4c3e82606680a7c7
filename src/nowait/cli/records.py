"""Recorded jobs on the command line: a file, the traces of several ranks, the folder of a run, or a job's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nowait.cli.results import open_console
from nowait.cli.texts import numbers
from nowait.core import checks
from nowait.speeds import Fixed, Recorded, Speeds, alibaba
from nowait.studies.own_code import names_a_file, object_in

ALIBABA = "alibaba:"


def record_of(files: Sequence[str], options: Mapping[str, Any] | None = None) -> Recorded:
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
    """Return the speeds that an option gives: seconds with commas between them, a recorded job, or file.py:name."""
    if text.startswith(ALIBABA) or (text and Path(text).exists()):
        return record_of([text])
    if names_a_file(text):
        return _own_speeds(text)
    return Fixed(numbers(text, option))


def _own_speeds(text: str) -> Speeds:
    """Return the speeds that a Python file has under a name, or that its function of this name returns."""
    made = object_in(text, "a speed model of your own")
    if callable(made) and not isinstance(made, Speeds):
        try:
            made = made()
        except TypeError as error:
            raise TypeError(f"{text} is called without arguments, and returns speeds: {error}") from None
    return checks.instance(made, Speeds, text, "nw.speeds.Exponential(1.0, workers=8)")


def _job(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"the jobs that come with the package are alibaba:1 to alibaba:4, got {ALIBABA}{text}")
    return int(text)
