"""A server's gateway and hosts that connect to it, for tests."""

import contextlib
import select
from types import SimpleNamespace

import numpy as np

from nowait.fleet.server.gateway import Gateway
from nowait.fleet.server.remote import Exchange
from nowait.fleet.server.vectors import ServerVectors
from nowait.fleet.wire.connection import HostSocket
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.messages import Format
from nowait.fleet.wire.shared import SharedSlots
from nowait.problems.encodings import AS_THEY_ARE


class Door:
    """A gateway, and what its owner hears: (identity, what)."""

    def __init__(self, stack, length=5, *, encrypt=True, key=None, knows=lambda identity: True):
        self.hub, self.events, self.controls = Hub(), [], []
        self.knows, self.during = knows, lambda host, message: None
        points, self.gradients = (stack.enter_context(contextlib.closing(SharedSlots(length, "<f8"))) for _ in range(2))
        vectors = ServerVectors(points, self.gradients, AS_THEY_ARE)
        owner = SimpleNamespace(
            connected=self._connected,
            connected_here=lambda identity, control: self.controls.append((identity, control)),
            ready=lambda host: self.events.append((host.identity, "ready")),
            on_message=self._on_message,
            lost=lambda host, cause, *, wrong, lasting: self.events.append((host.identity, ("lost", cause))),
        )
        self.gateway = Gateway(
            Exchange(self.hub, vectors, lambda *_: None, self.events.append, self._take, owner), 15.0
        )
        self.gateway.open("127.0.0.1", None, encrypt=encrypt, key=key)
        self.address = self.gateway.address
        stack.callback(self.gateway.close, linger_seconds=0.0)

    def _connected(self, host):
        self.events.append((host.identity, "connected"))
        return self.knows(host.identity)

    def _on_message(self, host, message):
        self.events.append((host.identity, message.content))
        self.during(host, message)

    def _take(self, records, gradients):
        self.events.append((b"", (records, {number: np.array(each) for number, each in gradients.items()})))

    def host(self, identity=b"1"):
        """The server's side of a host."""
        return self.gateway.hosts[identity]

    def wait(self):
        """Wait until something has arrived, and handle it."""
        poll(self)
        self.hub.wait(0.0)

    def contents(self):
        return [what for _, what in self.events if isinstance(what, bytes)]


def poll(door, hosts=()):
    """Wait until a descriptor of the server or of a host is ready."""
    poller = select.poll()
    for fd in door.hub.handlers:
        poller.register(fd, select.POLLIN | (select.POLLOUT if fd in door.hub._readers else 0))
    for host in hosts:
        poller.register(host.fd, host.events)
    assert door.hub.unfinished or poller.poll(30_000), "nothing moves"


def a_host(stack, address, identity=b"1", length=5):
    form = Format(length, "<f8")
    host = HostSocket.connect(address, identity, form, lambda kind, content, count: [np.zeros(length)] * count)
    stack.callback(host.close, linger_seconds=0.0)
    return host


def exchange(door, hosts, done):
    """Let all ends read and write until ``done(what the hosts got)``; returns that. The test waits for it."""
    at_hosts = []
    while not done(at_hosts):
        poll(door, hosts)
        door.hub.wait(0.0)
        for host in hosts:
            while (message := host.receive()) is not None:
                at_hosts.append(message)
    return at_hosts


def connected(stack, length=5, **options):
    """A server and a host that has authenticated."""
    door = Door(stack, length, **options)
    host = a_host(stack, door.address, length=length)
    exchange(door, [host], lambda _: door.events)
    assert door.events == [(b"1", "connected")]
    door.events.clear()
    return door, host


def readable(fds, seconds):
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(1000 * seconds)]


def is_closed(stranger):
    """Whether the other end hung up; waits for that, and skips what it sent before."""
    while readable([stranger.fileno()], 30):
        try:
            if not stranger.recv(1024):
                return True
        except ConnectionResetError:
            return True
    return False
