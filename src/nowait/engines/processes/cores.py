"""How many processor cores there are, and how many threads the server uses for passes over params."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from nowait.numerics.chunks import LARGE

MOST_THREADS = 8
"""Chosen by default: a few cores use all of the memory bandwidth."""
SPIN_SECONDS = 0.002
"""How long a process that uses a GPU polls for its next message before it sleeps."""
CGROUPS = Path("/sys/fs/cgroup")


def server_threads(asked: int | None, *, length: int, workers: int, cores: int) -> int:
    """Return the number of threads: the number asked for, or else the cores that the workers leave free.

    By default there is one thread for params of less than ``LARGE`` entries, and at most ``MOST_THREADS``. If there
    are as many workers as cores, it is a quarter of the cores: a worker waits for the server between two gradients.
    """
    if asked is not None:
        return asked
    if length < LARGE:
        return 1
    return max(1, min(max(cores - workers, cores // 4), MOST_THREADS))


def spin_seconds(*, on_device: bool, workers: int, cores: int) -> float:
    """Return how long server and workers poll for messages before they sleep; 0 if they sleep at once.

    A step on a GPU takes about as long as waking up a process. Polling needs a core for each worker, the server and the
    process that computes losses.
    """
    return SPIN_SECONDS if on_device and cores >= workers + 2 else 0.0


def available_cores() -> int:
    """Return the number of cores that this process may use, by its CPU affinity and the quota of its container."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min([known, *map(cores_of_quota, _quotas(CGROUPS))])))


def cores_of_quota(text: str) -> float:
    """Return the number of cores in a quota of a control group: microseconds per period, and the period.

    >>> (
    ...     cores_of_quota("150000 100000"),
    ...     cores_of_quota("max 100000"),
    ...     cores_of_quota("-1 100000"),
    ... )
    (1.5, inf, inf)
    """
    quota, _, period = text.strip().partition(" ")
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return math.inf
    return cores if cores > 0 else math.inf


def _quotas(root: Path) -> Iterator[str]:
    """Read the quotas of the control groups that contain this process; of both versions, if they are mounted."""
    for folder in _groups():
        yield _read(root / folder / "cpu.max")
    yield f"{_read(root / 'cpu' / 'cpu.cfs_quota_us')} {_read(root / 'cpu' / 'cpu.cfs_period_us')}"


def _groups() -> list[str]:
    """Return the paths of this process's control group (version 2) and of its parents, relative to the root."""
    lines = _read(Path("/proc/self/cgroup")).splitlines()
    own = [PurePosixPath(line.removeprefix("0::").lstrip("/")) for line in lines if line.startswith("0::")]
    return [str(group) for path in own for group in (path, *path.parents)]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
