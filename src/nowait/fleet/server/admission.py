"""Decides which hosts may join a run that listens, and answers what they ask before they work.

No clock, no input or output: times are arguments, and messages are returned.
"""

from __future__ import annotations

import logging
import math
import secrets
from dataclasses import fields
from typing import Any, final

from nowait.engines.fingerprint import Fingerprint, Match
from nowait.fleet.wire.job import Offer, Requests
from nowait.fleet.wire.messages import Joining, Shapes, Welcome, library_version, name_to_drain, python_version

logger = logging.getLogger("nowait.listen")

NO_DRAIN_KEY = (
    "draining needs the drain key of this run: the file that the server makes beside its key file, with the name that "
    "ends in .drain"
)


@final
class Admission:
    """What a run says to hosts that want to join it.

    A host that makes its own problem waits until the fingerprint of the server's problem is known.
    ``deterministic``: gradients can be repeated, so two fingerprints of one problem are alike.
    """

    def __init__(self, shapes: Shapes, offer: Offer, drain_key: bytes | None, *, deterministic: bool) -> None:
        self._shapes, self._offer, self._drain_key, self._deterministic = shapes, offer, drain_key, deterministic
        self._run = secrets.token_hex(16)
        self._barred: dict[str, str] = {}
        """Why a host was given up or drained, by the name of its process: it may not join again."""
        self._own: Fingerprint | None = None
        self._is_identified = False
        """True if the fingerprint of the server's problem is known, or could not be computed."""

    def identified(self, details: tuple[Any, ...] | None) -> None:
        """Take the fields of the fingerprint; None if it could not be computed."""
        self._is_identified = True
        if details is not None and len(details) == len(fields(Fingerprint)):
            self._own = Fingerprint(*details)

    def bar(self, joining: Joining, reason: str) -> None:
        """Refuse a host from now on."""
        self._barred[joining.process] = reason

    def reason_to_refuse(self, joining: Joining) -> str | None:
        """Return why a host is refused; empty if it is not, and None if that needs the fingerprint of our problem."""
        reason = joining.reason_to_refuse(library_version(), python_version())
        reason = reason or self._barred.get(joining.process, "")
        if reason or joining.problem is None:
            return reason
        return self._compare(joining.name, joining.problem) if self._is_identified else None

    def _compare(self, host: str, theirs: Fingerprint) -> str:
        """Return why a host with this problem is refused; empty if it is not. Log what the comparison leaves open."""
        own = self._own
        if own is None:
            logger.warning(
                "the problem of the host %s cannot be compared with that of the server, which has no fingerprint", host
            )
            return ""
        match = own.compare(theirs, deterministic=self._deterministic)
        if match is Match.OTHER:
            text = f"this worker has another problem, with {theirs}; that of the server has {own}"
            return f"{text}: {own.differs_by(theirs)}"
        if match is Match.UNSURE:
            logger.warning(
                "the host %s may have another problem than the server: %s. Another precision does this; if the "
                "precision is the same, compare the data, the model and its settings",
                host,
                own.differs_by(theirs),
            )
        return ""

    def welcome(self) -> bytes:
        """Return the answer to a host that may join."""
        return Welcome(self._run, self._shapes, self._offer.parts).to_bytes()

    def piece(self, requests: Requests, content: bytes) -> bytes:
        """Return the answer to a request for a piece of the job. Raises ``ProtocolError`` if there is none."""
        return self._offer.piece(requests.read(content))

    def name_to_drain(self, content: bytes, binding: bytes) -> tuple[str | None, bool]:
        """Read a request to drain hosts. Returns their name, None for a list, and whether the sender has the key."""
        return name_to_drain(content, self._drain_key, binding)


@final
class Refusals:
    """Lets one line about refused hosts through at a time, and counts the others: a host may come back at once.

    >>> refusals = Refusals(seconds=10.0)
    >>> (
    ...     refusals.add("a was refused", now=0.0),
    ...     refusals.add("b was refused", now=1.0),
    ...     refusals.due(now=9.0),
    ... )
    ('a was refused', '', '')
    >>> refusals.due(now=10.0), refusals.due(now=30.0)
    ('b was refused', '')
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = -math.inf
        self._latest, self._waiting = "", 0

    def add(self, text: str, now: float) -> str:
        """Note a refusal. Returns the line to log now; empty if it has to wait."""
        self._latest = text
        self._waiting += 1
        return self.due(now)

    def due(self, now: float) -> str:
        """Return the line about the refusals since the latest one; empty if there are none, or it is too early."""
        if not self._waiting or now < self._next:
            return ""
        more, self._waiting, self._next = self._waiting - 1, 0, now + self._seconds
        return f"{self._latest} (and {more} more before it)" if more else self._latest
