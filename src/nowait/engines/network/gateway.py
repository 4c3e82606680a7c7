"""The server's side of all connections to hosts: receives their messages, and returns events.

A host that sends something wrong is disconnected, and the run goes on. Nothing here needs Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from time import monotonic
from typing import Any, NamedTuple, final

from nowait.core.types import Vector
from nowait.engines.network.remote import RemotePool, VersionOf
from nowait.engines.network.server_vectors import ServerVectors
from nowait.engines.network.sockets import Lost, ServerSocket
from nowait.engines.processes.resources import SharedResources
from nowait.engines.workers.transport import Died, Reports
from nowait.fleet.wire.connection import Address
from nowait.fleet.wire.messages import (
    CLOCK,
    Message,
    MessageKind,
    clock_ahead,
    details_of,
    exit_of,
    request_time,
    text_of,
)
from nowait.fleet.wire.secure import ProtocolError, ServerKey
from nowait.problems.encodings import AS_THEY_ARE, Encodings

MOST_QUEUED = 10_000
"""How many messages may wait to be sent to a host that goes on asking."""
LONGEST_TEXT = 60_000
"""Bytes of a text of a host that are shown."""


class Ready(NamedTuple):
    """Workers can be started on a host."""

    identity: bytes


class Failed(NamedTuple):
    """A host cannot load the problem."""

    identity: bytes
    cause: str


class Disconnected(NamedTuple):
    """The connection of a host is gone."""

    identity: bytes
    cause: str
    wrong: bool = False
    """True if the server closed it because the host sent something wrong."""


class Other(NamedTuple):
    """A message of a kind that only some engines use."""

    identity: bytes
    message: Message


GatewayEvent = Reports | Died | Ready | Failed | Disconnected | Other

Knows = Callable[[bytes], bool]
"""Returns True if the host with this identity belongs to the run."""


@final
class Gateway:
    """Connections to hosts, and a pool of workers for each."""

    def __init__(
        self, resources: SharedResources, version_of: VersionOf, knows: Knows, encodings: Encodings = AS_THEY_ARE
    ) -> None:
        self._resources, self._version_of, self._knows = resources, version_of, knows
        self._vectors = ServerVectors(resources.points, resources.gradients, encodings)
        self.shapes = self._vectors.shapes
        """How vectors are sent; hosts need to know it."""
        self.pools: dict[bytes, RemotePool] = {}
        """The workers of each host that has sent something and was not disconnected, by identity."""

    def open(self, ip: str, port: int | None, *, encrypt: bool, key: ServerKey | None = None) -> None:
        """Listen at a port (None: any free one) for hosts that have the key (None: a new one)."""
        self._vectors.warm_up()
        form = self.shapes.server_format()
        self._socket = ServerSocket.open(ip, port, form, self.gradient_slots, encrypt=encrypt, key=key)
        self.send, self.expect, self.pending = self._socket.send, self._socket.expect, self._socket.pending
        self.close_overdue, self.close = self._socket.close_overdue, self._socket.close
        self.binding = self._socket.binding

    @property
    def address(self) -> Address:
        """What a host needs to connect."""
        return self._socket.address

    @property
    def fds(self) -> frozenset[int]:
        """The descriptors to poll for input. A new object whenever they change."""
        return self._socket.fds

    @property
    def traffic(self) -> tuple[int, int]:
        """How many bytes were received from hosts and sent to them."""
        return self._socket.traffic

    def flush(self) -> None:
        """Send the orders that were collected."""
        for pool in self.pools.values():
            pool.flush()

    def disconnect(self, identity: bytes) -> None:
        """Close the connection of a host, and forget its workers."""
        self.pools.pop(identity, None)
        self._socket.disconnect(identity)

    def receive(self, ready: Collection[int]) -> Iterator[GatewayEvent]:
        """Return what arrived through these descriptors."""
        for identity, received in self._socket.receive(ready):
            if isinstance(received, Lost):
                yield Disconnected(identity, received.cause)
            else:
                yield from self.handle(identity, received)

    def handle(self, identity: bytes, message: Message) -> Iterator[GatewayEvent]:
        """Handle a message of a host."""
        pool = self.pools.get(identity)
        if pool is None:
            if not self._knows(identity):
                self._socket.disconnect(identity)  # it was given up
                return
            pool = self.pools[identity] = RemotePool(identity, self._socket, self._vectors.point, self._version_of)
        pool.last_message = monotonic()
        try:
            self.check_queue(identity, MOST_QUEUED)
            if message.kind == MessageKind.REPORTS:
                received = pool.by_worker(message.content, message.vectors)
                yield Reports(pool.wanted(message.content), self._vectors.decoded(received, pool.delivers))
                pool.flush()  # the relay waits for a reply to each message of reports
            else:
                yield from self._handle_other(pool, message)
        except ProtocolError as error:
            self.disconnect(identity)
            yield Disconnected(identity, str(error), wrong=True)

    def check_queue(self, identity: bytes, most: int) -> None:
        """Raise ``ProtocolError`` if more messages wait to be sent to a host: it does not read them."""
        if self._socket.queued(identity) > most:
            raise ProtocolError("it asks for more than it reads")

    def _handle_other(self, pool: RemotePool, message: Message) -> Iterator[GatewayEvent]:
        """Handle a message that is not a batch of reports."""
        kind, content, vectors = message
        if len(vectors):
            raise ProtocolError(f"a message of the kind {kind} has {len(vectors)} vectors")
        if kind == MessageKind.DIED:
            serial, code = exit_of(content)
            pool.died(serial)
            yield Died(serial, code)
        elif kind == MessageKind.DETAILS:
            self._take_details(pool, *details_of(content))
        elif kind == MessageKind.ASK_TIME:
            self._socket.send(pool.identity, MessageKind.TIME, CLOCK.pack(request_time(content), monotonic()))
        elif kind == MessageKind.READY:
            ahead = clock_ahead(content)
            if not pool.ready:
                pool.ready, pool.clock_ahead = True, ahead
                yield Ready(pool.identity)
        elif kind == MessageKind.FAILED:
            yield Failed(pool.identity, text_of(content[-LONGEST_TEXT:]))
        elif kind not in (MessageKind.HELLO, MessageKind.HEARTBEAT):
            yield Other(pool.identity, message)

    def _take_details(self, pool: RemotePool, worker: int, ticket: int, details: tuple[Any, ...]) -> None:
        """Keep what comes with a report; but not of a killed process, whose worker may run on another host."""
        pool.check_worker(worker)
        if pool.delivers(worker):
            self._resources.mailbox.add_details(worker, ticket, details)

    def gradient_slots(self, identity: bytes, kind: int, content: bytes, count: int) -> Sequence[Vector]:
        """Return where the large gradients of a message are written; called before they are received.

        Those of a worker whose process was killed get vectors of their own: the worker may run elsewhere by now.
        """
        pool = self.pools.get(identity)
        if pool is None or kind != MessageKind.REPORTS:
            raise ProtocolError(f"a message of the kind {kind} must not have vectors")
        workers = pool.gradient_workers(content)
        if len(workers) != count:
            raise ProtocolError(f"{count} gradients came with reports that announce {len(workers)}")
        vectors = self._vectors
        return [vectors.destination(worker) if pool.delivers(worker) else vectors.scratch() for worker in workers]
