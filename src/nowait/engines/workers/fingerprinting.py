"""Follows the short-lived process that computes the fingerprint of a problem. Times are arguments."""

from __future__ import annotations

import math
from typing import Any, final

from nowait.engines.fingerprint import Fingerprint, Identification
from nowait.engines.workers.failures import NO_DETAILS
from nowait.fleet.wire.records import ReportKind

SECONDS_TO_RECORD = 10.0
"""A new run waits this long for the fingerprint; after that, it is recorded during the run."""
SECONDS_TO_COMPARE = 120.0
"""A resumed run waits this long for the fingerprint, and then continues without a comparison."""
NONE = -1
"""The serial number of a process that was not started."""


@final
class Fingerprinting:
    """The process that computes the fingerprint. If its gradient crashes or hangs, the run is not affected."""

    def __init__(self, identification: Identification | None) -> None:
        self._identification = identification
        self.serial = NONE
        """The serial number of the process."""
        self.running = False
        """True from the start of the process until it answered or was given up."""
        self._deadline = math.inf

    @property
    def is_wanted(self) -> bool:
        """True if a fingerprint is to be computed."""
        return self._identification is not None

    @property
    def _compares(self) -> bool:
        return self._identification is not None and self._identification.compares

    def started(self, serial: int, now: float) -> None:
        """Note that the process was started."""
        self.serial, self.running = serial, True
        self._deadline = now + (SECONDS_TO_COMPARE if self._compares else SECONDS_TO_RECORD)

    def blocks_the_run(self, now: float) -> bool:
        """Return True while the run should wait: the fingerprint is being computed, and there is time for it."""
        return self.running and now < self._deadline

    def answered(self, kind: int, details: tuple[Any, ...] | None) -> None:
        """Record or compare the fingerprint. Raises ValueError if a run is resumed with another problem."""
        if not self.running or self._identification is None:
            return
        if kind == ReportKind.FINGERPRINT and details is not None:
            self.running = False
            self._identification.known(Fingerprint(*details))
        else:
            self.ended(f"computing one gradient failed: {(details or NO_DETAILS)[1]}")

    def ended(self, cause: str) -> None:
        """Note that the process is gone or was given up."""
        if self.running and self._identification is not None:
            self.running = False
            self._identification.unknown(cause)

    def must_be_killed(self) -> bool:
        """Return True if the run begins now and the process is still computing: a comparison would come too late."""
        if not (self._compares and self.running):
            return False
        self.ended(f"one gradient took longer than {SECONDS_TO_COMPARE:.0f} s")
        return True
