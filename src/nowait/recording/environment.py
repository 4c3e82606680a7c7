"""Where a run was made: the machine, the versions of packages, and the git commit of the working directory."""

from __future__ import annotations

import os
import platform
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

ALWAYS = ("nowait", "numpy")
IF_IMPORTED = ("torch", "optax", "jax", "ray")
"""Packages whose version is recorded if the program has imported them."""


def environment(folder: Path | None = None) -> dict[str, Any]:
    """Return machine, versions and commit, as JSON values. It never fails: what cannot be found is left out.

    ``folder`` is where to look for a git repository, the working directory by default; no program is started.
    """
    versions = {"python": platform.python_version()}
    versions |= {name: _version(name) for name in ALWAYS}
    versions |= {name: _version(name) for name in IF_IMPORTED if name in sys.modules}
    found: dict[str, Any] = {"machine": dict(_machine()), "versions": {k: v for k, v in versions.items() if v}}
    commit = _commit(folder)
    return found | ({"commit": commit} if commit else {})


def is_environment(recorded: Any) -> bool:
    """Return True if a recorded environment is that of this machine, with the versions of its packages.

    The name of a processor alone does not tell: that of a virtual machine may stand for different ones.
    """
    try:
        machine, versions = recorded["machine"], recorded["versions"]
        is_here = (machine["host"], machine["processor"]) == (platform.node(), _processor())
        return is_here and all(
            version == (platform.python_version() if name == "python" else _version(name))
            for name, version in versions.items()
        )
    except (KeyError, TypeError, AttributeError):
        return False


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def _machine() -> tuple[tuple[str, Any], ...]:
    entries = {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}".strip(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }
    return tuple((name, value) for name, value in entries.items() if value)


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor()


def _commit(folder: Path | None) -> str:
    """Return the commit that is checked out, from the files of the repository; empty outside of one."""
    try:
        start = Path.cwd() if folder is None else folder
        entry = next((path / ".git" for path in (start, *start.parents) if (path / ".git").exists()), None)
        return "" if entry is None else _head(_git_folder(entry))
    except (OSError, ValueError):
        return ""


def _git_folder(entry: Path) -> Path:
    """Return the folder of the repository; in a worktree ``.git`` is a file that names it."""
    if entry.is_dir():
        return entry
    return entry.parent / entry.read_text(encoding="utf-8").removeprefix("gitdir:").strip()


def _head(git: Path) -> str:
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return _checked_hash(head)
    name = head.removeprefix("ref:").strip()
    common = git / (git / "commondir").read_text(encoding="utf-8").strip() if (git / "commondir").is_file() else git
    if (common / name).is_file():
        return _checked_hash((common / name).read_text(encoding="utf-8").strip())
    packed = (common / "packed-refs").read_text(encoding="utf-8")
    found = re.search(rf"^([0-9a-f]+) {re.escape(name)}$", packed, re.MULTILINE)
    return _checked_hash(found[1]) if found else ""


def _checked_hash(text: str) -> str:
    return text if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) else ""
