"""What the server and its workers say to each other: small records through pipes. Vectors stay where they are."""

from __future__ import annotations

import struct
from enum import IntEnum

ORDER = struct.Struct("<qqii")
"""To a worker: ticket id, job, slot of the point, ``Order``."""
REPORT = struct.Struct("<qddii")
"""From a worker: ticket id, when it started, how long it computed, worker, ``Report``."""
EVALUATOR, ZYGOTE, FINGERPRINTER = -1, -2, -3
"""Their numbers, where workers are counted."""
LONGEST_MESSAGE = 65_536
"""Of the server and its zygote, in bytes."""


class Order(IntEnum):
    """What to do with the ticket; ``KEEP`` and ``FORGET`` are about the memory the last one left."""

    KEEP = 0
    """compute; the last gradient was taken, so what the worker remembers of it holds"""
    UNDO = 1
    """compute; the last gradient came too late: remember what was before it"""
    FORGET = 2
    """compute; remember nothing"""
    HURRY = 3
    """the ticket was cancelled: do not play slow any longer"""


class Report(IntEnum):
    """What became of it."""

    GRADIENT = 0
    """the gradient lies in the worker's slot"""
    MISFIT = 1
    """the gradient has another shape or dtype; a letter says which"""
    ERROR = 2
    """the problem raised; a letter has the traceback"""
    LOSS = 3
    """the evaluator's answer, in the place of the start"""
    FINGERPRINT = 4
    """the fingerprint was computed; a letter has it"""
