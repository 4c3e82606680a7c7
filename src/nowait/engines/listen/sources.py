"""The user's own modules, which are sent to hosts: a pickle only names the modules of its classes and functions."""

from __future__ import annotations

import functools
import json
import logging
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from nowait.engines.network.secure import ProtocolError

logger = logging.getLogger("nowait.listen")

MOST_BYTES = 8 << 20
"""Bytes of source code that are sent."""
INSTALLED = ("site-packages", "dist-packages")
OWN_PACKAGE = "nowait"


def user_sources(modules: Mapping[str, ModuleType] | None = None) -> dict[str, bytes]:
    """Return the source files of the loaded modules that belong neither to Python nor to an installed package.

    They are named by paths relative to the folder in which Python looks for modules. What is not loaded is not sent,
    and neither is ``__main__``, whose classes and functions are pickled by value.
    """
    files = _files((sys.modules if modules is None else modules).items())
    found: dict[str, bytes] = {}
    total = 0
    for path, file in sorted(files.items(), key=lambda item: (item[1].stat().st_size, item[0])):
        content = file.read_bytes()
        total += len(content)
        if total > MOST_BYTES:
            left = len(files) - len(found)
            logger.warning("%d modules are too large to be sent to workers: install them there", left)
            break
        found[path] = content
    return found


def _files(modules: Iterable[tuple[str, Any]]) -> dict[str, Path]:
    found = {}
    for name, module in list(modules):
        file, is_package = getattr(module, "__file__", None), hasattr(module, "__path__")
        if not isinstance(file, str) or name.partition(".")[0] in (OWN_PACKAGE, "__main__", "__mp_main__"):
            continue
        relative = name.replace(".", "/") + ("/__init__.py" if is_package else ".py")
        path = Path(file)
        if path.is_file() and path.as_posix().endswith(f"/{relative}") and not _is_installed(path, relative):
            found[relative] = path
    return found


def _is_installed(path: Path, relative: str) -> bool:
    """Return True for a file of Python itself or of an installed package."""
    if any(part in INSTALLED for part in path.parts) or _has_packages(path.parents[relative.count("/")]):
        return True
    paths = sysconfig.get_paths()
    return any(path.is_relative_to(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@functools.cache
def _has_packages(folder: Path) -> bool:
    """Return True for a folder with installed packages, such as one of ``pip install --target``."""
    return any(folder.glob("*.dist-info"))


def to_bytes(sources: Mapping[str, bytes]) -> bytes:
    """Return the files as JSON, in a fixed order."""
    texts = {path: content.decode("utf-8", "surrogateescape") for path, content in sources.items()}
    return json.dumps(texts, sort_keys=True).encode()


def write_sources(content: bytes, folder: Path) -> int:
    """Write the files that ``to_bytes`` packed into a folder; returns their number."""
    try:
        texts = json.loads(content)
        files = {PurePosixPath(path): text.encode("utf-8", "surrogateescape") for path, text in texts.items()}
    except (ValueError, AttributeError):
        raise ProtocolError("the source code of the problem is not valid") from None
    for path, data in files.items():
        if path.is_absolute() or ".." in path.parts or path.suffix != ".py":
            raise ProtocolError(f"the source code of the problem has a file {str(path)!r:.100}")
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return len(files)
