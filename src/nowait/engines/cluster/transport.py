"""Workers on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from collections.abc import Collection, Iterator, Sequence
from operator import is_
from pathlib import Path
from time import monotonic
from typing import final

from nowait.core.errors import WorkerFailedError
from nowait.core.types import Vector
from nowait.engines.cluster.host_table import HostRecord, HostTable
from nowait.engines.cluster.listener import LocalListener
from nowait.engines.cluster.options import RayCluster
from nowait.engines.cluster.provisioner import HostProvisioner, driver_ip
from nowait.engines.network.handshake import ProtocolError
from nowait.engines.network.messages import AHEAD, CLOCK, EXIT, Format, Message, MessageKind
from nowait.engines.network.remote import RemotePool, VersionOf
from nowait.engines.network.sockets import Lost, ServerSocket
from nowait.engines.processes.local import LocalPools
from nowait.engines.processes.pool import WorkerPool, Zygote
from nowait.engines.processes.resources import SharedResources
from nowait.engines.workers.records import REPORT, ReportKind
from nowait.engines.workers.transport import HOME, Channel, Died, Gone, Opened, Reports, TransportEvent

logger = logging.getLogger("nowait")

GRADIENT = int(ReportKind.GRADIENT)
SECONDS_BETWEEN_WARNINGS = 10.0
"""How often a run that waits for room logs that."""


@final
class RayTransport:
    """Hosts on the nodes of a cluster. The evaluator runs on the driver's machine, in HOME.

    On the driver's node a host only starts a zygote, which shares memory with the server (``LocalPools``). A host on
    another node passes orders and reports on (``RemotePool``).
    """

    engine = "ray"

    def __init__(
        self,
        cluster: RayCluster,
        resources: SharedResources,
        version_of: VersionOf,
        *,
        minimum: int,
        max_failures: int,
        log: Path | None,
    ) -> None:
        self._cluster, self._resources, self._version_of, self._log = cluster, resources, version_of, log
        self._minimum, self._max_failures = minimum, max_failures
        self._pools = LocalPools(resources)
        self.details = resources.mailbox.details
        self._open_parts = contextlib.ExitStack()
        points = resources.points
        self._hosts = HostTable(
            start_seconds=cluster.start_seconds,
            heartbeat_seconds=cluster.heartbeat_seconds,
            bytes_per_gradient=points.length * points.dtype.itemsize,
        )
        self._fds_of = (frozenset[int](), frozenset[int](), frozenset[int]())
        self._fds: frozenset[int] = frozenset()
        self._starting = True
        """True until there is room for the run for the first time."""
        self._hopeless, self._last_cause = False, ""
        """Whether more hosts would fail too; why the latest host was lost."""
        self._error: Exception | None = None
        self._check_deliveries = False
        """True if a local host is ready and no gradient has come from this node since."""
        self._worked = self._warned = monotonic()

    @property
    def fds(self) -> frozenset[int]:
        """The descriptors of the local pools, of the listener, and of the connections to other nodes."""
        local, listener, network = current = (self._pools.fds, self._listener.fds, self._socket.fds)
        if not all(map(is_, current, self._fds_of)):
            self._fds_of, self._fds = current, local | listener | network
        return self._fds

    def open(self) -> None:
        """Bind the sockets, ask Ray for hosts, and launch the zygote of the evaluator."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._pools.close)
            form = Format(self._resources.points.length, self._resources.points.dtype)
            self._socket = ServerSocket.open(
                driver_ip(), self._cluster.port, form, self._gradient_slots, encrypt=self._cluster.encrypt
            )
            stack.callback(self._socket.close)
            self._listener = LocalListener.open()
            stack.callback(self._listener.close)
            self._provisioner = HostProvisioner(
                self._cluster, self._resources, self._listener.address, self._socket.address
            )
            self._provisioner.open()
            stack.callback(self._provisioner.close)
            self._provisioner.ask(self._minimum, self._minimum)
            self.reopen()
            self._worked = self._warned = monotonic()
            self._open_parts = stack.pop_all()

    def reopen(self) -> None:
        """Launch the zygote of the evaluator."""
        self._pools.add(HOME, WorkerPool.of(Zygote.launch(self._cluster.threads), self._resources, self._log), 0)

    def close(self) -> None:
        """End all hosts and close everything."""
        for host in self._hosts.by_place.values():
            if host.remote is not None:
                host.remote.end()
            elif host.place in self._pools:
                self._pools.remove(host.place)
        self._socket.close()  # sends hosts the end; only then can the provisioner wait for theirs
        self._open_parts.close()

    # To the workers

    def start(self, worker: int, serial: int, place: int, began: float) -> Channel:
        """Start a process in a place."""
        return self._pool(place).start(worker, serial, began)

    def kill(self, serial: int, place: int) -> None:
        """Kill a process."""
        self._pool(place).kill(serial)

    def _pool(self, place: int) -> WorkerPool | RemotePool:
        host = self._hosts.by_place.get(place)
        return self._pools[place] if host is None or host.remote is None else host.remote

    def flush(self) -> bool:
        """Send collected orders. Returns True if something has arrived that no descriptor announces."""
        for host in self._hosts.by_place.values():
            if host.remote is not None:
                host.remote.flush()
        return self._socket.pending() or self._pools.pending()

    # From the workers

    def receive(self, ready: Collection[int]) -> Iterator[TransportEvent]:
        """Return what workers, zygotes and hosts reported."""
        for fd in self._listener.fds.intersection(ready):
            authenticated = self._listener.receive(fd)
            if authenticated is not None:
                self._add_local_pool(*authenticated)
        local = [fd for fd in ready if fd in self._pools.fds]
        if local or self._pools.pending():
            for event in self._pools.receive(local):
                yield from self._on_local_event(event)
        for identity, received in self._socket.receive([fd for fd in ready if fd in self._socket.fds]):
            if isinstance(received, Lost):
                self._hosts.disconnected(identity, received.cause, monotonic())
            else:
                yield from self._on_message(identity, received)

    def _add_local_pool(self, identity: bytes, control: socket.socket) -> None:
        """Add the pool of a host on this node that has connected and authenticated."""
        host = self._known(identity)
        if host is None:
            control.close()
            return
        host.is_local = True
        self._pools.add(host.place, WorkerPool.around(control, self._resources), host.size)

    def _on_local_event(self, event: TransportEvent) -> Iterator[TransportEvent]:
        if type(event) is Reports:
            if self._check_deliveries:
                self._note_deliveries(event.records)
            yield event
            return
        host = self._hosts.by_place.get(event.place) if isinstance(event, (Opened, Gone)) else None
        if host is None:
            if isinstance(event, Opened):
                self._worked = self._warned = monotonic()  # loading the problem does not count as waiting for room
            yield event
        elif isinstance(event, Gone):
            yield from self._lose(host, event.cause, lasting=event.lasting)
        else:
            self._check_deliveries = True
            yield self._on_ready(host)

    def _note_deliveries(self, records: bytes) -> None:
        """Note that hosts on this node deliver. The evaluator reports through the same pipe."""
        if any(kind == GRADIENT for *_, kind in REPORT.iter_unpack(records)):
            self._check_deliveries = False
            for host in self._hosts.by_place.values():
                host.delivered = host.delivered or (host.is_local and host.ready)

    def _on_message(self, identity: bytes, message: Message) -> Iterator[TransportEvent]:
        host = self._known(identity)
        if host is None:
            self._socket.disconnect(identity)  # it was given up
            return
        if host.remote is None:
            host.remote = RemotePool(identity, self._socket, self._resources.points, self._version_of)
        pool, (kind, content, vectors) = host.remote, message
        pool.last_message = monotonic()
        if kind == MessageKind.REPORTS:
            yield from self._on_reports(host, pool, content, vectors)
        elif kind == MessageKind.DIED:
            yield Died(*EXIT.unpack(content))
        elif kind == MessageKind.DETAILS:
            self._resources.mailbox.add_details(*json.loads(content))
        elif kind == MessageKind.ASK_TIME:
            self._socket.send(identity, MessageKind.TIME, CLOCK.pack(CLOCK.unpack(content)[0], monotonic()))
        elif kind == MessageKind.READY:
            [pool.clock_ahead] = AHEAD.unpack(content)
            yield self._on_ready(host)
        elif kind == MessageKind.FAILED:
            yield from self._lose(host, content.decode(), lasting=True)

    def _on_reports(
        self, host: HostRecord, pool: RemotePool, records: bytes, vectors: Sequence[Vector]
    ) -> Iterator[TransportEvent]:
        try:
            gradients = pool.by_worker(records, vectors)
        except ProtocolError as error:
            yield from self._lose(host, str(error))
            return
        pool.reports_received()
        host.delivered = host.delivered or len(vectors) > 0
        yield Reports(records, gradients)
        pool.flush()  # the relay waits for a reply to each message of reports

    def _gradient_slots(self, identity: bytes, kind: int, content: bytes, count: int) -> list[Vector]:
        """Return where the gradients of a message belong; called before they are received."""
        host = self._hosts.of(identity)
        if host is None or host.remote is None or kind != MessageKind.REPORTS:
            raise ProtocolError(f"a message of the kind {kind} must not have vectors")
        slots = [self._resources.gradients[worker] for worker in host.remote.gradient_workers(content)]
        if len(slots) != count:
            raise ProtocolError(f"{count} gradients came with reports that announce {len(slots)}")
        return slots

    def _known(self, identity: bytes) -> HostRecord | None:
        host = self._hosts.of(identity)
        if host is None:
            self._take_started()
            host = self._hosts.of(identity)
        return host

    def _take_started(self) -> None:
        self._hosts.add(self._provisioner.started())
        self._socket.expect(len(self._hosts.by_place))

    def _on_ready(self, host: HostRecord) -> Opened:
        self._hosts.is_ready(host, monotonic())
        logger.info("a host on %s is ready for %d workers", host.node, host.size)
        return Opened(host.place, host.size, distance=int(not host.is_local))

    def _lose(self, host: HostRecord, cause: str, *, lasting: bool = False) -> Iterator[TransportEvent]:
        """Give up a host, for a cause that may be lasting. Later messages from it are ignored."""
        self._hosts.lose(host, monotonic())
        self._socket.disconnect(host.identity)
        if host.place in self._pools:
            self._pools.remove(host.place)
        self._provisioner.dismiss(host)
        self._hopeless, self._last_cause = self._hopeless or (lasting and self._starting), cause
        if host.ready:
            yield Gone(host.place, f"the host on {host.node} is lost ({cause})")
        else:
            self._provisioner.failed(host)
            logger.warning("a host on %s could not start: %s", host.node, cause)

    # Periodic work

    def tick(self, vacant: int, working: int) -> Iterator[TransportEvent]:
        """Find hosts that exited or are silent, and ask for more if workers have no place."""
        now, may_ask = monotonic(), not self._provisioner.asking  # in this order: else it might ask twice
        self._take_started()
        self._socket.close_overdue(now)
        for host in [host for host in self._hosts.by_place.values() if host.ended.done()]:
            cause, lasting = self._provisioner.why(host)
            yield from self._lose(host, cause, lasting=lasting)
        for host, cause in self._hosts.overdue(now):
            yield from self._lose(host, cause)
        self._check_error(self._provisioner.error(), now)
        room = sum(host.size for host in self._hosts.by_place.values() if host.ready) - working
        request = self._hosts.request(vacant - room, now) if may_ask else None
        if request is not None:
            self._provisioner.ask(*request)
        self._starting = self._starting and not working and room < self._minimum
        if working:
            self._worked = now
        elif vacant:
            self._wait_for_room(vacant, max(0, room), now)

    def _check_error(self, error: Exception | None, now: float) -> None:
        """Log that a call to Ray failed. At the start that ends the run; later it is tried again."""
        if error is not None:
            self._error, self._last_cause = error, f"Ray said: {error}"
            self._hopeless = self._hopeless or self._starting
            self._hosts.do_not_ask_before(now + SECONDS_BETWEEN_WARNINGS)
            logger.warning("requesting hosts from Ray failed: %s", error)

    def _wait_for_room(self, vacant: int, room: int, now: float) -> None:
        """Warn while no worker runs, and raise after ``start_seconds``."""
        if self._starting and (self._hopeless or self._hosts.failures_in_a_row > self._max_failures):
            raise WorkerFailedError(f"hosts cannot start: {self._last_cause}") from self._error
        waited = now - self._worked
        found = f"there is room for {room} of {vacant} workers"
        needs = f"each needs {self._cluster.need}; {self._provisioner.nodes()}"
        if waited > self._cluster.start_seconds:
            raise WorkerFailedError(f"after {waited:.0f} s {found}: {needs}")
        if now - self._warned > SECONDS_BETWEEN_WARNINGS:
            self._warned = now
            logger.warning("waiting for workers: %s: %s", found, needs)
