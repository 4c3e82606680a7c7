"""Reader for LIBSVM files."""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from nowait.core import checks
from nowait.core.types import Floats

LARGEST_INDEX = 2**31 - 1
FREE_WIDTH = 2**24
"""The number of features that any file may have. A wider matrix needs as many values in the file, or ``dimension``:
otherwise a file of a few bytes could make every vector take gigabytes."""
LONGEST_LINE = 2**26
"""The maximum length of a line in characters; a compressed file of a few kilobytes may contain a line of gigabytes."""
OPENERS: dict[str, Callable[..., IO[Any]]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def read_libsvm(path: str | Path, dimension: int | None = None) -> tuple[Any, Floats]:
    """Read lines ``label index:value …`` with indices from 1; return a sparse matrix of features and the labels.

    ``path`` is a plain file, or one compressed as .gz, .bz2 or .xz. Text after ``#`` and empty lines are skipped. The
    error for a malformed line contains its number. The number of columns is the largest index, or ``dimension``. An
    index above 16,777,216 and above the number of values in the file is an error unless ``dimension`` is given.
    """
    from scipy.sparse import csr_array

    labels: list[float] = []
    columns: list[int] = []
    values: list[float] = []
    ends = [0]
    file_path = Path(checks.path(path, "path"))
    if not file_path.is_file():
        raise FileNotFoundError(f"{file_path} does not exist: give the path of a LIBSVM file")
    opener = OPENERS.get(file_path.suffix, open)
    with opener(path, mode="rt", encoding="utf-8", errors="backslashreplace") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), start=1):
            if len(line) == LONGEST_LINE:
                raise ValueError(
                    f"{path}, line {number} has at least {LONGEST_LINE:,} characters: is it a LIBSVM file?"
                )
            tokens = line.partition("#")[0].split()
            if tokens:
                _read_line(tokens, f"{path}, line {number}", labels, columns, values)
                ends.append(len(columns))
    if not labels:
        raise ValueError(f"{path} has no rows")
    width = _width(path, columns, dimension)
    return csr_array((values, columns, ends), shape=(len(labels), width)), np.array(labels)


def _read_line(tokens: list[str], where: str, labels: list[float], columns: list[int], values: list[float]) -> None:
    labels.append(_number(tokens[0], where, "a label"))
    last = -1
    for token in tokens[1:]:
        index, colon, value = token.partition(":")
        if not colon or not index.isdecimal():
            raise ValueError(f"{where}: expected index:value, got {token!r}")
        column = _column(index, where)
        if column < 0:
            raise ValueError(f"{where}: index 0 in {token!r}, but LIBSVM indices start at 1")
        if column <= last:
            raise ValueError(f"{where}: index {index} follows {last + 1}, but indices must increase along a line")
        last = column
        columns.append(column)
        values.append(_number(value, where, f"the value of index {index}"))


def _column(index: str, where: str) -> int:
    digits = index.lstrip("0") or "0"
    if len(digits) > len(str(LARGEST_INDEX)) or int(digits) > LARGEST_INDEX:
        raise ValueError(f"{where}: index {index:.30} is larger than {LARGEST_INDEX:,}")
    return int(digits) - 1


def _number(text: str, where: str, what: str) -> float:
    try:
        number = float(text.replace("_", "?"))  # Python would read 1_0 as 10
    except ValueError:
        raise ValueError(f"{where}: {what} must be a number, got {text!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{where}: {what} must be finite, got {text!r}")
    return number


def _width(path: str | Path, columns: list[int], dimension: int | None) -> int:
    needed = max(columns, default=-1) + 1
    if dimension is None:
        if needed > max(FREE_WIDTH, len(columns)):
            raise ValueError(
                f"{path} has {len(columns):,} values but the index {needed:,}, so every vector would take "
                f"{needed * 8 / 2**30:.3g} GiB: give dimension={needed} if that is meant"
            )
        return max(1, needed)
    checks.at_least(1, dimension, "dimension", "a row needs entries")
    if dimension < needed:
        raise ValueError(f"{path} has indices up to {needed}, more than dimension={dimension}")
    return dimension
