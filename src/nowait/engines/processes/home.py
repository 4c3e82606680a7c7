"""All workers on this machine, with one zygote."""

from __future__ import annotations

import select
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, final

from nowait.core.errors import WorkerFailedError
from nowait.engines.processes.places import Gone, News, Opened, Place
from nowait.engines.processes.staff import Office, Staff


@final
class Home:
    """The only place of a run without a cluster: ``Places`` with as much room as anybody wants."""

    engine = "processes"

    def __init__(self, office: Office, threads: int, log: Path | None) -> None:
        self._office, self._threads, self._log = office, threads, log
        self._staff: Staff | None = None
        self._lost = False
        """The zygote is gone, and ``reopen_home`` was not called yet."""
        self._poller = select.poll()
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

    @property
    def home_is_ready(self) -> bool:
        """As ``Places.home_is_ready``."""
        return self._staff is not None and not self._lost and self._staff.ready

    def wait_until_ready(self, poller: select.poll, interrupted: Callable[[], bool]) -> None:
        """As ``Places.wait_until_ready``."""
        gone = self.home.wait_until_ready(interrupted)
        if gone is not None:
            raise WorkerFailedError(gone.cause)
        self._poller = poller
        poller.register(self.reports, select.POLLIN)
        poller.register(self.home.control, select.POLLIN)

    def reopen_home(self) -> None:
        """As ``Places.reopen_home``."""
        self.open()
        self._lost = False
        self._poller.register(self.home.control, select.POLLIN)

    def find(self) -> Staff | None:
        """As ``Places.find``: there is room for any number of workers, unless the zygote is being started again."""
        return self._staff if self.home_is_ready else None

    def release(self, place: Place) -> None:
        """As ``Places.release``: nobody counts."""

    def pending(self) -> bool:
        """As ``Places.pending``."""
        return not self._lost and self.home.has_news

    def hear(self, ready: Collection[int]) -> Iterator[News]:
        """As ``Places.hear``."""
        if self._lost:
            return
        home, was_ready = self.home, self.home.ready
        for news in home.news():
            if isinstance(news, Gone):
                self._lose_home()
                yield news
                return  # there may be a new home by now
            yield news
        if home.ready and not was_ready:
            yield Opened(home)

    def _lose_home(self) -> None:
        """End what is left of the zygote and its workers. ``self.home`` stays the same, so it can be compared."""
        self._lost = True
        self._poller.unregister(self.home.control)
        self.home.close()

    def read(self) -> bytes:
        """As ``Places.read``."""
        return self._office.mailbox.read()

    def drain(self) -> bytes:
        """As ``Places.drain``."""
        return self._office.mailbox.drain()

    def letter(self, worker: int, ticket: int) -> tuple[Any, ...] | None:
        """As ``Places.letter``."""
        return self._office.mailbox.letter(worker, ticket)

    def flush(self) -> None:
        """As ``Places.flush``: orders are written as they are given."""

    def look(self, vacancies: int, workers: int) -> Iterable[News]:
        """As ``Places.look``: nothing happens unseen."""
        return ()

    def close(self) -> None:
        """As ``Places.close``."""
        if self._staff is not None and not self._lost:
            self._staff.close()
