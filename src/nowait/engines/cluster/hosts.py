"""The hosts of a run, as the engine sees them: places that come and go."""

from __future__ import annotations

import json
import logging
import select
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from time import monotonic
from typing import Any, final

from nowait.core.errors import WorkerFailedError
from nowait.engines.cluster.back_off import BackOff
from nowait.engines.cluster.distant import DistantStaff
from nowait.engines.cluster.door import Door
from nowait.engines.cluster.network import Exchange
from nowait.engines.cluster.options import RayCluster
from nowait.engines.cluster.recruiter import Recruit, Recruiter, driver_ip
from nowait.engines.cluster.wire import AHEAD, CLOCK, DEATH, Format, Message, Say
from nowait.engines.processes.home import Home
from nowait.engines.processes.places import Died, Gone, News, Opened, Place, Reported
from nowait.engines.processes.staff import Office, Staff
from nowait.engines.processes.wire import REPORT, Report

logger = logging.getLogger("nowait")

GRADIENT = int(Report.GRADIENT)
MESSAGES_AT_ONCE = 64
SECONDS_BETWEEN_WORDS = 10.0
"""How often a run that waits for room says so."""
AWAY = 2.0
"""If the server did not look for so many seconds, it cannot say who was silent."""
SECONDS_BETWEEN_REQUESTS = 0.5
SLOW_NETWORK = 1e7
"""Bytes per second, at the least."""


@final
class Hosts:
    """``Places`` on the nodes of a Ray cluster. The evaluator is on the driver's machine, as without a cluster."""

    engine = "ray"

    def __init__(self, cluster: RayCluster, office: Office, minimum: int, max_failures: int, log: Path | None) -> None:
        self._cluster, self._minimum, self._max_failures = cluster, minimum, max_failures
        self._office = office
        self._home = Home(office, cluster.threads, log)
        self.reports = self._home.reports
        form = Format(office.points.length, office.points.dtype)
        self._exchange = Exchange(driver_ip(), cluster.port, form, encrypt=cluster.encrypt)
        self._door = Door()
        self._recruiter = Recruiter(cluster, office, self._door.key, self._exchange.address)
        self._poller = select.poll()
        self._hosts: dict[bytes, Recruit] = {}
        """By identity."""
        self._files: dict[int, Recruit] = {}
        """Those on this node, by the file descriptor of the zygote's socket."""
        self._starting = True
        self._deaths, self._hopeless, self._last_words = 0, False, ""
        """How many hosts in a row did not live long; whether that will go on; why the latest one ended."""
        self._error: Exception | None = None
        self._looked = self._worked = self._told = monotonic()
        self._ask_after = 0.0
        self._back_off = BackOff(monotonic)
        self._unproven = False
        """A host on this node is ready, and no gradient has come from here since."""

    @property
    def home(self) -> Staff:
        """As ``Places.home``."""
        return self._home.home

    @property
    def home_is_ready(self) -> bool:
        """As ``Places.home_is_ready``."""
        return self._home.home_is_ready

    def open(self) -> None:
        """As ``Places.open``."""
        self._recruiter.ask(self._minimum, self._minimum)
        self._home.open()

    def wait_until_ready(self, poller: select.poll, interrupted: Callable[[], bool]) -> None:
        """As ``Places.wait_until_ready``: until there is room for as many workers as the run needs."""
        self._home.wait_until_ready(poller, interrupted)
        self._poller = poller
        for fd in (self._door.fd, self._exchange.fd):
            poller.register(fd, select.POLLIN)
        self._worked = self._told = monotonic()
        while self._room() < self._minimum and not interrupted():
            ready = [fd for fd, _ in poller.poll(0 if self.pending() else 100)]
            for news in (*self.hear(ready), *self.look(self._minimum, 0)):
                if isinstance(news, Gone) and news.place is self.home:
                    raise WorkerFailedError(f"the process that computes losses could not start: {news.cause}")
            if self._hopeless or self._deaths > self._max_failures:
                raise WorkerFailedError(f"hosts cannot start: {self._last_words}") from self._error
        self._starting = False

    def reopen_home(self) -> None:
        """As ``Places.reopen_home``."""
        self._home.reopen_home()

    # Room

    def _room(self) -> int:
        return sum(host.room for host in self._hosts.values() if host.ready)

    def find(self) -> Place | None:
        """As ``Places.find``: on the driver's own node first."""
        hosts = [host for host in self._hosts.values() if host.ready and host.room > 0]
        if not hosts:
            return None
        host = min(hosts, key=lambda host: host.near is None)
        host.room -= 1
        return host.place

    def release(self, place: Place) -> None:
        """As ``Places.release``."""
        for host in self._hosts.values():
            if host.place is place:
                host.room += 1

    # What is said

    def read(self) -> bytes:
        """As ``Places.read``."""
        reports = self._home.read()
        if self._unproven:
            self._look_for_gradients(reports)
        return reports

    def drain(self) -> bytes:
        """As ``Places.drain``."""
        return self._home.drain()

    def _look_for_gradients(self, reports: bytes) -> None:
        """Note that hosts on this node deliver. The evaluator reports through the same pipe."""
        if any(kind == GRADIENT for *_, kind in REPORT.iter_unpack(reports)):
            self._unproven = False
            for host in self._files.values():
                host.delivered = host.delivered or host.ready

    def letter(self, worker: int, ticket: int) -> tuple[Any, ...] | None:
        """As ``Places.letter``."""
        return self._home.letter(worker, ticket)

    def pending(self) -> bool:
        """As ``Places.pending``."""
        near = (host.near.has_news for host in self._files.values() if host.near is not None)
        return self._exchange.pending() or self._home.pending() or any(near)

    def flush(self) -> None:
        """As ``Places.flush``."""
        for host in self._hosts.values():
            if host.far is not None:
                host.far.flush()

    def hear(self, ready: Collection[int]) -> Iterator[News]:
        """As ``Places.hear``."""
        home = self.home.control.fileno()
        for fd in ready:
            if fd not in (*self._files, home, self._exchange.fd, self.reports):
                self._open_the_door(fd)
        if home in ready or self._home.pending():
            yield from self._home.hear(())
        for fd, host in list(self._files.items()):
            if fd in ready or (host.near is not None and host.near.has_news):
                yield from self._hear_zygote(host)
        for _ in range(MESSAGES_AT_ONCE):  # ``pending`` brings the engine back, which has other things to look at
            if (received := self._exchange.receive()) is None:
                return
            yield from self._hear_host(*received)

    def _open_the_door(self, fd: int) -> None:
        """Somebody on this machine knocks, or says who it is."""
        guest = self._door.answer(fd, self._poller)
        if guest is None:
            return
        identity, control = guest
        host = self._known(identity)
        if host is None:
            control.close()
            return
        host.near = Staff(control, self._office)
        self._files[control.fileno()] = host
        self._poller.register(control, select.POLLIN)

    def _hear_zygote(self, host: Recruit) -> Iterator[News]:
        if host.near is None:
            return
        for news in host.near.news():
            if isinstance(news, Gone):
                yield from self._lose(host, news.cause, lasting=news.lasting)
                return
            yield news
        if host.near.ready and not host.ready:
            yield self._welcome(host, host.near)

    def _hear_host(self, identity: bytes, message: Message) -> Iterator[News]:
        host = self._known(identity)
        if host is None:
            return  # it was given up
        if host.far is None:
            host.far = DistantStaff(identity, self._exchange)
        host.far.heard = monotonic()
        yield from self._hear_distant(host, host.far, message)

    def _hear_distant(self, host: Recruit, staff: DistantStaff, message: Message) -> Iterator[News]:
        kind, content, vectors = message
        if kind == Say.REPORTS:
            staff.reported()
            host.delivered = host.delivered or len(vectors) > 0
            yield Reported(staff, content, vectors)
        elif kind == Say.LETTER:
            self._office.mailbox.keep(*json.loads(content))
        elif kind == Say.DIED:
            yield Died(*DEATH.unpack(content))
        elif kind == Say.ASK_TIME:
            self._exchange.send(host.identity, Say.TIME, CLOCK.pack(CLOCK.unpack(content)[0], monotonic()))
        elif kind == Say.READY:
            [staff.clock_ahead] = AHEAD.unpack(content)
            yield self._welcome(host, staff)
        elif kind == Say.FAILED:
            yield from self._lose(host, content.decode(), lasting=True)

    def _known(self, identity: bytes) -> Recruit | None:
        if identity not in self._hosts:
            self._take_recruits()
        return self._hosts.get(identity)

    def _take_recruits(self) -> None:
        self._hosts |= {host.identity: host for host in self._recruiter.started()}
        self._exchange.expect(len(self._hosts))

    def _welcome(self, host: Recruit, staff: Place) -> Opened:
        host.ready, host.since = True, monotonic()
        self._unproven = self._unproven or host.near is not None
        logger.info("a host on %s is ready for %d workers", host.node, host.size)
        return Opened(staff)

    def _lose(self, host: Recruit, cause: str, *, lasting: bool = False) -> Iterator[News]:
        """A host is gone, or given up, for a cause that may be lasting. What it says from now on is not heard."""
        del self._hosts[host.identity]
        if host.near is not None:
            self._files.pop(host.near.control.fileno())
            self._poller.unregister(host.near.control)
            host.near.close()
        self._recruiter.dismiss(host)
        self._count(host)
        self._hopeless, self._last_words = self._hopeless or (lasting and self._starting), cause
        if host.ready and host.place is not None:
            yield Gone(host.place, f"the host on {host.node} is lost ({cause})")
        else:
            self._recruiter.failed(host)
            logger.warning("a host on %s could not start: %s", host.node, cause)

    def _count(self, host: Recruit) -> None:
        """Count a host that is lost, and pause its node."""
        ready_seconds = monotonic() - host.since if host.ready else 0.0
        useful = self._back_off.lost(host.node_id, ready_seconds=ready_seconds, delivered=host.delivered)
        self._deaths = 1 if useful else self._deaths + 1

    # Now and then

    def look(self, vacancies: int, workers: int) -> Iterator[News]:
        """As ``Places.look``: hosts that ended or are silent, and more hosts if there are workers without room."""
        now, may_ask = monotonic(), not self._recruiter.asking  # in this order: else hosts might be asked for twice
        self._take_recruits()
        away, self._looked = now - self._looked > AWAY, now
        for host in list(self._hosts.values()):
            if away and host.far is not None:
                host.far.heard = now
            yield from self._look_at(host, now)
        self._take_error(self._recruiter.error())
        promised = sum(host.size for host in self._hosts.values() if not host.ready)
        missing = vacancies - promised - self._room()
        if missing > 0 and may_ask and now >= self._ask_after:
            self._ask_after = min(now + SECONDS_BETWEEN_REQUESTS, self._back_off.next_end())
            total = missing + sum(host.size for host in self._hosts.values())
            self._recruiter.ask(missing, total, self._back_off.paused())
        if workers:
            self._worked = now
        elif vacancies:
            self._complain(vacancies, now)

    def _look_at(self, host: Recruit, now: float) -> Iterator[News]:
        if host.ended.done():
            cause, lasting = self._recruiter.why(host)
            yield from self._lose(host, cause, lasting=lasting)
        elif not host.ready and now - host.since > self._cluster.start_seconds:
            yield from self._lose(host, f"it did not start within {self._cluster.start_seconds:.0f} s")
        elif host.ready and host.far is not None and now - host.far.heard > self._patience(host):
            yield from self._lose(host, f"it was silent for {now - host.far.heard:.0f} s")

    def _patience(self, host: Recruit) -> float:
        """How long a host may be silent: also as long as its gradients may take on a slow network."""
        points = self._office.points
        gradients = float(host.size * points.length * points.dtype.itemsize)
        return self._cluster.heartbeat_seconds + gradients / SLOW_NETWORK

    def _take_error(self, error: Exception | None) -> None:
        """A call to Ray failed: hopeless at the start, to be tried again later."""
        if error is not None:
            self._error, self._last_words = error, f"Ray said: {error}"
            self._hopeless = self._hopeless or self._starting
            self._ask_after = monotonic() + SECONDS_BETWEEN_WORDS
            logger.warning("Ray could not be asked for hosts: %s", error)

    def _complain(self, vacancies: int, now: float) -> None:
        """Nobody works: wait for room, but not for ever."""
        waited = now - self._worked
        found = f"there is room for {self._room()} of {vacancies} workers"
        needs = f"each needs {self._cluster.need}; {self._recruiter.nodes()}"
        if waited > self._cluster.start_seconds:
            raise WorkerFailedError(f"after {waited:.0f} s {found}: {needs}")
        if now - self._told > SECONDS_BETWEEN_WORDS:
            self._told = now
            logger.warning("waiting for workers: %s: %s", found, needs)

    def close(self) -> None:
        """As ``Places.close``."""
        for host in self._hosts.values():
            if host.far is not None:
                host.far.end()
            elif host.near is not None:
                host.near.close()
        self._recruiter.close()
        self._door.close()
        self._exchange.close()
        self._home.close()
