"""What differs between operating systems and machines: features of processes, waiting for input, processor cores.

=====================  ==========================  ========================================
what                   Linux                       portable (macOS, or ``NOWAIT_PORTABLE=1``)
=====================  ==========================  ========================================
shared memory          memfd                       a temporary file without a name
start of a worker      fork of the zygote          a fresh interpreter that the zygote starts
death of the zygote    PR_SET_PDEATHSIG            end of file on a pipe, read by a thread
data of the problem    one copy in huge pages      the file of the payload, mapped privately
=====================  ==========================  ========================================

Forking is avoided there because frameworks of macOS (Accelerate, Objective-C) break in a child that does not call exec.
All other features are the same on all systems: stream sockets, pipes, poll, POSIX signals.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from time import monotonic, sleep
from typing import Protocol, final

from nowait.numerics.chunks import LARGE

SWITCH = "NOWAIT_PORTABLE"
"""Set to 1, this environment variable selects the portable implementation on Linux too."""
DETAILS_BUFFER_BYTES = 1 << 17
"""Large enough for one datagram of details: macOS limits datagrams to 2,048 bytes unless the buffer is larger."""
MAILBOX_BUFFER_BYTES = 1 << 20
SECONDS_BETWEEN_TRIES = 0.001
MOST_THREADS = 8
"""Chosen by default: a few cores use all of the memory bandwidth."""
SPIN_SECONDS = 0.002
"""How long a process that uses a GPU polls for its next message before it sleeps."""
CGROUPS = Path("/sys/fs/cgroup")


def portable() -> bool:
    """Return True if features that only Linux has must not be used."""
    return sys.platform != "linux" or os.environ.get(SWITCH, "0") not in ("", "0")


def require_worker_processes() -> None:
    """Raise unless this system can run worker processes."""
    needed = [(os, "posix_spawn"), (os, "killpg"), (select, "poll"), (socket, "AF_UNIX"), (socket, "send_fds")]
    missing = [f"{module.__name__}.{name}" for module, name in needed if not hasattr(module, name)]
    if missing:
        raise RuntimeError(
            f"nw.train needs Linux or macOS: Python on {sys.platform} has no {', no '.join(missing)}. "
            "nw.simulate, nw.replay, nw.theory and reports work here; for real workers on Windows use WSL"
        )


def require_ray_hosts() -> None:
    """Raise unless this system can be the driver of a run on a Ray cluster."""
    if sys.platform != "linux":
        raise RuntimeError(
            f"engine='ray' needs Linux, this is {sys.platform}: hosts on the driver's machine are reached through an "
            "abstract Unix socket. Use engine='processes', or start the run on a Linux node"
        )


def anonymous_file(name: str) -> int:
    """Return the descriptor of a file in memory, or else on disk, that is deleted when no process has it open."""
    if not portable():
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())


def details_sockets() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a datagram socket for details of reports: the server's, and the one all workers share."""
    server, workers = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in (server, workers):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, DETAILS_BUFFER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MAILBOX_BUFFER_BYTES)
    return server, workers


@final
class DetailsSocket:
    """The workers' end of ``details_sockets``."""

    def __init__(self, workers_end: socket.socket) -> None:
        self._socket = workers_end

    def send(self, details: bytes) -> None:
        """Send one datagram; waits while the socket's buffer is full.

        Linux blocks. macOS raises ENOBUFS at once, and poll does not report free space, so sending is retried.
        """
        while True:
            try:
                self._socket.send(details)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                sleep(SECONDS_BETWEEN_TRIES)
            else:
                return


# Waiting for input


class HasFileno(Protocol):
    """A socket or file."""

    def fileno(self) -> int:
        """Return the file descriptor."""


def is_ready(file: int | HasFileno, seconds: float, events: int = select.POLLIN) -> bool:
    """Return True once ``file`` has one of ``events`` (or is closed at its other end), False after ``seconds``.

    ``select.select`` cannot watch descriptors of 1,024 and above; ``poll`` can.
    """
    poller = select.poll()
    poller.register(file, events)
    return bool(poller.poll(1000 * seconds))


def spin(poller: select.poll, seconds: float) -> None:
    """Poll until there is input, for at most this many seconds. This takes a core, but nobody has to be woken up."""
    end = monotonic() + seconds
    while not poller.poll(0) and monotonic() < end:
        pass


# Processor cores


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
