"""Limits the number of connections that have not authenticated.

ZeroMQ accepts every connection and closes it only when its handshake fails or times out. Somebody who opens connections
quickly would use up the file descriptors of this process, which also needs them for checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any, final

import zmq
from zmq.utils.monitor import recv_monitor_message

SPARE_CONNECTIONS = 64
"""How many connections may be open without authentication, besides those of the expected hosts."""
ACCEPTED, CLOSED, STOPPED = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_DISCONNECTED), int(zmq.EVENT_MONITOR_STOPPED)


@final
class Unauthenticated:
    """File descriptors of connections that have delivered no message yet, the oldest first.

    A message arrives only through a connection whose handshake succeeded. Past the limit the oldest connection is
    closed: a host authenticates within milliseconds.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._waiting: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def accepted(self, connection: int) -> list[int]:
        """Add a new connection; returns those that have to be closed for it."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None
        excess = len(self._waiting) - self.most
        victims = list(self._waiting)[: max(0, excess)]
        for victim in victims:
            del self._waiting[victim]
        return victims

    def remove(self, connection: int) -> None:
        """Stop counting a connection that delivered a message or was closed."""
        self._waiting.pop(connection, None)


@final
class ConnectionLimit:
    """A thread that monitors a listening ZeroMQ socket and closes connections past the limit.

    ZeroMQ's events name a connection by its file descriptor and arrive late: by then the descriptor may belong to a
    newer connection, whose first message another thread has read already. So a connection is closed only after its
    peer's address was compared with the addresses that have authenticated.
    """

    def __init__(self, listener: zmq.Socket[bytes], port: int, spare: int) -> None:
        self._port, self._spare = port, spare
        self._unauthenticated = Unauthenticated(spare)
        self._peers: set[Any] = set()
        """Addresses of the peers that have authenticated."""
        self._lock = threading.Lock()
        self._listener = listener
        self._events = listener.get_monitor_socket(ACCEPTED | CLOSED | STOPPED)
        self._thread = threading.Thread(target=self._monitor, name="nowait-connection-limit", daemon=True)

    @classmethod
    def start(cls, listener: zmq.Socket[bytes], port: int, spare: int = SPARE_CONNECTIONS) -> ConnectionLimit:
        """Start to monitor a socket that listens on this port."""
        limit = cls(listener, port, spare)
        limit._thread.start()
        return limit

    def expect(self, hosts: int) -> None:
        """Set the number of hosts that are expected to connect."""
        self._unauthenticated.most = self._spare + hosts

    def authenticated(self, connection: int) -> None:
        """Note that a message came through a connection."""
        with self._lock:
            self._unauthenticated.remove(connection)
            with contextlib.suppress(OSError), _duplicate(connection) as ours:
                self._peers.add(ours.getpeername())

    def close(self) -> None:
        """Stop monitoring; call this before the listener is closed."""
        self._listener.disable_monitor()
        self._thread.join()
        self._events.close(linger=0)

    def handle(self, event: int, connection: int) -> None:
        """Count a connection that was accepted or closed; close the oldest ones past the limit."""
        with self._lock:
            if event == CLOSED:
                self._unauthenticated.remove(connection)
            else:
                for victim in self._unauthenticated.accepted(connection):
                    _shut_down(victim, self._port, self._peers)

    def _monitor(self) -> None:
        while (event := recv_monitor_message(self._events))["event"] != STOPPED:
            self.handle(int(event["event"]), int(event["value"]))


def _shut_down(connection: int, port: int, authenticated: set[Any]) -> None:
    """Shut down a connection to this port, so that ZeroMQ closes it.

    Nothing happens if the descriptor was reused: for another file, or for a peer that has authenticated.
    """
    with contextlib.suppress(OSError, IndexError), _duplicate(connection) as ours:
        if ours.getsockname()[1] == port and ours.getpeername() not in authenticated:
            ours.shutdown(socket.SHUT_RDWR)


def _duplicate(connection: int) -> socket.socket:
    return socket.socket(fileno=os.dup(connection))
