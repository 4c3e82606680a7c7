"""Messages with file descriptors through a Unix socket: how the server and a zygote talk."""

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
"""In one message."""
CLOSED = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EPROTOTYPE)
"""What sending to a closed socket raises; the last is macOS's, while the other side is closing."""


@final
class Channel:
    """Pickled messages over a stream socket, each after its length.

    A socket that keeps packets apart (SOCK_SEQPACKET, which macOS does not have) works as well. Descriptors arrive with
    their message's first byte or earlier, in order: ``descriptors`` is a queue, and each message's kind says how many
    are its own.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._bytes = bytearray()
        self.messages: deque[tuple[Any, ...]] = deque()
        """Received and not yet taken."""
        self.descriptors: deque[int] = deque()

    def send(self, message: tuple[Any, ...], descriptors: Sequence[int], wait: Callable[[], None]) -> bool:
        """Send a message, calling ``wait`` while the socket is full. Returns False if the other side is gone."""
        data = pickle.dumps(message)
        rest = memoryview(LENGTH.pack(len(data)) + data)
        while rest:
            try:
                sent = socket.send_fds(self._socket, [rest], descriptors) if descriptors else self._socket.send(rest)
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
            data, descriptors, _, _ = socket.recv_fds(self._socket, READ_BYTES, MOST_DESCRIPTORS)
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
