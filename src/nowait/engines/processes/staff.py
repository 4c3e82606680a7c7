"""The server's side of its worker processes: starts the zygote, has it fork and kill, hears who died."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, final

from nowait.core.errors import WorkerFailedError
from nowait.engines.processes.shared import SharedSlots, anonymous_file
from nowait.engines.processes.worker import Job

LONGEST_MESSAGE = 65_536
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)
BUFFER_SIZE = 1 << 20


@final
class Staff:
    """The zygote and the pipes. ``reports`` is read by the engine; ``control`` tells of births and deaths."""

    def __init__(self, job: Job, points: SharedSlots, gradients: SharedSlots, threads: int, log: Path | None) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.letters, their_letters = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.reports, their_reports = os.pipe()
        ticks = _nonblocking_twin(their_reports)
        self._letters_kept: dict[int, tuple[Any, ...]] = {}
        self._zygote = _start(theirs, threads, log)
        theirs.close()
        try:
            payload, sizes = _pickled(job)
            fds = [payload, points.fd, gradients.fd, their_reports, their_letters.fileno(), ticks]
            socket.send_fds(self.control, [pickle.dumps(sizes)], fds)
            os.close(payload)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(their_reports)
            os.close(ticks)
            their_letters.close()

    def wait_until_ready(self) -> None:
        """Until the zygote has loaded the problem."""
        message = self.control.recv(LONGEST_MESSAGE)
        answer = pickle.loads(message) if message else ("failed", "the process ended without a word")
        if answer[0] == "failed":
            self.close()
            raise WorkerFailedError(f"workers could not load the problem:\n{answer[1]}")
        self.control.setblocking(False)

    def hire(self, worker: int) -> int:
        """Have a worker forked; the pipe its orders are written to."""
        theirs, ours = os.pipe()
        socket.send_fds(self.control, [pickle.dumps(("fork", worker))], [theirs])
        os.close(theirs)
        return ours

    def kill(self, worker: int) -> None:
        """Have a worker killed; its death will be told like any other."""
        self.control.send(pickle.dumps(("kill", worker)))

    def news(self) -> list[tuple[Any, ...]]:
        """What the zygote said: ("forked", worker, process), ("died", worker, process, exit code)."""
        messages = []
        with contextlib.suppress(BlockingIOError):
            while True:
                message = self.control.recv(LONGEST_MESSAGE)
                if not message:
                    break  # the zygote is gone, which the end of the reports will tell
                messages.append(pickle.loads(message))
        return messages

    def letter(self, worker: int) -> tuple[Any, ...]:
        """The letter that a report of this worker announced."""
        while worker not in self._letters_kept:
            sender, *letter = pickle.loads(self.letters.recv(2 * LONGEST_MESSAGE))
            self._letters_kept[sender] = tuple(letter)
        return self._letters_kept.pop(worker)

    def close(self) -> None:
        """End the zygote, and with it all workers; nothing is left."""
        self.control.close()
        self.letters.close()
        with contextlib.suppress(OSError):
            os.close(self.reports)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._zygote.pid, signal.SIGKILL)
        self._zygote.wait()


def _nonblocking_twin(pipe: int) -> int:
    """The same end of a pipe, opened once more, so that only this one does not block."""
    if sys.platform != "linux":
        return os.dup(pipe)
    return os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _start(theirs: socket.socket, threads: int, log: Path | None) -> subprocess.Popen[bytes]:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from nowait.engines.processes.zygote import main; main({theirs.fileno()})"
    )
    environment = os.environ | {name: os.environ.get(name, str(threads)) for name in THREAD_VARIABLES}
    output: IO[bytes] | None = None if log is None else open(log, "ab")  # noqa: SIM115 (closed below)
    try:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
        )
    finally:
        if output is not None:
            output.close()


def _pickled(job: Job) -> tuple[int, list[int]]:
    """The job in shared memory: the pickle, then its arrays. The file descriptor, and their sizes in order."""
    import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    try:
        data = cloudpickle.dumps(job, protocol=5, buffer_callback=buffers.append)
    except Exception as error:
        raise TypeError(f"the problem cannot be sent to worker processes: {error}") from error
    parts = [memoryview(data), *(buffer.raw() for buffer in buffers)]
    fd = anonymous_file("nowait-job")
    offset = 0
    for part in parts:
        written = 0
        while written < part.nbytes:
            written += os.pwrite(fd, part[written : written + (BUFFER_SIZE << 6)], offset + written)
        offset += -(-part.nbytes // 64) * 64
    os.ftruncate(fd, max(offset, 1))
    return fd, [part.nbytes for part in parts]
