"""Files of JSON with a checksum inside."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from nowait.recording.run import write_json

CHECKSUM = "crc32"


def write_checked(path: Path, value: dict[str, Any]) -> None:
    """Write a dictionary and its checksum."""
    write_json(path, value | {CHECKSUM: _crc32(value)})


def read_checked(path: Path, advice: str) -> dict[str, Any]:
    """Read what ``write_checked`` wrote; raises ``ValueError`` with the advice if it was changed since."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value.pop(CHECKSUM) == _crc32(value):
            return dict(value)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        pass
    raise ValueError(f"{path} is damaged, its checksum does not fit: {advice}")


def _crc32(value: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())
