"""Tables with a row for every time: CSV and Parquet files."""

from __future__ import annotations

import csv
import gzip
import lzma
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, final

import numpy as np

from nowait.core.types import Floats, Integers

CSV_ENDINGS = (".csv", ".tsv", ".txt")
PARQUET_ENDINGS = (".parquet", ".pq")
DAMAGED = (OSError, EOFError, UnicodeDecodeError, csv.Error, lzma.LZMAError, zlib.error)
"""What is raised for a file that is not what its name says."""
DELIMITERS = ",;\t"


@final
@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a file by name. Values of a CSV file are text."""

    path: Path
    columns: dict[str, Sequence[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def has(self, *names: str) -> bool:
        """Return whether there are columns with all these names."""
        return set(names) <= set(self.columns)

    def has_numbers(self, name: str) -> bool:
        """Return whether any value of a column is a number."""
        return any(np.isfinite(_number(value)) for value in self.columns[name])

    def numbers(self, name: str) -> Floats:
        """Return a column as finite numbers, or raise an error that names the first row that has none."""
        values = self.columns[name]
        if isinstance(values, np.ndarray):
            numbers = np.array(values, dtype=np.float64)
        else:
            numbers = np.array([_number(value) for value in values])
        self._check(name, np.isfinite(numbers), "must be a number")
        return numbers

    def durations(self, name: str) -> Floats:
        """Return a column as numbers above 0, or raise an error that names the first row that has none."""
        numbers = self.numbers(name)
        self._check(name, numbers > 0, "must be above 0, because a gradient takes some time,")
        return numbers

    def integers(self, name: str) -> Integers:
        """Return a column as integers, or raise an error that names the first row that has none."""
        numbers = self.numbers(name)
        self._check(name, numbers == np.floor(numbers), "must be a whole number")
        return numbers.astype(np.int64)

    def _check(self, name: str, is_good: Any, must: str) -> None:
        bad = np.flatnonzero(~is_good)
        if len(bad):
            value = self.columns[name][bad[0]]
            came = "it is empty" if value is None or value == "" else f"got {value!r}"
            raise ValueError(f"{self.path}: column {name!r} {must}, {came} in row {bad[0] + 1}")


def read_table(path: Path) -> Table:
    """Read a CSV file, maybe compressed, or a Parquet file."""
    endings = [ending.lower() for ending in path.suffixes]
    table = _read_parquet(path) if endings[-1:] and endings[-1] in PARQUET_ENDINGS else _read_csv(path)
    if not len(table):
        raise ValueError(f"{path} has no rows below the names of its columns: there are no times")
    return table


def is_table(path: Path) -> bool:
    """Return whether the name of a file is that of a table."""
    endings = [ending.lower() for ending in path.suffixes if ending.lower() not in (".gz", ".xz")]
    return bool(endings) and endings[-1] in CSV_ENDINGS + PARQUET_ENDINGS


def open_text(path: Path) -> TextIO:
    """Open a text file, which may be compressed with gzip or xz."""
    ending = path.suffix.lower()
    if ending == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    if ending == ".xz":
        return lzma.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _read_csv(path: Path) -> Table:
    try:
        with open_text(path) as file:
            first = file.readline()
            delimiter = max(DELIMITERS, key=first.count)
            names = [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]
            rows = [row for row in csv.reader(file, delimiter=delimiter) if row]
    except DAMAGED as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}") from error
    if not names:
        raise ValueError(f"{path} is empty: its first line must have the names of its columns")
    _check_no_name_twice(path, names)
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(f"{path}: row {number} has {len(row)} values, but there are {len(names)} columns")
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return Table(path, dict(zip(names, columns, strict=True)))


def _read_parquet(path: Path) -> Table:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ImportError(f"reading {path} needs pyarrow: pip install 'nowait[parquet]'") from error
    try:
        _check_no_name_twice(path, parquet.read_schema(path).names)
        content = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    return Table(path, {name: _values(content[name]) for name in content.column_names})


def _check_no_name_twice(path: Path, names: Sequence[str]) -> None:
    """Raise if two columns have the same name. Columns without a name, as spreadsheets append them, are harmless."""
    twice = next((name for place, name in enumerate(names) if name and name in names[:place]), None)
    if twice is not None:
        raise ValueError(f"{path} has two columns {twice!r}, and only one of them can be meant: rename or remove one")


def _values(column: Any) -> Sequence[Any]:
    """Return a column of Parquet as an array if it has a number in every row, otherwise as a list."""
    from pyarrow import types

    is_number = types.is_integer(column.type) or types.is_floating(column.type)
    values: Sequence[Any] = column.to_numpy() if is_number and not column.null_count else column.to_pylist()
    return values


def _number(value: Any) -> float:
    """Return the value as a float; NaN if it is none, such as 1_000, which Python would read as 1000."""
    if isinstance(value, str) and "_" in value:
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
