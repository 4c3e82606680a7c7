"""Limits how many connections may be open that have not shown the keys of the run.

ZeroMQ accepts whoever connects, and closes a connection only when its handshake failed or took too long. Somebody who
opens connections quickly would use up the file descriptors of this process, which it also needs for checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import final

import zmq
from zmq.utils.monitor import recv_monitor_message

SPARE_CONNECTIONS = 64
"""Connections without the keys that may be open besides those of the hosts that are expected."""
ACCEPTED, CLOSED, STOPPED = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_DISCONNECTED), int(zmq.EVENT_MONITOR_STOPPED)


@final
class Unproven:
    """Connections that have delivered no message yet, by their file descriptors, the oldest first.

    A message arrives only through a connection whose handshake succeeded. Past the limit the oldest connection has to
    go: a host proves itself within moments.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._waiting: dict[int, None] = {}
        self._proved: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def accepted(self, connection: int) -> list[int]:
        """A new connection; those that have to be closed for it.

        That it was accepted may be heard of after its first message, which another thread reads.
        """
        if connection in self._proved:
            return []
        self._waiting.pop(connection, None)
        self._waiting[connection] = None
        excess = len(self._waiting) - self.most
        victims = list(self._waiting)[: max(0, excess)]
        for victim in victims:
            del self._waiting[victim]
        return victims

    def proved(self, connection: int) -> None:
        """A message came through it."""
        self._waiting.pop(connection, None)
        self._proved.add(connection)

    def closed(self, connection: int) -> None:
        """It is closed, and its number may be given to another one."""
        self._waiting.pop(connection, None)
        self._proved.discard(connection)


@final
class Guard:
    """A thread that watches a listening ZeroMQ socket and closes connections past the limit."""

    def __init__(self, listener: zmq.Socket[bytes], port: int) -> None:
        self._port = port
        self._unproven = Unproven(SPARE_CONNECTIONS)
        self._lock = threading.Lock()
        self._listener = listener
        self._events = listener.get_monitor_socket(ACCEPTED | CLOSED | STOPPED)
        self._thread = threading.Thread(target=self._watch, name="nowait-guard", daemon=True)
        self._thread.start()

    def expect(self, hosts: int) -> None:
        """Set the number of hosts that are expected to connect."""
        self._unproven.most = SPARE_CONNECTIONS + hosts

    def proved(self, connection: int) -> None:
        """A message came through this connection."""
        with self._lock:
            self._unproven.proved(connection)

    def close(self) -> None:
        """Stop watching; before the listener is closed."""
        self._listener.disable_monitor()
        self._thread.join()
        self._events.close(linger=0)

    def _watch(self) -> None:
        while (event := recv_monitor_message(self._events))["event"] != STOPPED:
            connection, victims = int(event["value"]), []
            with self._lock:
                if event["event"] == ACCEPTED:
                    victims = self._unproven.accepted(connection)
                else:
                    self._unproven.closed(connection)
            for victim in victims:
                _hang_up(victim, self._port)


def _hang_up(connection: int, port: int) -> None:
    """End a connection to this port; ZeroMQ then closes it. Another file may have its number by now: that is kept."""
    with contextlib.suppress(OSError, IndexError), socket.socket(fileno=os.dup(connection)) as ours:
        if ours.getsockname()[1] == port:
            ours.shutdown(socket.SHUT_RDWR)
