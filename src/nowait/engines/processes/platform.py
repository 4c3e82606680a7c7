"""The operating-system features that worker processes use. All differences between systems are decided here.

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
import os
import select
import socket
import sys
import tempfile
import time
from typing import final

SWITCH = "NOWAIT_PORTABLE"
"""Set to 1, this environment variable selects the portable implementation on Linux too."""
DETAILS_BUFFER_BYTES = 1 << 17
"""Large enough for one datagram of details: macOS limits datagrams to 2,048 bytes unless the buffer is larger."""
MAILBOX_BUFFER_BYTES = 1 << 20
SECONDS_BETWEEN_TRIES = 0.001


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
                time.sleep(SECONDS_BETWEEN_TRIES)
            else:
                return
