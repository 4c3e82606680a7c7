"""The server's side of its worker processes: starts the zygote, has it fork and kill, hears who died."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, final

from nowait.core.errors import WorkerFailedError
from nowait.engines.processes.shared import SharedSlots, anonymous_file
from nowait.engines.processes.wire import LONGEST_MESSAGE
from nowait.engines.processes.worker import Job

THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)
PIECE = 1 << 26
"""So many bytes of the job are written at a time."""


@final
class Staff:
    """The zygote and the pipes. ``reports`` is read by the engine; ``control`` tells of births and deaths."""

    def __init__(self, job: Job, points: SharedSlots, gradients: SharedSlots, threads: int, log: Path | None) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.letters, their_letters = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.reports, their_reports = os.pipe()
        self._news: list[tuple[Any, ...]] = []
        self._letters_kept: dict[int, tuple[Any, ...]] = {}
        self._zygote = _start(theirs, threads, log)
        theirs.close()
        try:
            payload, sizes = _pickled(job)
            fds = [payload, points.fd, gradients.fd, their_reports, their_letters.fileno()]
            socket.send_fds(self.control, [pickle.dumps(sizes)], fds)
            os.close(payload)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(their_reports)
            their_letters.close()

    def wait_until_ready(self) -> None:
        """Until the zygote has loaded the problem."""
        try:
            message = self.control.recv(LONGEST_MESSAGE)
        except ConnectionResetError:
            message = b""
        answer = pickle.loads(message) if message else ("failed", "the process that starts them was killed")
        if answer[0] == "failed":
            self.close()
            raise WorkerFailedError(f"workers could not load the problem:\n{answer[1]}")
        self.control.setblocking(False)

    def hire(self, worker: int, began: float) -> int:
        """Have a worker forked, which counts time from ``began``; the pipe its orders are written to."""
        theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        self._send(("fork", worker, began), [theirs])
        os.close(theirs)
        return ours

    def kill(self, worker: int) -> None:
        """Have a worker killed; its death will be told like any other."""
        self._send(("kill", worker, 0.0), [])

    def _send(self, message: tuple[Any, ...], fds: list[int]) -> None:
        """Say something to the zygote, and hear what it says meanwhile: both may have a lot to say at once."""
        while True:
            try:
                socket.send_fds(self.control, [pickle.dumps(message)], fds)
            except BlockingIOError:
                self._collect_news()
                select.select([self.control], [self.control], [], 1.0)
            except (BrokenPipeError, ConnectionResetError):
                return  # the zygote is gone, which the end of its socket will tell
            else:
                return

    def news(self) -> list[tuple[Any, ...]]:
        """What the zygote said: ("forked", worker, process), ("died", worker, process, exit code), or ("gone",)."""
        self._collect_news()
        messages, self._news = self._news, []
        return messages

    def _collect_news(self) -> None:
        while True:
            try:
                message = self.control.recv(LONGEST_MESSAGE)
            except BlockingIOError:
                return
            except ConnectionResetError:
                message = b""
            if not message:
                self._news.append(("gone",))
                return
            self._news.append(pickle.loads(message))

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


def _start(theirs: socket.socket, threads: int, log: Path | None) -> subprocess.Popen[bytes]:
    code = (
        f"import sys; sys.path[:] = {[str(path) for path in sys.path]!r}; "
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


def _culprit(problem: Any) -> str:
    """Which part of a problem does not pickle, if it can tell."""
    import cloudpickle

    parts = getattr(problem, "parts_to_send", None)
    for name, part in ({} if parts is None else parts()).items():
        try:
            cloudpickle.dumps(part)
        except Exception:
            return f"{name} of {type(problem).__name__}"
    return "the problem"


def _pickled(job: Job) -> tuple[int, list[int]]:
    """The job in shared memory: the pickle, then its arrays. The file descriptor, and their sizes in order."""
    import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    try:
        data = cloudpickle.dumps(job, protocol=5, buffer_callback=buffers.append)
    except Exception as error:
        raise TypeError(f"{_culprit(job.problem)} cannot be sent to worker processes: {error}") from error
    parts = [memoryview(data), *(buffer.raw() for buffer in buffers)]
    fd = anonymous_file("nowait-job")
    offset = 0
    for part in parts:
        written = 0
        while written < part.nbytes:
            written += os.pwrite(fd, part[written : written + PIECE], offset + written)
        offset += -(-part.nbytes // 64) * 64
    os.ftruncate(fd, max(offset, 1))
    return fd, [part.nbytes for part in parts]
