"""What the process engine takes from the operating system. All differences between systems are decided here.

=====================  ==========================  ========================================
what                   Linux                       portable (macOS, or ``NOWAIT_PORTABLE=1``)
=====================  ==========================  ========================================
shared memory          memfd                       a temporary file without a name
start of a worker      fork of the zygote          a fresh interpreter that the zygote starts
death of the zygote    PR_SET_PDEATHSIG            end-of-file on a pipe, seen by a thread
data of the problem    one copy in huge pages      the file of the payload, mapped privately
=====================  ==========================  ========================================

Forking is avoided there because frameworks of macOS (Accelerate, Objective-C) break in a child that does not call exec.
Everything else is the same everywhere: stream sockets, pipes, poll, POSIX signals.
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
"""Set to 1, this environment variable selects the portable way on Linux too."""
LETTER_BUFFER_BYTES = 1 << 17
"""Fits one letter: macOS allows 2,048 bytes per datagram unless the buffer is made larger."""
MAILBOX_BUFFER_BYTES = 1 << 20
SECONDS_BETWEEN_TRIES = 0.001


def portable() -> bool:
    """Whether to do without what only Linux has."""
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
            "abstract Unix socket. Take engine='processes', or start the run on a node with Linux"
        )


def anonymous_file(name: str) -> int:
    """Return the descriptor of a file in memory, or else on disk, that is gone with the last process that has it."""
    if not portable():
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())


def letter_sockets() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a datagram socket for letters: the server's, and the one all workers share."""
    server, workers = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in (server, workers):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LETTER_BUFFER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MAILBOX_BUFFER_BYTES)
    return server, workers


@final
class LetterSocket:
    """The workers' end of ``letter_sockets``."""

    def __init__(self, workers_end: socket.socket) -> None:
        self._socket = workers_end

    def send(self, letter: bytes) -> None:
        """Send one letter; waits while the server has not read earlier ones.

        Linux blocks. macOS raises ENOBUFS at once, and poll does not tell when there is room: try again.
        """
        while True:
            try:
                self._socket.send(letter)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                time.sleep(SECONDS_BETWEEN_TRIES)
            else:
                return
