"""The fixed-size records that the server and its workers exchange. Vectors stay in shared memory."""

from __future__ import annotations

import struct
from enum import IntEnum

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


def computes(instruction: int) -> bool:
    """Return True if an order has a ticket to compute, and so a point."""
    return instruction < Instruction.HURRY or instruction >= Instruction.AUDIT


def check_number(ticket: int) -> int:
    """Return the number below 0 that stands for a ticket's id in an audit's orders and reports; and back again."""
    return -1 - ticket


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
