"""Hosts on the nodes of a Ray cluster: which there are, which are lost, and how many more to ask for.

On the driver's node a host only starts a zygote, which shares memory with the server. A host on another node passes
orders and reports on. Ray is imported when the source is opened.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, final

from nowait.core.errors import WorkerFailedError
from nowait.fleet.host.host import Machine, Resources
from nowait.fleet.host.launch import Zygote
from nowait.fleet.options import RayCluster
from nowait.fleet.server.events import (
    HOME,
    Gradients,
    HostEvent,
    HostGone,
    HostLeaves,
    HostReady,
    Port,
    SourceEmit,
    TakeReports,
)
from nowait.fleet.server.gateway import Gateway
from nowait.fleet.server.patience import SECONDS_BETWEEN_WARNINGS, BackOff, Wait
from nowait.fleet.server.remote import Exchange, RemoteHost
from nowait.fleet.server.vectors import ServerVectors
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.messages import Message, MessageKind, grace_seconds
from nowait.fleet.wire.records import GRADIENT, REPORT
from nowait.fleet.wire.secure import ProtocolError

if TYPE_CHECKING:
    from nowait.fleet.sources.ray_nodes import HostProvisioner

logger = logging.getLogger("nowait")

SECONDS_BETWEEN_REQUESTS = 0.5
SECONDS_TO_SAY_WHY = 3.0
"""How long to wait, after a connection broke, for Ray to say why the host exited."""
STUCK_SECONDS = 30.0
"""A host that has not connected for this long waits for resources: others may be started elsewhere instead."""
FULL_SECONDS = 120.0
"""How long a node is paused if another job took its resources."""


# Decisions, without a clock, input or output


@final
@dataclass(eq=False)
class HostRecord:
    """A host that was asked for."""

    number: int
    node: str
    """The name of the node, used in messages."""
    node_id: str
    size: int
    """How many workers it runs at most."""
    since: float
    """When it was asked for; later when it became ready."""
    actor: Any = None
    ended: Future[str] = field(default_factory=Future)
    """Done when the actor has exited."""
    connected: bool = False
    """True once it has sent something: it runs, and loads the problem."""
    ready: bool = False
    leaving: bool = False
    """True if it will exit soon: it gets no more workers, and its end is not a failure."""
    cancelled: str = ""
    """Why it was cancelled before it ran, if it was."""
    delivered: bool = False
    """On the driver's node: True if the workers of any host there have delivered a gradient."""
    is_local: bool = False
    """True if it runs on the driver's node and shares memory with the server."""
    remote: RemoteHost | None = None
    """Its connection, if it is on another node and has connected."""
    disconnected: tuple[float, str] | None = None
    """When its connection broke, and why."""

    @property
    def identity(self) -> bytes:
        """The name by which it is recognised when it connects."""
        return str(self.number).encode()


class Request(NamedTuple):
    """What to ask for."""

    workers: int
    """For how many workers hosts are missing."""
    total: int
    """How many workers all hosts are to have."""
    paused: frozenset[str] = frozenset()
    """The nodes where no host may be started now."""
    stuck: tuple[HostRecord, ...] = ()
    """Hosts that wait for resources. ``workers`` includes theirs: they are cancelled if others are started instead."""


@final
class HostTable:
    """The hosts of a run, and the failures of their nodes. Times are arguments."""

    def __init__(self, *, start_seconds: float, stuck_seconds: float = STUCK_SECONDS) -> None:
        self._start_seconds, self._stuck_seconds = start_seconds, stuck_seconds
        self.by_number: dict[int, HostRecord] = {}
        self.failures_in_a_row = 0
        """How many hosts in a row were lost before they were useful."""
        self._now = 0.0
        self._back_off = BackOff(lambda: self._now)
        self._ask_after = 0.0

    def add(self, hosts: Iterable[HostRecord]) -> None:
        """Add hosts that were asked for."""
        self.by_number |= {host.number: host for host in hosts}

    def of(self, identity: bytes) -> HostRecord | None:
        """Return the host with this identity; None if it is unknown or was given up."""
        return next((host for host in self.by_number.values() if host.identity == identity), None)

    def is_ready(self, host: HostRecord, now: float) -> None:
        """Note that workers can be started on a host."""
        host.ready, host.since = True, now

    def leave(self, host: HostRecord, seconds: float, now: float) -> None:
        """Note that a host exits within so many seconds. Until then no other is started on its node."""
        self._now = now
        host.leaving = True
        self._back_off.pause(host.node_id, seconds)

    def lose(self, host: HostRecord, now: float) -> None:
        """Remove a host that is gone. Unless it was to go, its node is paused."""
        self._now = now
        del self.by_number[host.number]
        if host.cancelled:
            self._back_off.pause(host.node_id, FULL_SECONDS)
        if host.cancelled or host.leaving:
            return
        ready_seconds = now - host.since if host.ready else 0.0
        delivered = host.delivered or (host.remote is not None and host.remote.delivered)
        useful = self._back_off.lost(host.node_id, ready_seconds=ready_seconds, delivered=delivered)
        self.failures_in_a_row = 1 if useful else self.failures_in_a_row + 1

    def overdue(self, now: float) -> list[tuple[HostRecord, str]]:
        """Return the hosts that did not start in time, or are disconnected for no known reason, with what to say."""
        late = []
        for host in self.by_number.values():
            if not host.ready and now - host.since > self._start_seconds:
                late.append((host, f"it did not start within {self._start_seconds:.0f} s"))
            elif host.disconnected is not None and now - host.disconnected[0] > SECONDS_TO_SAY_WHY:
                late.append((host, f"its connection is gone: {host.disconnected[1]}"))
        return late

    def request(self, missing: float, now: float) -> Request | None:
        """Return what to ask for now; None if nothing is missing or it is not time to ask.

        ``missing`` workers have no seat, and there are no free ones on hosts that are ready.
        """
        self._now = now
        stuck = tuple(host for host in self.by_number.values() if self._is_stuck(host, now))
        expected = [host for host in self.by_number.values() if not host.leaving and host not in stuck]
        missing -= sum(host.size for host in expected if not host.ready)
        if missing <= 0 or now < self._ask_after:
            return None
        self._ask_after = min(now + SECONDS_BETWEEN_REQUESTS, self._back_off.next_end())
        total = missing + sum(host.size for host in expected)
        paused = self._back_off.paused() | {host.node_id for host in stuck}
        return Request(math.ceil(missing), math.ceil(total), paused, stuck)

    def room(self) -> int:
        """Return how many workers all hosts can have that are ready and do not leave."""
        return sum(host.size for host in self.by_number.values() if host.ready and not host.leaving)

    def _is_stuck(self, host: HostRecord, now: float) -> bool:
        waits = not (host.connected or host.ready or host.leaving or host.cancelled)
        return waits and now - host.since > self._stuck_seconds

    def do_not_ask_before(self, time: float) -> None:
        """Wait with the next request."""
        self._ask_after = time


def choose_nodes(
    workers: int, nodes: Iterable[tuple[str, str, int]], paused: Collection[str], largest_host: float
) -> tuple[list[tuple[str, str, int]], int]:
    """Return on which nodes to start hosts of which size, and for how many workers there is no room.

    ``nodes`` are (id, name, room), the best first.
    """
    chosen = []
    for node_id, name, room in nodes:
        taken = 0 if node_id in paused else max(0, min(room, workers))
        workers -= taken
        while taken > 0:
            size = int(min(taken, largest_host))
            chosen.append((node_id, name, size))
            taken -= size
    return chosen, workers


# Input and output


@final
class RaySource:
    """Hosts on the nodes of a cluster. The evaluator runs on the driver's machine, in ``HOME``, without seats."""

    engine = "ray"

    def __init__(
        self,
        cluster: RayCluster,
        resources: Resources,
        hub: Hub,
        *,
        minimum: int,
        max_failures: int,
        log: Path | None,
    ) -> None:
        self._cluster, self._resources, self._hub, self._log = cluster, resources, hub, log
        self._minimum, self._max_failures = minimum, max_failures
        self.details = resources.mailbox.details
        self._hosts = HostTable(
            start_seconds=cluster.start_seconds,
            stuck_seconds=STUCK_SECONDS if cluster.runtime_env is None else math.inf,  # it may take long to set up
        )
        self._starting = True
        """True until there is room for the run for the first time."""
        self._hopeless, self._last_cause = False, ""
        """Whether more hosts would fail too; why the latest host was lost."""
        self._error: Exception | None = None
        self._check_deliveries = False
        """True if a local host is ready and no gradient has come from this node since."""
        self._wait = Wait(0.0)
        self._open_parts = contextlib.ExitStack()

    @property
    def traffic(self) -> tuple[int, int]:
        """How many bytes were received from other machines and sent to them."""
        return self._gateway.traffic

    def open(self, emit: SourceEmit, take: TakeReports) -> None:
        """Bind the sockets, ask Ray for hosts, and launch the zygote of the evaluator."""
        from nowait.fleet.sources.ray_nodes import HostProvisioner, driver_ip

        cluster, resources = self._cluster, self._resources
        self._emit, self._take = emit, take
        with contextlib.ExitStack() as stack:
            self._machine = Machine(resources, self._hub, self._on_local_reports)
            stack.callback(self._machine.close)
            vectors = ServerVectors(resources.points, resources.gradients, resources.encodings)
            exchange = Exchange(self._hub, vectors, resources.mailbox.add_details, emit, take, self)
            self._gateway = Gateway(exchange, cluster.heartbeat_seconds)
            stack.callback(self._gateway.close)
            self._gateway.open(driver_ip(), cluster.port, encrypt=cluster.encrypt)
            self._gateway.open_here()
            addresses = self._gateway.local_address, self._gateway.address
            self._provisioner: HostProvisioner = HostProvisioner(cluster, resources, *addresses, vectors.shapes)
            self._provisioner.open()
            stack.callback(self._provisioner.close)
            self._provisioner.ask(Request(self._minimum, self._minimum))
            self._machine.open()
            self.open_home()
            self._wait = Wait(monotonic())
            self._open_parts = stack.pop_all()

    def open_home(self) -> None:
        """Launch the zygote of the evaluator."""
        self._machine.add(Zygote.launch(self._cluster.threads), self._on_local_event, seats=0, log=self._log)

    def port(self, host: int) -> Port:
        """Return the port of a host."""
        record = self._hosts.by_number.get(host)
        return self._machine.pools[host] if record is None or record.remote is None else record.remote

    def end_host(self, host: int, reason: str) -> None:
        """Let a host exit, and return its resources to the cluster. It may be gone already."""
        record = self._hosts.by_number.pop(host, None)
        if record is None:
            return
        if reason:
            self._provisioner.failed(record)
        logger.info("the host on %s is dismissed", record.node)
        self._end(record)
        if record.ready:
            self._provisioner.release(record)
        else:
            self._provisioner.dismiss(record)

    def _end(self, host: HostRecord) -> None:
        if host.remote is not None:
            host.remote.end()
        self._machine.remove(host.number)

    def identified(self, fingerprint: tuple[Any, ...] | None) -> None:
        """Do nothing: nobody has another problem."""

    def close(self) -> None:
        """End all hosts and close everything. It may be called twice."""
        while self._hosts.by_number:
            self._end(self._hosts.by_number.popitem()[1])
        self._gateway.close()  # sends hosts the end; only then can the provisioner wait for theirs
        self._open_parts.close()

    # From hosts on the driver's node

    def connected_here(self, identity: bytes, control: socket.socket) -> None:
        """Add the pool of a host on this node that has connected and authenticated."""
        host = self._known(identity)
        if host is None:
            control.close()
            return
        host.is_local = True
        self._machine.add(control, self._on_local_event, seats=host.size, host=host.number, name=host.node)

    def _on_local_event(self, event: HostEvent) -> None:
        number = event.host if isinstance(event, (HostReady, HostGone, HostLeaves)) else HOME
        host = self._hosts.by_number.get(number)
        if host is None:
            if isinstance(event, HostReady):
                self._wait.ended(monotonic())  # loading the problem does not count as waiting for room
            self._emit(event)
        elif isinstance(event, HostGone):
            self._lose(host, event.cause, lasting=event.lasting)
        elif isinstance(event, HostLeaves):
            self._leave(host, event.seconds)
        else:
            self._check_deliveries = True
            self._offer(host)

    def _on_local_reports(self, records: bytes, gradients: Gradients) -> None:
        if self._check_deliveries:
            self._note_deliveries(records)
        self._take(records, gradients)

    def _note_deliveries(self, records: bytes) -> None:
        """Note that hosts on this node deliver. The evaluator reports through the same pipe."""
        if any(kind == GRADIENT for *_, kind in REPORT.iter_unpack(records)):
            self._check_deliveries = False
            for host in self._hosts.by_number.values():
                host.delivered = host.delivered or (host.is_local and host.ready)

    # From hosts on other nodes

    def connected(self, host: RemoteHost) -> bool:
        """Set the number of a host that has authenticated; False if it was given up."""
        record = self._known(host.identity)
        if record is None:
            return False
        record.remote, host.number = host, record.number
        host.may_be_silent = True  # until it is ready it has ``start_seconds``
        return True

    def ready(self, host: RemoteHost) -> None:
        """Offer the seats of a host that has loaded the problem."""
        host.may_be_silent = False
        self._offer(self._hosts.by_number[host.number])

    def on_message(self, host: RemoteHost, message: Message) -> None:
        """Handle that a host leaves."""
        if message.kind != MessageKind.LEAVING:
            raise ProtocolError(f"it sent the kind {message.kind}")
        self._leave(self._hosts.by_number[host.number], grace_seconds(message.content))

    def lost(self, host: RemoteHost, cause: str, *, wrong: bool, lasting: bool) -> None:
        """Give up a host that we have disconnected; if it has done so itself, Ray may say why it exited."""
        record = self._hosts.by_number.get(host.number)
        if record is None:
            return
        if wrong or lasting:
            self._lose(record, cause, lasting=lasting)
        else:
            record.disconnected = (monotonic(), cause)

    # From all hosts

    def _known(self, identity: bytes) -> HostRecord | None:
        """Return the host that has connected; None if it was given up, or connects again, which no host does."""
        host = self._hosts.of(identity)
        if host is None:
            self._take_started()
            host = self._hosts.of(identity)
        if host is None or host.connected:
            return None
        host.connected = True
        return host

    def _take_started(self) -> None:
        self._hosts.add(self._provisioner.started())
        self._gateway.expect(len(self._hosts.by_number))

    def _offer(self, host: HostRecord) -> None:
        self._hosts.is_ready(host, monotonic())
        logger.info("a host on %s is ready for %d workers", host.node, host.size)
        self._emit(HostReady(host.number, host.size, distance=int(not host.is_local), name=host.node, label=host.node))

    def _leave(self, host: HostRecord, seconds: float) -> None:
        logger.info("the host on %s leaves within %.0f s", host.node, seconds)
        self._hosts.leave(host, seconds, monotonic())
        self._emit(HostLeaves(host.number, seconds))

    def _lose(self, host: HostRecord, cause: str, *, lasting: bool = False) -> None:
        """Give up a host, for a cause that may be lasting. It may be gone already."""
        if host.number not in self._hosts.by_number:
            return
        self._hosts.lose(host, monotonic())
        if host.remote is not None:
            host.remote.close()
        self._machine.remove(host.number)
        self._provisioner.dismiss(host)
        self._hopeless, self._last_cause = self._hopeless or (lasting and self._starting), cause
        if host.ready:
            self._emit(HostGone(host.number, f"the host on {host.node} is lost ({cause})"))
        elif not host.leaving:
            self._provisioner.failed(host)
            logger.warning("a host on %s could not start: %s", host.node, cause)

    # Periodic work

    def tick(self, missing: int, working: int) -> None:
        """Find hosts that exited or did not start, and ask for more if workers have no seat."""
        now, may_ask = monotonic(), not self._provisioner.asking  # in this order: else it might ask twice
        self._take_started()
        self._gateway.tick(now)
        self._lose_exited()
        for host, cause in self._hosts.overdue(now):
            self._lose(host, cause)
        draining = self._provisioner.draining(now)
        for host in [host for host in self._hosts.by_number.values() if host.node_id in draining and not host.leaving]:
            self._leave(host, draining[host.node_id])
        self._check_error(self._provisioner.error(), now)
        room = self._hosts.room() - working
        request = self._hosts.request(missing - room, now) if may_ask else None
        if request is not None:
            self._provisioner.ask(request)
        self._starting = self._starting and not working and room < self._minimum
        if working:
            self._wait.ended(now)
        elif missing:
            self._wait_for_room(missing, max(0, room), now)

    def _lose_exited(self) -> None:
        """Give up the hosts that exited, after their last reports were read."""
        for host in [host for host in self._hosts.by_number.values() if host.ended.done()]:
            if host.remote is not None:
                host.remote.read_all()
            elif host.is_local:
                self._machine.drain()
            cause, lasting = self._provisioner.why(host)
            self._lose(host, cause, lasting=lasting)

    def _check_error(self, error: Exception | None, now: float) -> None:
        """Log that a call to Ray failed. At the start that ends the run; later it is tried again."""
        if error is not None:
            self._error, self._last_cause = error, f"Ray said: {error}"
            self._hopeless = self._hopeless or self._starting
            self._hosts.do_not_ask_before(now + SECONDS_BETWEEN_WARNINGS)
            logger.warning("requesting hosts from Ray failed: %s", error)

    def _wait_for_room(self, missing: int, room: int, now: float) -> None:
        """Warn while no worker runs, and raise after ``start_seconds``."""
        if self._starting and (self._hopeless or self._hosts.failures_in_a_row > self._max_failures):
            raise WorkerFailedError(f"hosts cannot start: {self._last_cause}") from self._error
        waited = self._wait.seconds(now)
        seats = f"there is room for {room} of {missing} workers"
        needs = f"each needs {self._cluster.need}; {self._provisioner.nodes()}"
        if waited > self._cluster.start_seconds:
            raise WorkerFailedError(f"after {waited:.0f} s {seats}: {needs}")
        if self._wait.is_due(now):
            logger.warning("waiting for workers: %s: %s", seats, needs)
