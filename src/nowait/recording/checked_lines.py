"""A file of JSON lines, each with a checksum: results are appended as they are computed, and damage is noticed."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from nowait.recording.framefile import no_follow
from nowait.recording.patience import patiently, write_all


@final
class CheckedLines:
    """Appends objects to a file and reads them back. Constructing one opens nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows at the end of the file and fsync it; the file is created if it does not exist."""
        lines = "".join(map(_line, rows)).encode()
        descriptor = patiently(os.open, self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | no_follow(), 0o644)
        try:
            if os.fstat(descriptor).st_size and not self._ends_a_line():  # a process was killed while it wrote
                lines = b"\n" + lines
            write_all(descriptor, lines)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rows(self) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Yield the rows with their line numbers, from 1; None for a damaged line."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _row_of(line)

    def _ends_a_line(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _line(row: Mapping[str, Any]) -> str:
    text = json.dumps(row, allow_nan=False)
    return f"{zlib.crc32(text.encode()):08x} {text}\n"


def _row_of(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    row: dict[str, Any] = json.loads(text)
    return row
