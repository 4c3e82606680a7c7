"""A TCP socket and the protocol on it. Nothing here blocks, except closing, which may take a second."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
from time import monotonic
from typing import final

from nowait.engines.network.messages import Message
from nowait.engines.network.protocol import Connection
from nowait.engines.network.secure import ProtocolError
from nowait.engines.processes.readiness import is_ready

KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 35_000}
"""Seconds without traffic before the system asks the other machine whether it is there, and how often; and milliseconds
until data that the other machine does not acknowledge are an error."""
WAKING_BYTES = 1048576
"""How many bytes of large vectors have to arrive at most before the socket becomes readable: a message of many bytes
then wakes this process a few times instead of for each packet."""
CAN_WAIT_FOR_BYTES = sys.platform == "linux"
"""Whether ``poll`` respects SO_RCVLOWAT."""


ENDED = "the other end closed the connection"
"""The cause if the other end has sent its last frame, and so ended the connection on purpose."""


class DisconnectedError(Exception):
    """The connection is gone; the text says why."""


class NotAcceptedError(DisconnectedError):
    """The handshake failed: the other end does not have the right key, or uses another protocol."""


@final
class Link:
    """One end of a TCP connection."""

    def __init__(self, tcp: socket.socket, connection: Connection) -> None:
        tcp.setblocking(False)
        _set_options(tcp)
        self._socket, self.connection = tcp, connection
        self.fd = tcp.fileno()
        self._drained = False
        """True if the latest read has returned all bytes that had arrived."""
        self._waking_bytes = 1
        self.bytes_received = self.bytes_sent = 0
        self.closed = False

    def receive(self) -> Message | None:
        """Return the next message; None if it has not arrived wholly."""
        connection = self.connection
        try:
            while (message := connection.next_message()) is None:
                if not self._read():
                    self._wake_after(connection.missing())
                    return None
        except ProtocolError as error:
            kind = DisconnectedError if connection.authenticated else NotAcceptedError
            raise kind(str(error)) from None
        return message

    def _read(self) -> bool:
        """Read bytes; returns False if none have arrived."""
        if self._drained:
            self._drained = False
            return False
        connection = self.connection
        view = connection.buffer()
        try:
            count = self._socket.recv_into(view)
        except BlockingIOError:
            return False
        except OSError as error:
            raise DisconnectedError(_reason(error)) from None
        if count == 0 and connection.ended:
            raise DisconnectedError(ENDED)
        self.bytes_received += count
        self._drained = 0 < count < len(view)
        connection.received(count)
        return True

    def _wake_after(self, missing: int) -> None:
        """Let the socket become readable only when enough of the bytes that a message still needs have arrived."""
        count = max(1, min(missing, WAKING_BYTES))
        if count != self._waking_bytes and CAN_WAIT_FOR_BYTES and not self.closed:
            self._waking_bytes = count
            with contextlib.suppress(OSError):  # it only saves time
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def write(self) -> bool:
        """Send what waits to be sent, as far as the system takes it. Returns True if nothing is left."""
        connection, send = self.connection, self._socket.send
        try:
            while view := connection.outgoing():
                count = send(view)
                self.bytes_sent += count
                connection.sent(count)
        except BlockingIOError:
            return False
        except OSError as error:
            raise DisconnectedError(_reason(error)) from None
        return True

    def end(self) -> None:
        """Send the last frame, and tell the system that nothing follows, if all was sent."""
        self.connection.end()
        if self.write():
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection at once."""
        self.closed = True
        self._socket.close()

    def finish(self, seconds: float) -> None:
        """Send what waits and the last frame, wait until the other end does so too, and close the connection.

        An end that has sent its last frame reads nothing any longer, so then there is nothing to wait for.
        """
        deadline = monotonic() + seconds
        with contextlib.suppress(DisconnectedError, OSError):
            self.receive()
            if not self.connection.ended:
                self._finish_sending(deadline)
        self.close()

    def _finish_sending(self, deadline: float) -> None:
        self.connection.end()
        self._wake_after(1)
        while not self.write() and self._wait(select.POLLOUT, deadline):
            pass
        self._socket.shutdown(socket.SHUT_WR)
        while self._wait(select.POLLIN, deadline) and self._socket.recv(1 << 16):
            pass  # with bytes that nobody has read, closing would discard what was sent

    def _wait(self, events: int, deadline: float) -> bool:
        return is_ready(self.fd, max(0.0, deadline - monotonic()), events)


def _set_options(tcp: socket.socket) -> None:
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
