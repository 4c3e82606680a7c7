"""The fixed-size records that the server and its workers exchange, and the job. Vectors stay in shared memory."""

from __future__ import annotations

import os
import signal
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, final

from nowait.core.audit import Audit
from nowait.core.memory import Memory
from nowait.core.problem import prepare
from nowait.recording.best import BestFile
from nowait.speeds import Speeds

ORDER = struct.Struct("<qqii")
"""To a worker: ticket id, job, slot of the point, ``Instruction``. To the evaluator the step instead of the job."""
REPORT = struct.Struct("<qddii")
"""From a worker: ticket id, start time in seconds of the run, seconds of computing, worker, ``ReportKind``."""
EVALUATOR, ZYGOTE, FINGERPRINTER = -1, -2, -3
"""Numbers used instead of worker numbers for processes that are not workers."""


class Instruction(IntEnum):
    """What a worker does with an order. The first three also say what happens to the worker's memory vector."""

    KEEP = 0
    """Compute. The last gradient was accepted, so the memory is kept as it is."""
    UNDO = 1
    """Compute. The last gradient came too late: restore the memory from before it."""
    FORGET = 2
    """Compute. Reset the memory to zero."""
    HURRY = 3
    """The ticket was cancelled: stop imitating a slow worker and report now."""
    ANNOUNCE = 4
    """Report READY: the server starts all workers together."""
    BEGIN = 5
    """The run begins later than the process was told at its start, by the nanoseconds in the field of the job."""
    AUDIT = 6
    """Compute the gradient of another worker's ticket once more; that worker's number is added to the instruction."""


class ReportKind(IntEnum):
    """The result of an order."""

    GRADIENT = 0
    """The gradient is in the worker's slot."""
    MISFIT = 1
    """The gradient has another shape or dtype than params; the details say which."""
    ERROR = 2
    """The problem raised; the details contain the traceback."""
    LOSS = 3
    """The evaluator's loss, in the field of the start time. Other metrics are in the details."""
    FINGERPRINT = 4
    """The fingerprint of the problem; it is in the details."""
    TRAINING_LOSS = 5
    """The loss of the gradient whose report follows, in the field of the start time. Only problems that have one."""
    LEAVING = 6
    """The process was sent SIGTERM: it reports on the order it has, and wants no other. Its serial number is in the
    field of the ticket."""
    LOADING = 7
    """How long the gradient whose report follows waited for its data: inside of computing, and before it.

    These are in the fields of the start time and of the seconds. Only problems that know it.
    """
    READY = 8
    """The answer to ANNOUNCE: the process has loaded the problem, and can compute gradients."""
    AUDITED = 9
    """The gradient that AUDIT ordered is in the slot of the worker that computed it."""
    CHECKSUM = 10
    """The checksum of the gradient whose report follows, in the field of the start time. Only of audited gradients."""


KEEP, UNDO, FORGET, HURRY, ANNOUNCE, BEGIN, AUDIT = map(int, Instruction)
GRADIENT, MISFIT, ERROR, LOSS, FINGERPRINT, TRAINING_LOSS, LEAVING, LOADING, READY, AUDITED, CHECKSUM = map(
    int, ReportKind
)  # plain numbers, which are packed and compared faster than members of an enum
WITH_DETAILS = frozenset((MISFIT, ERROR))
"""The reports of a worker that details may come with."""


def check_number(ticket: int) -> int:
    """Return the number below 0 that stands for a ticket's id in an audit's orders and reports; and back again."""
    return -1 - ticket


# How processes end

GRACE_SECONDS = 120.0
"""How long a host that was sent SIGTERM may take to leave. Whoever sent it may kill it sooner."""
NOT_STARTED = 1 << 16
"""Added to the number of an error of the operating system, it is the exit code of a process that did not start."""
SEGFAULT = (
    "a segmentation fault: a model that writes to its weights in place ends so, because params are read-only memory; "
    "clone them first. The output of the workers shows where it happened"
)


def cause_of(code: int) -> str:
    """Return how a process with this exit code ended, for messages. A code below 0 is the signal that killed it."""
    if NOT_STARTED <= code < 2 * NOT_STARTED:
        return f"could not be started ({os.strerror(code - NOT_STARTED)})"
    if code == -signal.SIGSEGV:
        return f"was killed by signal {-code} ({SEGFAULT})"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


# What workers receive at their start


@final
@dataclass(frozen=True)
class Job:
    """The settings that every worker of a run receives at its start."""

    problem: Any
    seed: int
    length: int
    dtype: str
    memory: Memory | None = None
    """Where points and gradients are; None: in host memory."""
    slowdown: dict[int, float] = field(default_factory=dict)
    speeds: Speeds | None = None
    workers: tuple[int, ...] = (0,)
    """The numbers of the workers that the run was started or resumed with."""
    spin_seconds: float = 0.0
    """How long a worker polls for its next order before it sleeps."""
    best: BestFile | None = None
    """Where the evaluator keeps the best params."""
    wires: tuple[str | None, str | None] = (None, None)
    """``wire`` and ``points_wire`` of the engine, which are a part of the problem here; for problems made elsewhere."""
    process_settings: tuple[Any, ...] = ()
    """The global settings of the process of the run; ``apply()`` sets them in another one."""
    audit: Audit | None = None
    """Which gradients are computed twice."""

    def prepare(self) -> bool:
        """Make this process compute as that of the run does, and prepare the problem; False: it must not be forked."""
        for settings in self.process_settings:
            settings.apply()
        return prepare(self.problem)

    def share_of(self, worker: int) -> int:
        """Return which share of the data a worker takes. There are as many shares as workers at the start.

        After a resume the numbers of workers may have gaps, so they are not the numbers of shares.
        """
        return self.workers.index(worker) if worker in self.workers else worker % len(self.workers)
