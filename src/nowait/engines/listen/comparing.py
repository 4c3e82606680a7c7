"""Compares the problems of hosts that made their own with that of the server. No clock, no input or output.

The server's fingerprint is computed by a process of its own, so hosts may have to wait for it.
"""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any, final

from nowait.engines.fingerprint import Fingerprint, Match

logger = logging.getLogger("nowait.listen")


@final
class Comparison:
    """The fingerprint of the server's problem, once it is known. ``deterministic``: gradients can be repeated."""

    def __init__(self, *, deterministic: bool) -> None:
        self._deterministic = deterministic
        self._own: Fingerprint | None = None
        self.asked = False
        """True if a process computes the fingerprint, or has done so."""
        self.finished = False
        """True if the fingerprint is known, or could not be computed."""

    def answered(self, details: tuple[Any, ...] | None) -> None:
        """Take what the process said: the fields of a fingerprint, or kind and text of an error."""
        self.asked = self.finished = True
        if details is not None and len(details) == len(fields(Fingerprint)):
            self._own = Fingerprint(*details)

    def ended(self) -> None:
        """Note that the process has ended, with or without an answer."""
        self.asked = self.finished = True

    def ask_again(self) -> None:
        """Note that the process, if there is one, cannot answer any more because all processes were ended."""
        self.asked = self.finished

    def reason_to_refuse(self, host: str, theirs: Fingerprint) -> str:
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
