"""One end of a connection as a state machine: bytes in, messages out, and the other way round.

The law of this file: nothing that came from the other end is used before it was authenticated, and nothing is allocated
before its size was checked. Every error is final. There is no input or output here:

    view = connection.buffer()                  # where the next bytes have to be written
    connection.received(socket.recv_into(view))
    while (message := connection.next_message()) is not None: ...

    connection.send(MessageKind.HEARTBEAT)
    while view := connection.outgoing():        # what has to be sent next
        connection.sent(socket.send(view))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import final

from nowait.core.types import Vector
from nowait.engines.network.messages import Format, Head, Message, bytes_of
from nowait.engines.network.secure import (
    GREETING_BYTES,
    HEADER,
    MOST_PAYLOAD,
    OVERHEAD,
    PREFIX,
    Cipher,
    FrameKind,
    Handshake,
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

Destinations = Callable[[int, bytes, int], Sequence[Vector]]
"""``destinations(kind, content, count)`` returns the arrays to which the large vectors of a message are written. It
raises ``ProtocolError`` if the message must not have so many."""


@final
class Connection:
    """One end of a connection, with its handshake."""

    def __init__(self, handshake: Handshake, form: Format, destinations: Destinations) -> None:
        self._sender = Sender(form)
        self._receiver = Receiver(handshake, form.received, destinations, self._sender)
        self.send = self._sender.send
        self.end = self._sender.end
        self.outgoing = self._sender.outgoing
        self.sent = self._sender.sent
        self.buffer = self._receiver.buffer
        self.received = self._receiver.received
        self.next_message = self._receiver.next_message
        self.missing = self._receiver.missing

    @property
    def has_keys(self) -> bool:
        """True if the greeting of the other end was valid. (A client's greeting may have been recorded.)"""
        return self._sender.has_keys

    @property
    def authenticated(self) -> bool:
        """True if the other end has proved who it is: a server by its greeting, a client by its first frame."""
        return self._receiver.authenticated

    @property
    def binding(self) -> bytes:
        """The bytes that only both ends of this connection know; empty before the handshake is over."""
        return self._receiver.binding

    @property
    def ended(self) -> bool:
        """True if the other end has sent its last frame."""
        return self._receiver.ended

    @property
    def queued(self) -> int:
        """How many parts of messages wait to be sent."""
        return self._sender.queued

    def detach(self) -> None:
        """Write the rest of the message that is being received to memory of its own."""
        self._receiver.detach()

    @property
    def has_input(self) -> bool:
        """True if ``next_message`` may return something before more bytes arrive."""
        return self._receiver.has_input


@final
class Sender:
    """Turns messages into bytes. Vectors are not copied: they must not change until they are sent."""

    def __init__(self, form: Format) -> None:
        self._format = form
        self._cipher: Cipher | None = None
        self._frames: deque[tuple[FrameKind, memoryview]] = deque()
        """What has to be sent, in pieces of any size."""
        self._ending = False
        self._output = self._space = NOTHING

    @property
    def has_keys(self) -> bool:
        """True once frames can be sealed."""
        return self._cipher is not None

    @property
    def queued(self) -> int:
        """How many parts of messages wait to be sent."""
        return len(self._frames)

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
        self._frames.append((FrameKind.BODY, memoryview(self._format.pack(kind, content, vectors))))
        if self._format.large:
            self._frames.extend((FrameKind.VECTOR, bytes_of(vector)) for vector in vectors)

    def end(self) -> None:
        """Add the last frame."""
        if not self._ending:
            self._ending = True
            self._frames.append((FrameKind.END, NOTHING))

    def outgoing(self) -> memoryview:
        """Return the bytes to send next; empty if there are none."""
        if not self._output and self._frames and self._cipher is not None:
            self._output = self._seal(self._cipher)
        return self._output

    def sent(self, count: int) -> None:
        """Note that the first bytes of ``outgoing`` were sent."""
        self._output = self._output[count:]

    def _seal(self, cipher: Cipher) -> memoryview:
        """Seal frames until the space is full, and return their bytes."""
        if not self._space:
            self._space = memoryview(bytearray(SENT_PAYLOAD + OVERHEAD))
        filled, space, frames = 0, self._space, self._frames
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
        return space[:filled]


@final
class Receiver:
    """Turns bytes into messages."""

    def __init__(self, handshake: Handshake, form: Format, destinations: Destinations, sender: Sender) -> None:
        self._handshake, self._sender = handshake, sender
        self._cipher: Cipher | None = None
        self._assembly = Assembly(form, destinations)
        self._input = memoryview(bytearray(GREETING_BYTES))
        self._begin = self._filled = 0
        """The part of the input that has not been used."""
        self._needed = HEADER.size
        """How many bytes the next frame has; those of its header if that has not arrived."""
        self._error: ProtocolError | None = None
        self.authenticated = self.ended = False
        self.binding = b""
        self._prefix_checked = False
        if handshake.sends_first:
            sender.greet(handshake.greeting)

    @property
    def has_input(self) -> bool:
        """True if the input may have a whole frame, or an error is to be raised."""
        return self._error is not None or (self._cipher is not None and self._filled - self._begin >= self._needed)

    def missing(self) -> int:
        """Return how many bytes have to arrive, at least, until the message that is being received is complete."""
        missing = self._assembly.missing()
        return max(0, missing - (self._filled - self._begin)) if missing else 0

    def detach(self) -> None:
        """Write the rest of the message that is being received to memory of its own."""
        self._assembly.detach()

    def buffer(self) -> memoryview:
        """Return where the next bytes have to be written; call it when ``next_message`` has returned None."""
        if self._cipher is None:
            return self._input[self._filled :]
        rest, expected = self._filled - self._begin, self._expected_bytes()
        if expected > len(self._input):
            larger = memoryview(bytearray(expected))
            larger[:rest] = self._input[self._begin : self._filled]
            self._input = larger
        elif self._begin:
            self._input[:rest] = self._input[self._begin : self._filled]
        self._begin, self._filled = 0, rest
        return self._input[rest:expected]

    def _expected_bytes(self) -> int:
        """Return how many bytes to have at most: a large frame and the next header, or many small frames."""
        if not self.authenticated:
            return MOST_FIRST_PAYLOAD + OVERHEAD
        return max(READ_BYTES, self._needed + HEADER.size)

    def received(self, count: int) -> None:
        """Note how many bytes were written into ``buffer``; 0 if the other end closed the connection."""
        if count == 0 and not self.ended:
            self._error = self._error or ProtocolError(
                "the connection broke" if self.authenticated else CLOSED_DURING_HANDSHAKE
            )
        self._filled += count

    def next_message(self) -> Message | None:
        """Return the next message; None if more bytes are needed."""
        if self._error is None:
            try:
                return self._next_message()
            except ProtocolError as error:
                self._error = error
        raise self._error

    def _next_message(self) -> Message | None:
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
        out = self._assembly.place(kind, size)
        self._cipher.open(self._input[begin:end], out)  # type: ignore[union-attr]
        self.authenticated, self._begin, self._needed = True, end, HEADER.size
        if kind == FrameKind.END:
            self.ended = True
            return None
        return self._assembly.filled(out)


@final
class Assembly:
    """Puts messages together from the payloads of frames."""

    def __init__(self, form: Format, destinations: Destinations) -> None:
        self._format, self._destinations = form, destinations
        self._head: Head | None = None
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
        if self._head is None:
            return 0
        return self._head.body_bytes - self._filled + sum(map(len, self._missing))

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
        """Return where the next payload has to be written. Kind and size are not authenticated yet."""
        if self._head is None:
            if kind == FrameKind.END and size == 0:
                return NOTHING
            expected, most = FrameKind.BODY, size
        elif missing := self._head.body_bytes - self._filled:
            expected, most = FrameKind.BODY, missing
        else:
            expected, most = FrameKind.VECTOR, len(self._missing[0])
        if kind != expected or not 0 < size <= most:
            raise ProtocolError(f"a frame of {size} bytes of the kind {kind} is not expected here")
        return self._missing[0][:size] if expected == FrameKind.VECTOR else self._body_space(size)

    def _body_space(self, size: int) -> memoryview:
        """Return space for the next bytes of a body, at least doubling what there is for the earlier ones."""
        if self._head is None:
            return memoryview(bytearray(size))
        end = self._filled + size
        if end > len(self._body):
            larger = memoryview(bytearray(min(self._head.body_bytes, max(end, 2 * len(self._body)))))
            larger[: self._filled] = self._body[: self._filled]
            self._body = larger
        return self._body[self._filled : end]

    def filled(self, payload: memoryview) -> Message | None:
        """Note that a payload was written where it belongs. Returns the message if that was the last one."""
        size = len(payload)
        if self._head is None:
            head = self._format.head(payload)
            if size == head.body_bytes and not (self._format.large and head.num_vectors):
                return Message(head.kind, *self._format.parts(head, payload))
            if size > head.body_bytes:
                raise ProtocolError(f"a message has {size} bytes instead of {head.body_bytes}")
            self._head, self._body, self._filled = head, payload, size
        elif self._filled < self._head.body_bytes:
            self._filled += size
        else:
            rest = self._missing.popleft()[size:]
            if rest:
                self._missing.appendleft(rest)
            return None if self._missing else self._finish()
        return None if self._filled < self._head.body_bytes else self._body_complete()

    def _body_complete(self) -> Message | None:
        """Find out where the large vectors of the message belong; returns the message if it has none."""
        form, head = self._format, self._head
        assert head is not None
        self._content, self._vectors = form.parts(head, self._body)
        if form.large and head.num_vectors:
            self._vectors = self._destinations(head.kind, self._content, head.num_vectors)
            self._missing.extend(bytes_of(vector) for vector in self._vectors)
            return None
        return self._finish()

    def _finish(self) -> Message:
        assert self._head is not None
        message = Message(self._head.kind, self._content, self._vectors)
        self._head, self._body, self._content, self._vectors = None, NOTHING, b"", ()
        return message
