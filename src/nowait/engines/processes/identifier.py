"""The process that computes the fingerprint of a problem, as the server sees it."""

from __future__ import annotations

from time import monotonic
from typing import Any, final

from nowait.engines.fingerprint import Fingerprint, Identification
from nowait.engines.processes.failures import NO_DETAILS
from nowait.engines.processes.places import Line, Place
from nowait.engines.processes.wire import FINGERPRINTER, Report

SECONDS_TO_RECORD = 10.0
"""A new run begins after so many seconds; the fingerprint is recorded whenever it is known."""
SECONDS_TO_COMPARE = 120.0
"""A run that is resumed goes on without a comparison after so many seconds."""


@final
class Identifier:
    """One short-lived process: a crash or a hang of the gradient there leaves the run as it is."""

    def __init__(self, identification: Identification | None) -> None:
        self._identification = identification
        self._line: Line | None = None
        self._place: Place | None = None
        self._serial = -1
        self._deadline = 0.0

    @property
    def is_wanted(self) -> bool:
        """True if a fingerprint is to be computed."""
        return self._identification is not None

    def begin(self, place: Place, serial: int) -> None:
        """Have the fingerprint computed."""
        self._place, self._serial = place, serial
        self._line = place.hire(FINGERPRINTER, serial, monotonic())
        self._deadline = monotonic() + (SECONDS_TO_COMPARE if self._compares else SECONDS_TO_RECORD)

    @property
    def blocks_the_run(self) -> bool:
        """True while the run should not begin: the fingerprint is being computed, and there is time for it."""
        return self._line is not None and monotonic() < self._deadline

    @property
    def _compares(self) -> bool:
        return self._identification is not None and self._identification.compares

    def is_at(self, place: Place) -> bool:
        """True while the process is running in this place."""
        return self._line is not None and self._place is place

    def owns(self, serial: int) -> bool:
        """True if this is the serial number of the process."""
        return serial == self._serial

    def answered(self, kind: int, letter: tuple[Any, ...] | None) -> None:
        """The process reported. Raises ValueError if a run is resumed with another problem."""
        if self._line is None or self._identification is None:
            return
        if kind == Report.FINGERPRINT and letter is not None:
            self.close()
            self._identification.known(Fingerprint(*letter))
        else:
            self.ended(f"computing one gradient failed: {(letter or NO_DETAILS)[1]}")

    def ended(self, cause: str) -> None:
        """The process is gone, or given up."""
        if self._line is not None and self._identification is not None:
            self.close()
            self._identification.unknown(cause)

    def stop_blocking(self) -> None:
        """The run begins. A comparison would come too late, so end a process that is still computing for one."""
        if self._compares and self._line is not None and self._place is not None:
            self._place.kill(self._serial)
            self.ended(f"one gradient took longer than {SECONDS_TO_COMPARE:.0f} s")

    def close(self) -> None:
        """Close the pipe to the process."""
        if self._line is not None:
            self._line.close()
            self._line = None
