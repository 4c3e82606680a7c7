"""Zygotes from the outside: how they are launched, copied and shared, and the job that they get."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import final

from nowait.core import Problem
from nowait.core.memory import HOST, Slots
from nowait.core.problem import process_settings
from nowait.engines.session import Parts
from nowait.fleet.options import WorkerOptions
from nowait.fleet.platform import available_cores, portable, spin_seconds
from nowait.fleet.wire.records import Job
from nowait.fleet.wire.stream import COPY, MessageStream

FORKING_VARIABLES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""``torch.cuda.is_available()`` in a user's module then leaves CUDA alone, so that workers can be forked."""
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)


@final
class Zygote:
    """A zygote process that is a child of this one, and the socket to it. It has no job until a pool sends one."""

    def __init__(self, control: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.control = control
        self._process = process

    @classmethod
    def launch(
        cls, threads: int, modules: Iterable[str] = (), code: str | None = None, *, warm: bool = False
    ) -> Zygote:
        """Start a zygote, see ``start_zygote``."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                return cls(ours, start_zygote(theirs, threads, modules=modules, code=code, warm=warm))
        except BaseException:
            ours.close()
            raise

    def copy(self) -> ZygoteCopy | None:
        """Return a zygote that this one forks, with what it has imported; None if this one is gone."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            if MessageStream(self.control).send(COPY, [theirs.fileno()], wait=lambda: None):
                return ZygoteCopy(ours)
        ours.close()
        return None

    def close(self) -> None:
        """Kill it, and with it all processes that it started."""
        self.control.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@final
class ZygoteCopy:
    """A zygote that is a child of another zygote, and the socket to it."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control

    def close(self) -> None:
        """Close the socket: it kills its processes and exits. A pool waits for that."""
        self.control.close()


def start_zygote(
    theirs: socket.socket,
    threads: int,
    *,
    limit_output: bool = False,
    path: Iterable[str] = (),
    modules: Iterable[str] = (),
    code: str | None = None,
    warm: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a zygote at the other end of a socket; it imports modules from where this process does, and from ``path``.

    It looks in the folder ``code`` first, the content of which may change until it gets its job. While it waits for the
    job, it imports ``modules``, and with ``warm`` it loads what most problems need.
    Its output and that of its workers goes to the standard output of this process, until it is sent a log.
    ``limit_output`` limits the size of that too: only for files that nobody else writes to.
    """
    entries = [*([] if code is None else [code]), *sys.path, *(entry for entry in path if entry not in sys.path)]
    script = (
        f"import sys; sys.path[:] = {[str(entry) for entry in entries]!r}; "
        f"from nowait.fleet.host.zygote import main; "
        f"main({theirs.fileno()}, limit_output={limit_output}, modules={list(modules)!r}, warm={warm})"
    )
    defaults = FORKING_VARIABLES | dict.fromkeys(THREAD_VARIABLES, str(threads))
    return subprocess.Popen(
        [sys.executable, "-c", script],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=defaults | os.environ,
    )


# The zygote of a run

_shared_zygote: ContextVar[tuple[tuple[int, list[str]], Zygote] | None] = ContextVar("shared_zygote", default=None)
"""The zygote of ``shared_zygote``, with the settings that it was launched with."""


def launch_zygote(problem: Problem, num_workers: int) -> Zygote | ZygoteCopy:
    """Start the zygote of a run, which imports the module of the problem while the run is being prepared."""
    settings = (threads_per_worker(num_workers), _modules_of(problem))
    shared = _shared_zygote.get()
    copy = shared[1].copy() if shared is not None and shared[0] == settings else None
    return Zygote.launch(*settings) if copy is None else copy


@contextlib.contextmanager
def shared_zygote(problem: Problem, num_workers: int) -> Iterator[None]:
    """Start a zygote that imports once for all runs inside this block which have as many workers; they get copies."""
    if portable():  # forking is not safe everywhere
        yield
        return
    settings = (threads_per_worker(num_workers), _modules_of(problem))
    with contextlib.closing(Zygote.launch(*settings)) as zygote:
        before = _shared_zygote.set((settings, zygote))
        try:
            yield
        finally:
            _shared_zygote.reset(before)


def _modules_of(problem: Problem) -> list[str]:
    """Return the modules that a zygote can import before it has the problem."""
    kind = type(problem)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        return []
    compiled = ["nowait.problems.kernels"] if kind.__module__.startswith("nowait.problems.") else []
    return [kind.__module__, *compiled]


def threads_per_worker(num_workers: int) -> int:
    """Return how many threads libraries may use in each worker."""
    return max(1, (os.cpu_count() or 1) // max(1, num_workers))


def job_of(parts: Parts, points: Slots, options: WorkerOptions, seed: int) -> Job:
    """Return the settings that every worker of a run receives at its start.

    In a resumed run they include workers that the server does not have yet: they are started as soon as there is room.
    """
    joining = [] if parts.checkpoint is None else parts.checkpoint.wanted
    memory = None if parts.server.memory is HOST else parts.server.memory
    spin = spin_seconds(
        on_device=parts.server.memory.is_queued, workers=len(parts.server.workers), cores=available_cores()
    )
    return Job(
        parts.problem,
        seed,
        points.length,
        points.dtype.str,
        memory,
        options.slowdown,
        options.speeds,
        workers=tuple(sorted({*parts.server.workers, *joining})),
        spin_seconds=spin,
        best=parts.best,
        wires=parts.wires,
        process_settings=process_settings(parts.problem),
        audit=options.audit,
    )


# On machines that connect


@final
class Prepared:
    """A zygote that waits for its job, and the empty folder in which it will find the source code of the problem."""

    def __init__(self, threads: int) -> None:
        with contextlib.ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nowait-worker-")))
            self.zygote = Zygote.launch(threads, code=str(self.folder), warm=True)
            stack.callback(self.zygote.close)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Kill the zygote and all its processes, and remove the folder."""
        self._stack.close()
