"""Encodes and decodes the frames of a stored trace; no input or output.

A trace file is a header followed by frames, which are only appended. A frame has a header (kind, number, size, first
row, count, checksum of its body, checksum of the header) and a body. Rows are stored by column, each with the smallest
type that fits: a constant takes no bytes, integers are stored as offsets from the minimum. Checksums are CRC-32.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nowait.core.notes import Note, checked_note
from nowait.core.types import Integers
from nowait.recording.rows import ARRIVAL_DTYPE, CHUNK_ROWS, COLUMNS, EVENT_DTYPE, STEP_DTYPE

FILE_HEADER = b"nowait trace 3\n\0"
FRAME_MAGIC = b"NWFR"
HEADER = struct.Struct("<4sBxxxIIqII")
CHECKSUM = struct.Struct("<I")
HEADER_BYTES = HEADER.size + CHECKSUM.size
COLUMN = struct.Struct("<Bq")
COVERED = struct.Struct("<I")
ALL_COLUMNS = (*COLUMNS, "row")
"""``row``, the number of a row among all arrivals, is stored only if rows were left out."""
CONSTANT, RAW = 0, 8
OFFSET_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


class Kind(IntEnum):
    """The kind of a frame."""

    START = 0
    """The id of the run and the workers at the start, as JSON."""
    ROWS = 1
    STEPS = 2
    """First steps of held gradients whose rows are in earlier frames, sorted by row."""
    EVENTS = 3
    END = 4
    """How the run ended, as JSON."""
    WORKERS = 5
    """Where processes were started since the frame before of this kind, and seconds of loading data, as JSON."""
    CHECKSUMS = 6
    """Checksums of params after some steps, as JSON."""
    NOTES = 7
    """What the method noted, as JSON."""


class Frame(NamedTuple):
    """The header of a frame, and where its body begins in the file."""

    kind: int
    number: int
    size: int
    first: int
    entries: int
    checksum: int
    offset: int

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.offset + self.size


def frame_bytes(kind: Kind, number: int, body: bytes, first: int = 0, count: int = 0) -> bytes:
    """Return the bytes of a frame."""
    header = HEADER.pack(FRAME_MAGIC, kind, number, len(body), first, count, zlib.crc32(body))
    return header + CHECKSUM.pack(zlib.crc32(header)) + body


def continued(checksum: int, header: bytes) -> int:
    """Return the checksum of a trace up to a frame from the one before it and the frame's header.

    The header has the checksum of the body. Its own checksum is left out: CRCs of data that end with their own CRC are
    all the same.
    """
    return zlib.crc32(header[: HEADER.size], checksum)


def read_header(data: bytes, offset: int) -> Frame | None:
    """Decode the header in these bytes, read at ``offset`` of the file; None if they are not a valid header."""
    if len(data) < HEADER_BYTES:
        return None
    header, (checksum,) = data[: HEADER.size], CHECKSUM.unpack(data[HEADER.size : HEADER_BYTES])
    magic, kind, number, size, first, count, body_checksum = HEADER.unpack(header)
    if magic != FRAME_MAGIC or zlib.crc32(header) != checksum or kind not in Kind.__members__.values():
        return None
    return Frame(kind, number, size, first, count, body_checksum, offset + HEADER_BYTES)


def json_body(values: Mapping[str, Any]) -> bytes:
    """Return the body of a JSON frame."""
    return json.dumps(dict(values)).encode()


def notes_body(notes: Iterable[Note]) -> bytes:
    """Return the body of a frame of notes."""
    return json_body({"notes": [list(note) for note in notes]})


def read_notes(body: bytes) -> list[Note]:
    """Decode the body of a frame of notes. ValueError if an entry is no note."""
    try:
        return [
            checked_note(int(after), float(time), kind, dict(numbers))
            for after, time, kind, numbers in json.loads(body)["notes"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"its notes cannot be read ({error!r})") from None


# Rows


def rows_body(rows: NDArray[np.void], covered: int, numbers: Integers | None = None) -> bytes:
    """Encode rows by column. They represent ``covered`` arrivals, of which ``numbers`` are kept (None: all)."""
    columns = [np.ascontiguousarray(rows[name]) for name in COLUMNS]
    if numbers is not None:
        columns.append(np.ascontiguousarray(numbers, dtype=np.int64))
    encoded = [_encoded(column) for column in columns]
    descriptions = b"".join(COLUMN.pack(code, base) for code, base, _ in encoded)
    return COVERED.pack(covered) + bytes([len(columns)]) + descriptions + b"".join(data for _, _, data in encoded)


def _encoded(column: NDArray[Any]) -> tuple[int, int, bytes]:
    bits = column.view(np.int64)
    if column.dtype.kind == "f":
        constant = bool((bits == bits[0]).all()) if len(bits) else True
        return (CONSTANT, int(bits[0]) if len(bits) else 0, b"") if constant else (RAW, 0, column.tobytes())
    low, high = (int(bits.min()), int(bits.max())) if len(bits) else (0, 0)
    if low == high:
        return CONSTANT, low, b""
    for code, dtype in OFFSET_TYPES.items():
        if high - low < 1 << 8 * code:
            return code, low, (bits - low).astype(dtype).tobytes()
    return RAW, 0, column.tobytes()


def decode_rows(body: bytes, count: int) -> tuple[NDArray[np.void], Integers | None]:
    """Decode rows, and their numbers among all arrivals (None: none were left out). ValueError if sizes differ."""
    covered, num_columns = covered_by(body), body[COVERED.size] if len(body) > COVERED.size else 0
    if not count <= covered <= CHUNK_ROWS or num_columns not in (len(COLUMNS), len(ALL_COLUMNS)):
        raise ValueError(f"{count} rows for {covered} arrivals in {num_columns} columns")
    offset = COVERED.size + 1 + num_columns * COLUMN.size
    rows, numbers = np.empty(count, ARRIVAL_DTYPE), np.empty(count, np.int64)
    for place in range(num_columns):
        code, base = COLUMN.unpack_from(body, COVERED.size + 1 + place * COLUMN.size)
        values, size = _decoded(body, offset, count, code, base)
        offset += size
        if place == len(COLUMNS):
            numbers[:] = values
        else:
            name = COLUMNS[place]
            rows[name] = values.view(np.float64) if ARRIVAL_DTYPE[name].kind == "f" else values
    if offset != len(body):
        raise ValueError(f"{len(body)} bytes where the columns have {offset}")
    return rows, None if num_columns == len(COLUMNS) else numbers


def covered_by(body: bytes) -> int:
    """Return how many arrivals a frame of rows represents."""
    covered: int = COVERED.unpack_from(body)[0] if len(body) >= COVERED.size else 0
    return covered


def _decoded(body: bytes, offset: int, count: int, code: int, base: int) -> tuple[NDArray[np.int64], int]:
    """Return the bits of a column as integers, and the number of bytes it takes."""
    if code == CONSTANT:
        return np.full(count, base, dtype=np.int64), 0
    if code != RAW and code not in OFFSET_TYPES:
        raise ValueError(f"column type {code}")
    size = code * count
    if offset + size > len(body):
        raise ValueError(f"{len(body)} bytes, too few for {count} rows")
    if code == RAW:
        return np.frombuffer(body, np.int64, count, offset), size
    return np.frombuffer(body, OFFSET_TYPES[code], count, offset).astype(np.int64) + base, size


# Other tables


def table_of(body: bytes, kind: int, count: int) -> NDArray[np.void]:
    """Decode the steps or events of a frame. ValueError if the size differs."""
    dtype = STEP_DTYPE if kind == Kind.STEPS else EVENT_DTYPE
    if len(body) != count * dtype.itemsize:
        raise ValueError(f"{len(body)} bytes where {count} entries have {count * dtype.itemsize}")
    return np.frombuffer(body, dtype)
