"""One end of a connection between machines.

``Connection`` is a state machine without input or output: bytes in, messages out, and the other way round. Its law:
nothing that came from the other end is used before it was authenticated, and nothing is allocated before its size was
checked. Every error is final.

    view = connection.buffer()                  # where the next bytes have to be written
    connection.received(socket.recv_into(view))
    while (message := connection.next_message()) is not None: ...

    connection.send(MessageKind.HEARTBEAT)
    while view := connection.outgoing():        # what has to be sent next
        connection.sent(socket.send(view))

``Link`` does this with a TCP socket, and ``HostSocket`` with the one that a host has opened. Nothing in them blocks,
except connecting, and closing, which may take a second.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from nowait.core.types import Vector
from nowait.fleet.platform import is_ready
from nowait.fleet.wire.messages import Format, Head, Message, MessageKind, bytes_of
from nowait.fleet.wire.secure import (
    GREETING_BYTES,
    HEADER,
    MOST_PAYLOAD,
    OVERHEAD,
    PREFIX,
    Cipher,
    ClientHandshake,
    FrameKind,
    Handshake,
    HostKey,
    ProtocolError,
    RefusedError,
    check_prefix,
)

SENT_PAYLOAD = MOST_PAYLOAD
"""The most bytes of a payload that are sent in one frame. Larger frames wake the other end less often."""
READ_BYTES = 1 << 16
"""How many bytes are read at once, if no larger frame is expected."""
MOST_FIRST_PAYLOAD = 1 << 10
"""The most bytes in the first frame, before which the other end is not authenticated."""
NOTHING = memoryview(bytearray())
CLOSED_DURING_HANDSHAKE = "the connection was closed during the handshake"
"""What a host with another key sees."""
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
CONNECT_SECONDS = 20.0
LINGER_SECONDS = 1.0
"""How long the last messages of a connection that is closed may take."""

Destinations = Callable[[int, bytes, int], Sequence[Vector]]
"""``destinations(kind, content, count)`` returns the arrays to which the large vectors of a message are written. It
raises ``ProtocolError`` if the message must not have so many."""


class DisconnectedError(Exception):
    """The connection is gone; the text says why."""


class NotAcceptedError(DisconnectedError):
    """The handshake failed: the other end does not have the right key, or uses another protocol."""


@final
class Connection:
    """One end of a connection, with its handshake.

    Sending is the work of a ``Sender``, and putting messages together that of an ``Assembly``.
    """

    def __init__(self, handshake: Handshake, form: Format, destinations: Destinations) -> None:
        self._handshake, self._sender = handshake, Sender(form)
        self.send, self.end = self._sender.send, self._sender.end
        self.outgoing, self.sent = self._sender.outgoing, self._sender.sent
        self.queued = self._sender.frames
        """The parts of messages that wait to be sent."""
        self.assembly = Assembly(form.received, destinations)
        self.detach = self.assembly.detach
        self._cipher: Cipher | None = None
        self._input = memoryview(bytearray(GREETING_BYTES))
        self._begin = self._filled = 0
        """The part of the input that has not been used."""
        self._needed = HEADER.size
        """How many bytes the next frame has; those of its header if that has not arrived."""
        self._error: ProtocolError | None = None
        self.authenticated = False
        """True if the other end has proved who it is: a server by its greeting, a client by its first frame."""
        self.ended = False
        """True if the other end has sent its last frame."""
        self.binding = b""
        """The bytes that only both ends of this connection know; empty before the handshake is over."""
        self._prefix_checked = False
        if handshake.sends_first:
            self._sender.greet(handshake.greeting)

    @property
    def has_keys(self) -> bool:
        """True if the greeting of the other end was valid. (A client's greeting may have been recorded.)"""
        return self._cipher is not None

    @property
    def has_input(self) -> bool:
        """True if ``next_message`` may return something before more bytes arrive."""
        return self._error is not None or (self._cipher is not None and self._filled - self._begin >= self._needed)

    def missing(self) -> int:
        """Return how many bytes have to arrive, at least, until the message that is being received is complete."""
        missing = self.assembly.missing()
        return max(0, missing - (self._filled - self._begin)) if missing else 0

    def buffer(self) -> memoryview:
        """Return where the next bytes have to be written; call it when ``next_message`` has returned None.

        It has room for a large frame and the next header, or for many small frames.
        """
        if self._cipher is None:
            return self._input[self._filled :]
        rest = self._filled - self._begin
        expected = max(READ_BYTES, self._needed + HEADER.size) if self.authenticated else MOST_FIRST_PAYLOAD + OVERHEAD
        if expected > len(self._input):
            larger = memoryview(bytearray(expected))
            larger[:rest] = self._input[self._begin : self._filled]
            self._input = larger
        elif self._begin:
            self._input[:rest] = self._input[self._begin : self._filled]
        self._begin, self._filled = 0, rest
        return self._input[rest:expected]

    def received(self, count: int) -> None:
        """Note how many bytes were written into ``buffer``; 0 if the other end closed the connection."""
        if count == 0 and not self.ended:
            self._error = self._error or ProtocolError(
                "the connection broke" if self.authenticated else CLOSED_DURING_HANDSHAKE
            )
        self._filled += count

    def next_message(self) -> Message | None:
        """Return the next message; None if more bytes are needed. An error is raised again by every later call."""
        if self._error is not None:
            raise self._error
        try:
            if self._cipher is None and not self._greeted():
                return None
            while (arrived := self._filled - self._begin) >= HEADER.size:
                size, kind, flags, zero = HEADER.unpack_from(self._input, self._begin)
                if self.ended or flags or zero or size > (MOST_PAYLOAD if self.authenticated else MOST_FIRST_PAYLOAD):
                    raise self._refused(size, flags, zero)
                self._needed = size + OVERHEAD
                if arrived < self._needed:
                    return None
                message = self._open_frame(kind, size)
                if message is not None:
                    return message
            if arrived and self.ended:
                raise self._refused(0, 0, 0)
        except ProtocolError as error:
            self._error = error
            raise
        return None

    def _refused(self, size: int, flags: int, zero: int) -> ProtocolError:
        """Return why a header is not accepted. It is not authenticated yet."""
        if self.ended:
            return ProtocolError("bytes came after the last frame")
        return ProtocolError(f"a frame of {size} bytes with the flags {flags} and {zero} is not accepted")

    def _greeted(self) -> bool:
        """Take the greeting of the other end; returns False if it has not arrived wholly."""
        handshake = self._handshake
        if not self._prefix_checked and self._filled >= PREFIX.size:
            self._check_prefix()
        if self._filled < GREETING_BYTES:
            return False
        ciphers = handshake.receive(bytes(self._input))
        if not handshake.sends_first:
            self._sender.greet(handshake.greeting)
        self._sender.start(ciphers.sealing)
        self._cipher, self.binding = ciphers.opening, ciphers.binding
        self.authenticated = handshake.sends_first
        self._begin = self._filled = 0
        return True

    def _check_prefix(self) -> None:
        self._prefix_checked = True
        try:
            check_prefix(bytes(self._input[: PREFIX.size]), encrypt=self._handshake.encrypt)
        except RefusedError:
            if not self._handshake.sends_first:
                self._sender.greet(self._handshake.prefix)
            raise

    def _open_frame(self, kind: int, size: int) -> Message | None:
        """Open the next frame; returns the message if one is complete now."""
        begin = self._begin
        end = begin + size + OVERHEAD
        if self.assembly.head is None and kind == FrameKind.BODY and size:
            out = memoryview(bytearray(size))
        else:
            out = self.assembly.place(kind, size)
        self._cipher.open(self._input[begin:end], out)  # type: ignore[union-attr]
        self.authenticated, self._begin, self._needed = True, end, HEADER.size
        if kind == FrameKind.END:
            self.ended = True
            return None
        return self.assembly.filled(out)


@final
class Assembly:
    """Puts messages together from the payloads of frames."""

    def __init__(self, form: Format, destinations: Destinations) -> None:
        self._format, self._destinations = form, destinations
        self.head: Head | None = None
        """The head of a message that is not complete."""
        self._body = NOTHING
        """What has arrived of its body, and some space. It grows with what arrives: the announced size costs nothing
        to send."""
        self._filled = 0
        """How many bytes of the body have arrived."""
        self._content = b""
        self._vectors: Sequence[Vector] = ()
        self._missing: deque[memoryview] = deque()
        """What is left to be written of its large vectors."""

    def missing(self) -> int:
        """Return how many bytes the message that is being received still needs; 0 between messages."""
        if self.head is None:
            return 0
        return self.head.body_bytes - self._filled + sum(map(len, self._missing))

    def detach(self) -> None:
        """Replace the destinations of the message that is being received by memory of its own.

        What has arrived is copied. The destinations may be used for something else afterwards.
        """
        if not self._missing:
            return
        copies = [vector.copy() for vector in self._vectors]
        rests = [len(rest) for rest in self._missing]
        views = [bytes_of(copy) for copy in copies[-len(rests) :]]
        self._vectors = copies
        self._missing = deque(view[len(view) - rest :] for view, rest in zip(views, rests, strict=True))

    def place(self, kind: int, size: int) -> memoryview:
        """Return where the next payload has to be written, if it does not begin a message.

        Kind and size are not authenticated yet.
        """
        if self.head is None:
            if kind == FrameKind.END and size == 0:
                return NOTHING
            expected, most = FrameKind.END, 0
        elif missing := self.head.body_bytes - self._filled:
            expected, most = FrameKind.BODY, missing
        else:
            expected, most = FrameKind.VECTOR, len(self._missing[0])
        if kind != expected or not 0 < size <= most:
            raise ProtocolError(f"a frame of {size} bytes of the kind {kind} is not expected here")
        if expected == FrameKind.VECTOR:
            return self._missing[0][:size]
        assert self.head is not None
        return self._body_space(size, self.head.body_bytes)

    def _body_space(self, size: int, most: int) -> memoryview:
        """Return space for the next bytes of a body, at least doubling what there is for the earlier ones."""
        end = self._filled + size
        if end > len(self._body):
            larger = memoryview(bytearray(min(most, max(end, 2 * len(self._body)))))
            larger[: self._filled] = self._body[: self._filled]
            self._body = larger
        return self._body[self._filled : end]

    def filled(self, payload: memoryview) -> Message | None:
        """Note that a payload was written where it belongs. Returns the message if that was the last one."""
        size = len(payload)
        if self.head is None:
            head = self._format.head(payload)
            if size == head.body_bytes and not (self._format.large and head.num_vectors):
                return Message(head.kind, *self._format.parts(head, payload))
            if size > head.body_bytes:
                raise ProtocolError(f"a message has {size} bytes instead of {head.body_bytes}")
            self.head, self._body, self._filled = head, payload, size
        elif self._filled < self.head.body_bytes:
            self._filled += size
        else:
            rest = self._missing.popleft()[size:]
            if rest:
                self._missing.appendleft(rest)
            return None if self._missing else self._finish()
        return None if self._filled < self.head.body_bytes else self._body_complete()

    def _body_complete(self) -> Message | None:
        """Find out where the large vectors of the message belong; returns the message if it has none."""
        form, head = self._format, self.head
        assert head is not None
        self._content, self._vectors = form.parts(head, self._body)
        if form.large and head.num_vectors:
            self._vectors = self._destinations(head.kind, self._content, head.num_vectors)
            self._missing.extend(bytes_of(vector) for vector in self._vectors)
            return None
        return self._finish()

    def _finish(self) -> Message:
        assert self.head is not None
        message = Message(self.head.kind, self._content, self._vectors)
        self.head, self._body, self._content, self._vectors = None, NOTHING, b"", ()
        return message


@final
class Sender:
    """Turns messages into bytes. Vectors are not copied: they must not change until they are sent."""

    def __init__(self, form: Format) -> None:
        self._format = form
        self._cipher: Cipher | None = None
        self.frames: deque[tuple[FrameKind, memoryview]] = deque()
        """What has to be sent, in pieces of any size."""
        self._ending = False
        self._output = self._space = NOTHING

    def greet(self, greeting: bytes) -> None:
        """Send bytes of the handshake."""
        self._output = memoryview(bytes(self._output) + greeting)

    def start(self, cipher: Cipher) -> None:
        """Begin to seal frames."""
        self._cipher = cipher

    def send(self, kind: int, content: bytes = b"", vectors: Sequence[Vector] = ()) -> None:
        """Add a message. Before the handshake is over, messages wait for its end."""
        if self._ending:
            raise ValueError("the connection was ended: no more messages can be sent")
        self.frames.append((FrameKind.BODY, memoryview(self._format.pack(kind, content, vectors))))
        if self._format.large:
            self.frames.extend((FrameKind.VECTOR, bytes_of(vector)) for vector in vectors)

    def end(self) -> None:
        """Add the last frame."""
        if not self._ending:
            self._ending = True
            self.frames.append((FrameKind.END, NOTHING))

    def outgoing(self) -> memoryview:
        """Return the bytes to send next; empty if there are none. Frames are sealed until the space is full."""
        cipher, frames = self._cipher, self.frames
        if self._output or not frames or cipher is None:
            return self._output
        if not self._space:
            self._space = memoryview(bytearray(SENT_PAYLOAD + OVERHEAD))
        filled, space = 0, self._space
        while frames:
            kind, payload = frames[0]
            size = min(len(payload), SENT_PAYLOAD)
            end = filled + size + OVERHEAD
            if end > len(space):
                break
            frame = space[filled:end]
            HEADER.pack_into(frame, 0, size, kind, 0, 0)
            cipher.seal(frame, payload[:size])
            filled = end
            if size < len(payload):
                frames[0] = (kind, payload[size:])
            else:
                frames.popleft()
        self._output = space[:filled]
        return self._output

    def sent(self, count: int) -> None:
        """Note that the first bytes of ``outgoing`` were sent."""
        self._output = self._output[count:]


# Sockets


@final
class Link:
    """One end of a TCP connection."""

    def __init__(self, tcp: socket.socket, connection: Connection) -> None:
        tcp.setblocking(False)
        _set_options(tcp)
        self._socket, self.connection, self.fd = tcp, connection, tcp.fileno()
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
                if self._drained:
                    self._drained = False
                    break
                view = connection.buffer()
                count = self._socket.recv_into(view)
                if count == 0 and connection.ended:
                    raise DisconnectedError(ENDED)
                self.bytes_received += count
                self._drained = 0 < count < len(view)
                connection.received(count)
        except BlockingIOError:
            message = None
        except OSError as error:
            raise DisconnectedError(_reason(error)) from None
        except ProtocolError as error:
            kind = DisconnectedError if connection.authenticated else NotAcceptedError
            raise kind(str(error)) from None
        if message is None and (connection.assembly.head is not None or self._waking_bytes > 1):
            self._wake_after(connection.missing())
        return message

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

    def end(self) -> bool:
        """Send the last frame, and tell the system that nothing follows, if all was sent. Returns True if it was."""
        self.connection.end()
        finished = self.write()
        if finished:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        return finished

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


@final
@dataclass(frozen=True)
class Address:
    """What a host needs to connect."""

    host: str
    port: int
    key: HostKey
    encrypt: bool


@final
class HostSocket:
    """A host's connection to the server. Poll ``fd`` for ``events``, and call ``receive`` when it is ready."""

    def __init__(self, link: Link) -> None:
        self._link, self.fd = link, link.fd
        self.blocked = False
        """True if the system did not take all that was sent; ``receive`` goes on with it."""

    @property
    def events(self) -> int:
        """What to poll the socket for."""
        return select.POLLIN | select.POLLOUT if self.blocked else select.POLLIN

    @classmethod
    def connect(cls, address: Address, identity: bytes, form: Format, destinations: Destinations) -> HostSocket:
        """Connect to the server. Messages can be sent at once; the handshake goes on while others are received."""
        try:
            tcp = socket.create_connection((address.host, address.port), timeout=CONNECT_SECONDS)
        except OSError as error:
            raise DisconnectedError(f"{address.host}, port {address.port}, cannot be reached: {error}") from error
        try:
            handshake = ClientHandshake(address.key, X25519PrivateKey.generate(), encrypt=address.encrypt)
            host_socket = cls(Link(tcp, Connection(handshake, form, destinations)))
        except BaseException:
            tcp.close()
            raise
        host_socket.send(MessageKind.HELLO, identity)
        return host_socket

    def finish_handshake(self, seconds: float) -> None:
        """Wait until the server has authenticated, which it does before it sends messages."""
        deadline = monotonic() + seconds
        while not self._link.connection.authenticated:
            if not is_ready(self._link.fd, max(0.0, deadline - monotonic())):
                raise DisconnectedError(f"the server did not answer within {seconds:g} s")
            self.receive()

    def receive(self) -> Message | None:
        """Return the next message; None if there is none. Raises ``DisconnectedError``."""
        message = self._link.receive()
        if message is None and self._link.connection.outgoing():
            self.blocked = not self._link.write()
        return message

    @property
    def binding(self) -> bytes:
        """The bytes that only both ends of this connection know; empty before the handshake is over."""
        return self._link.connection.binding

    def send(self, kind: MessageKind, content: bytes = b"", vectors: Sequence[Vector] = ()) -> None:
        """Send to the server. Vectors must not change until they are sent. Raises ``DisconnectedError``."""
        self._link.connection.send(kind, content, vectors)
        self.blocked = not self._link.write()

    def close(self, linger_seconds: float = LINGER_SECONDS) -> None:
        """Close the connection after the last messages were sent."""
        self._link.finish(linger_seconds)
