"""Writes and reads the files of a run: atomically, with checksums, and never through a symbolic link."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nowait.recording.errors import DamagedFileError
from nowait.recording.framefile import no_follow
from nowait.recording.patience import PIECE, patiently, write_all

CHECKSUM = "checksum"
"""The entry of a JSON file that holds the checksum of the other entries."""
TENSOR_TYPES = {
    "f2": "F16",
    "f4": "F32",
    "f8": "F64",
    "i1": "I8",
    "i2": "I16",
    "i4": "I32",
    "i8": "I64",
    "u1": "U8",
    "u2": "U16",
    "u4": "U32",
    "u8": "U64",
    "b1": "BOOL",
}
"""NumPy's type names, and those of the safetensors format."""


class Contents(NamedTuple):
    """Size and checksum of a file when it was written."""

    bytes: int
    crc32: int


def vector_checksum(vector: Any) -> int:
    """Return the CRC-32 of the bytes of a vector."""
    return zlib.crc32(np.ascontiguousarray(vector).data.cast("B"))


def create_new(path: Path) -> int:
    """Create an empty file and return its file descriptor; an existing file or link is removed first."""
    path.unlink(missing_ok=True)
    return patiently(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | no_follow(), 0o644)


def write_file(path: Path, pieces: Iterable[Any]) -> Contents:
    """Write a new file, fsync it, and return its size and checksum."""
    descriptor = create_new(path)
    size = checksum = 0
    try:
        for piece in pieces:
            view = memoryview(piece).cast("B")
            checksum, size = zlib.crc32(view, checksum), size + len(view)
            write_all(descriptor, view)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Contents(size, checksum)


def replace_file(path: Path, data: bytes) -> Contents:
    """Replace a file atomically: after a crash the old file is unchanged."""
    return replace_by_pieces(path, [data])


def replace_by_pieces(path: Path, pieces: Iterable[Any]) -> Contents:
    """Replace a file atomically with data that come in pieces."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        contents = write_file(unfinished, pieces)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return contents


def append_line(path: Path, line: str) -> None:
    """Append a line of text to a file; create it if it does not exist."""
    descriptor = patiently(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | no_follow(), 0o644)
    try:
        write_all(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk (fsync)."""
    descriptor = patiently(os.open, path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# JSON


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    replace_file(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return a value as indented JSON."""
    return (json.dumps(value, indent=2) + "\n").encode()


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with an entry for their checksum."""
    return dict(values) | {CHECKSUM: _checksum_of(values)}


def read_json(path: Path) -> dict[str, Any]:
    """Return the entries of a JSON file; raise ``DamagedFileError`` if it cannot be parsed."""
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DamagedFileError(path, "it is missing") from None
    except (ValueError, RecursionError, OSError) as error:
        raise DamagedFileError(path, f"it cannot be read as JSON ({error})") from None
    if not isinstance(values, dict):
        raise DamagedFileError(path, "it must contain a JSON object")
    return values


def read_sealed(path: Path) -> tuple[dict[str, Any], bool]:
    """Return the entries, and whether there was a checksum; raise ``DamagedFileError`` if it does not match."""
    values = read_json(path)
    checksum = values.pop(CHECKSUM, None)
    if checksum is not None and checksum != _checksum_of(values):
        raise DamagedFileError(
            path, f'its checksum differs. If you changed the file on purpose, remove its entry "{CHECKSUM}"'
        )
    return values, checksum is not None


def read_strictly_sealed(path: Path) -> dict[str, Any]:
    """Return the entries of a file; raise ``DamagedFileError`` if its checksum is missing or does not match."""
    values, has_checksum = read_sealed(path)
    if not has_checksum:
        raise DamagedFileError(path, "it has no checksum")
    return values


def _checksum_of(values: Mapping[str, Any]) -> str:
    """Return the checksum of the values, which does not depend on the file's layout."""
    text = json.dumps(_plain(values), sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"


def _plain(values: Mapping[str, Any]) -> Any:
    """Return the values as JSON reads them back: keys are strings, tuples are lists."""
    return json.loads(json.dumps(dict(values)))


# Arrays, in the safetensors format


class TensorEntry(NamedTuple):
    """What the header of a safetensors file says about a tensor."""

    name: str
    kind: str
    """The dtype, in the words of the format."""
    shape: tuple[int, ...]
    num_bytes: int


def tensor_header(entries: Iterable[TensorEntry], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the beginning of a safetensors file, which the bytes of these tensors follow."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, kind, shape, num_bytes in entries:
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + num_bytes]}
        offset += num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def tensor_pieces(arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Iterable[Any]:
    """Yield the bytes of a safetensors file without copying the arrays, unlike ``safetensors.numpy.save``."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    entries = [
        TensorEntry(name, TENSOR_TYPES[array.dtype.str[1:]], np.shape(arrays[name]), array.nbytes)
        for name, array in whole.items()
    ]
    yield tensor_header(entries, metadata)
    for array in whole.values():
        if array.nbytes:
            yield array.reshape(-1).data.cast("B")


def read_tensors(path: Path, contents: Contents | None) -> dict[str, Any]:
    """Return the arrays of a safetensors file; with ``contents``, check its size and checksum first."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if contents is not None:
        check_contents(path, contents)
    try:
        arrays: dict[str, Any] = load_file(path)
    except FileNotFoundError:
        raise DamagedFileError(path, "it is missing") from None
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise DamagedFileError(path, f"it cannot be read ({error})") from None
    return arrays


def check_contents(path: Path, contents: Contents) -> None:
    """Compare a file's size and checksum with those recorded; raise ``DamagedFileError`` if they differ."""
    try:
        size = path.stat().st_size
        if size != contents.bytes:
            raise DamagedFileError(path, f"it has {size:,} bytes instead of {contents.bytes:,}")
        checksum = 0
        with open(path, "rb") as file:
            while piece := file.read(PIECE):
                checksum = zlib.crc32(piece, checksum)
    except FileNotFoundError:
        raise DamagedFileError(path, "it is missing") from None
    except OSError as error:
        raise DamagedFileError(path, f"it cannot be read ({error})") from None
    if checksum != contents.crc32:
        raise DamagedFileError(path, "its checksum differs")
