"""What the server and a host say to each other. The first byte of a message says what it is."""

from __future__ import annotations

import struct
from enum import IntEnum

SAME_POINT = 16
"""Added to an ``Order``: its point is that of the order before it in the message."""
CLOCK = struct.Struct("<dd")
"""The host's clock when it asked, the server's when it answered."""
HIRED = struct.Struct("<iqd")
"""Worker, serial number, when the run began on the host's clock."""
DEATH = struct.Struct("<qi")
"""Serial number, exit code."""


class Say(IntEnum):
    """From the server to a host, then from a host to the server."""

    ORDERS = 1
    """``ORDER`` records with the worker in the place of the slot, then the points"""
    HIRE = 2
    KILL = 3
    TIME = 4
    """answers a host that asked for the time"""
    END = 5
    ASK_TIME = 6
    READY = 7
    """workers can be hired; with the seconds that the host's clock is ahead"""
    FAILED = 8
    """the host ends; with the reason"""
    REPORTS = 9
    """``REPORT`` records, then the gradients"""
    LETTER = 10
    """in JSON: worker, letter; before the report that announces it"""
    DIED = 11
    BEAT = 12
    """nothing to report, but alive"""


def message(kind: Say, content: bytes = b"") -> bytes:
    """The head of a message."""
    return bytes((kind,)) + content
