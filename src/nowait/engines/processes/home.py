"""All workers on this machine, with one zygote."""

from __future__ import annotations

import select
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, final

from nowait.core.errors import WorkerFailedError
from nowait.engines.processes.places import News, Place
from nowait.engines.processes.staff import Office, Staff


@final
class Home:
    """The only place of a run without a cluster: ``Places`` with as much room as anybody wants."""

    way = "processes"

    def __init__(self, office: Office, threads: int, log: Path | None) -> None:
        self._office, self._threads, self._log = office, threads, log
        self._staff: Staff | None = None
        self._poller: select.poll | None = None
        self.reports = office.mailbox.reports

    @property
    def home(self) -> Staff:
        """As ``Places.home``."""
        if self._staff is None:
            raise RuntimeError("the engine has no zygote: it was not started, or is closed")
        return self._staff

    def open(self) -> None:
        """As ``Places.open``."""
        self._staff = Staff.start(self._office, self._threads, self._log)

    def wait_until_ready(self, poller: select.poll, interrupted: Callable[[], bool]) -> None:
        """As ``Places.wait_until_ready``."""
        gone = self.home.wait_until_ready()
        if gone is not None:
            raise WorkerFailedError(gone.cause)
        self._poller = poller
        poller.register(self.reports, select.POLLIN)
        poller.register(self.home.control, select.POLLIN)

    def reopen_home(self) -> None:
        """As ``Places.reopen_home``."""
        if self._poller is not None:
            self._poller.unregister(self.home.control)
            self.home.close()
            self.open()
            self.wait_until_ready(self._poller, lambda: False)

    def find(self) -> Staff:
        """As ``Places.find``."""
        return self.home

    def release(self, place: Place) -> None:
        """As ``Places.release``: nobody counts."""

    def pending(self) -> bool:
        """As ``Places.pending``."""
        return self.home.has_news

    def hear(self, ready: Collection[int]) -> Iterable[News]:
        """As ``Places.hear``."""
        return self.home.news()

    def read(self) -> bytes:
        """As ``Places.read``."""
        return self._office.mailbox.read()

    def drain(self) -> bytes:
        """As ``Places.drain``."""
        return self._office.mailbox.drain()

    def letter(self, worker: int) -> tuple[Any, ...]:
        """As ``Places.letter``."""
        return self._office.mailbox.letter(worker)

    def flush(self) -> None:
        """As ``Places.flush``: orders are written as they are given."""

    def look(self, vacancies: int, workers: int) -> Iterable[News]:
        """As ``Places.look``: nothing happens unseen."""
        return ()

    def close(self) -> None:
        """As ``Places.close``."""
        if self._staff is not None:
            self._staff.close()
