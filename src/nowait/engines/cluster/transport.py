"""Workers on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from collections.abc import Collection, Iterator
from pathlib import Path
from time import monotonic
from typing import final

from nowait.core.errors import WorkerFailedError
from nowait.engines.cluster.host_table import STUCK_SECONDS, HostRecord, HostTable, Request
from nowait.engines.cluster.listener import LocalListener
from nowait.engines.cluster.provisioner import HostProvisioner, driver_ip
from nowait.engines.network.descriptors import Descriptors
from nowait.engines.network.gateway import Disconnected, Failed, Gateway, GatewayEvent, Other, Ready
from nowait.engines.network.remote import RemotePool, VersionOf
from nowait.engines.processes.local import LocalPools
from nowait.engines.processes.pool import WorkerPool
from nowait.engines.processes.resources import SharedResources
from nowait.engines.workers.transport import HOME, Channel, Died, Gone, Leaving, Opened, Reports, TransportEvent
from nowait.fleet.host.launch import Zygote
from nowait.fleet.options import RayCluster
from nowait.fleet.wire.messages import MessageKind, grace_seconds
from nowait.fleet.wire.records import GRADIENT, REPORT
from nowait.fleet.wire.secure import ProtocolError

logger = logging.getLogger("nowait")

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
        self._cluster, self._resources, self._log = cluster, resources, log
        self._minimum, self._max_failures = minimum, max_failures
        self._pools = LocalPools(resources)
        self._gateway = Gateway(
            resources, version_of, lambda identity: self._known(identity) is not None, resources.encodings
        )
        self.details = resources.mailbox.details
        self._open_parts = contextlib.ExitStack()
        points = resources.points
        self._hosts = HostTable(
            start_seconds=cluster.start_seconds,
            heartbeat_seconds=cluster.heartbeat_seconds,
            bytes_per_gradient=points.length * points.dtype.itemsize,
            stuck_seconds=STUCK_SECONDS if cluster.runtime_env is None else math.inf,  # it may take long to set up
        )
        self._descriptors = Descriptors()
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
        return self._descriptors.of(self._pools.fds, self._listener.fds, self._gateway.fds)

    @property
    def traffic(self) -> tuple[int, int]:
        """How many bytes were received from other machines and sent to them."""
        return self._gateway.traffic

    def open(self) -> None:
        """Bind the sockets, ask Ray for hosts, and launch the zygote of the evaluator."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._pools.close)
            self._gateway.open(driver_ip(), self._cluster.port, encrypt=self._cluster.encrypt)
            stack.callback(self._gateway.close)
            self._listener = LocalListener.open()
            stack.callback(self._listener.close)
            self._provisioner = HostProvisioner(
                self._cluster, self._resources, self._listener.address, self._gateway.address, self._gateway.shapes
            )
            self._provisioner.open()
            stack.callback(self._provisioner.close)
            self._provisioner.ask(Request(self._minimum, self._minimum))
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
        self._gateway.close()  # sends hosts the end; only then can the provisioner wait for theirs
        self._open_parts.close()

    # To the workers

    def start(self, worker: int, serial: int, place: int, began: float) -> Channel:
        """Start a process in a place."""
        return self._pool(place).start(worker, serial, began)

    def kill(self, serial: int, place: int) -> None:
        """Kill a process."""
        self._pool(place).kill(serial)

    def dismiss(self, place: int, reason: str = "") -> None:
        """Let a host exit, and return its resources to the cluster."""
        host = self._hosts.by_place.pop(place, None)
        if host is None:
            return
        if reason:
            self._provisioner.failed(host)
        logger.info("the host on %s is dismissed", host.node)
        pool = self._gateway.pools.pop(host.identity, None)
        if pool is not None:
            pool.end()
        if place in self._pools:
            self._pools.remove(place)
        if host.ready:
            self._provisioner.release(host)
        else:
            self._provisioner.dismiss(host)

    def _pool(self, place: int) -> WorkerPool | RemotePool:
        host = self._hosts.by_place.get(place)
        return self._pools[place] if host is None or host.remote is None else host.remote

    def flush(self) -> bool:
        """Send collected orders. Returns True if something has arrived that no descriptor announces."""
        self._gateway.flush()
        pending = self._pools.pending()  # also if the network is busy: a death must not wait for it
        return self._gateway.pending() or pending

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
        for network_event in self._gateway.receive([fd for fd in ready if fd in self._gateway.fds]):
            if type(network_event) is Reports:
                yield network_event
            else:
                yield from self._on_network_event(network_event)

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
        host = self._hosts.by_place.get(event.place) if isinstance(event, (Opened, Gone, Leaving)) else None
        if host is None:
            if isinstance(event, Opened):
                self._worked = self._warned = monotonic()  # loading the problem does not count as waiting for room
            yield event
        elif isinstance(event, Gone):
            yield from self._lose(host, event.cause, lasting=event.lasting)
        elif isinstance(event, Leaving):
            yield self._leave(host, event.seconds)
        else:
            self._check_deliveries = True
            yield self._on_ready(host)

    def _note_deliveries(self, records: bytes) -> None:
        """Note that hosts on this node deliver. The evaluator reports through the same pipe."""
        if any(kind == GRADIENT for *_, kind in REPORT.iter_unpack(records)):
            self._check_deliveries = False
            for host in self._hosts.by_place.values():
                host.delivered = host.delivered or (host.is_local and host.ready)

    def _on_network_event(self, event: GatewayEvent) -> Iterator[TransportEvent]:
        if isinstance(event, (Reports, Died)):
            yield event
            return
        host = self._hosts.of(event.identity)
        if host is None:
            return
        if isinstance(event, Other) and event.message.kind == MessageKind.LEAVING:
            yield from self._on_leaving(host, event.message.content)
        elif isinstance(event, Ready):
            host.remote = self._gateway.pools[event.identity]
            yield self._on_ready(host)
        elif isinstance(event, Failed):
            yield from self._lose(host, event.cause, lasting=True)
        elif isinstance(event, Disconnected) and not event.wrong:
            self._hosts.disconnected(event.identity, event.cause, monotonic())
        else:
            cause = event.cause if isinstance(event, Disconnected) else f"it sent the kind {event.message.kind}"
            yield from self._lose(host, cause)

    def _on_leaving(self, host: HostRecord, content: bytes) -> Iterator[TransportEvent]:
        try:
            yield self._leave(host, grace_seconds(content))
        except ProtocolError as error:
            yield from self._lose(host, str(error))

    def _leave(self, host: HostRecord, seconds: float) -> Leaving:
        logger.info("the host on %s leaves within %.0f s", host.node, seconds)
        self._hosts.leave(host, seconds, monotonic())
        return Leaving(host.place, seconds)

    def _known(self, identity: bytes) -> HostRecord | None:
        """Return the host that has sent something; None if it was given up."""
        host = self._hosts.of(identity)
        if host is None:
            self._take_started()
            host = self._hosts.of(identity)
        if host is not None:
            host.connected = True
        return host

    def _take_started(self) -> None:
        self._hosts.add(self._provisioner.started())
        self._gateway.expect(len(self._hosts.by_place))

    def _on_ready(self, host: HostRecord) -> Opened:
        self._hosts.is_ready(host, monotonic())
        logger.info("a host on %s is ready for %d workers", host.node, host.size)
        return Opened(host.place, host.size, distance=int(not host.is_local), name=host.node)

    def _lose(self, host: HostRecord, cause: str, *, lasting: bool = False) -> Iterator[TransportEvent]:
        """Give up a host, for a cause that may be lasting. Later messages from it are ignored."""
        self._hosts.lose(host, monotonic())
        self._gateway.disconnect(host.identity)
        if host.place in self._pools:
            self._pools.remove(host.place)
        self._provisioner.dismiss(host)
        self._hopeless, self._last_cause = self._hopeless or (lasting and self._starting), cause
        if host.ready:
            yield Gone(host.place, f"the host on {host.node} is lost ({cause})")
        elif not host.leaving:
            self._provisioner.failed(host)
            logger.warning("a host on %s could not start: %s", host.node, cause)

    # Periodic work

    def tick(self, vacant: int, working: int) -> Iterator[TransportEvent]:
        """Find hosts that exited or are silent, and ask for more if workers have no place."""
        now, may_ask = monotonic(), not self._provisioner.asking  # in this order: else it might ask twice
        self._take_started()
        self._gateway.close_overdue(now)
        for host in [host for host in self._hosts.by_place.values() if host.ended.done()]:
            cause, lasting = self._provisioner.why(host)
            yield from self._lose(host, cause, lasting=lasting)
        for host, cause in self._hosts.overdue(now):
            yield from self._lose(host, cause)
        draining = self._provisioner.draining(now)
        for host in [host for host in self._hosts.by_place.values() if host.node_id in draining and not host.leaving]:
            yield self._leave(host, draining[host.node_id])
        self._check_error(self._provisioner.error(), now)
        room = self._hosts.room() - working
        request = self._hosts.request(vacant - room, now) if may_ask else None
        if request is not None:
            self._provisioner.ask(request)
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
