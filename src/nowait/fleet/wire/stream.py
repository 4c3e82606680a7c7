"""Messages with file descriptors through a Unix socket, between the server and a zygote."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, final

LENGTH = struct.Struct("<I")
READ_BYTES = 65_536
MOST_DESCRIPTORS = 16
"""The maximum number of file descriptors in one message."""
LONGEST_MESSAGE = 65_536
"""The maximum size of a message in bytes."""
COPY = ("copy",)
"""Sent to a zygote that has no job, with a socket: fork a zygote that gets its job through that socket."""
CLOSED = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EPROTOTYPE)
"""Error numbers of sending to a closed socket; macOS raises the last one while the other side is closing."""


@final
class MessageStream:
    """Pickled messages over a stream socket, each preceded by its length.

    A SOCK_SEQPACKET socket (which macOS does not have) works as well. File descriptors arrive with the first byte of
    their message or earlier, in order: ``descriptors`` is a queue, and the kind of a message says how many it has.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.connected = connected
        self._bytes = bytearray()
        self.messages: deque[tuple[Any, ...]] = deque()
        """Messages that were received and not handled yet."""
        self.descriptors: deque[int] = deque()

    def send(self, message: tuple[Any, ...], descriptors: Sequence[int], wait: Callable[[], None]) -> bool:
        """Send a message, calling ``wait`` while the socket is full. Returns False if the other side is gone."""
        data = pickle.dumps(message)
        rest = memoryview(LENGTH.pack(len(data)) + data)
        while rest:
            try:
                sent = (
                    socket.send_fds(self.connected, [rest], descriptors) if descriptors else self.connected.send(rest)
                )
            except BlockingIOError:
                wait()
            except OSError as error:
                if error.errno not in CLOSED:
                    raise
                return False
            else:
                rest, descriptors = rest[sent:], ()
        return True

    def receive(self) -> bool:
        """Read once, into ``messages``. Returns False at the end; raises BlockingIOError if nothing is there."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.connected, READ_BYTES, MOST_DESCRIPTORS)
        except ConnectionResetError:
            return False
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self.descriptors.extend(descriptors)
        self._bytes += data
        while len(self._bytes) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                break
            self.messages.append(pickle.loads(self._bytes[LENGTH.size : end]))
            del self._bytes[:end]
        return bool(data)
