"""Where the workers of one machine leave their reports and letters."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
from typing import Any, final

from nowait.engines.processes.platform import letter_sockets
from nowait.engines.processes.wire import LONGEST_MESSAGE, REPORT

READ_BYTES = 2048 * REPORT.size


@final
class Mailbox:
    """One pipe for the reports of all, read in batches; one socket for letters, which a report announces.

    This process keeps the workers' ends too, to give them to zygotes that start later.
    """

    def __init__(self) -> None:
        self.reports, self.their_reports = os.pipe()
        self._letters, self.their_letters = letter_sockets()
        self._letters_kept: dict[int, tuple[Any, ...]] = {}

    def read(self) -> bytes:
        """Reports; waits if there are none."""
        return os.read(self.reports, READ_BYTES)

    def drain(self) -> bytes:
        """All reports that are there."""
        reports = b""
        while select.select([self.reports], [], [], 0)[0] and (more := self.read()):
            reports += more
        return reports

    def letter(self, worker: int) -> tuple[Any, ...]:
        """The letter that a report of this worker announced."""
        while worker not in self._letters_kept:
            sender, *letter = pickle.loads(self._letters.recv(2 * LONGEST_MESSAGE))
            self._letters_kept[sender] = tuple(letter)
        return self._letters_kept.pop(worker)

    def keep(self, worker: int, letter: tuple[Any, ...]) -> None:
        """A letter that came another way."""
        self._letters_kept[worker] = letter

    def close(self) -> None:
        """Whoever writes now finds nobody."""
        for pipe in (self.reports, self.their_reports):
            with contextlib.suppress(OSError):
                os.close(pipe)
        self._letters.close()
        self.their_letters.close()
