"""The protocol between machines, without input or output: what each end accepts, and what it refuses."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from nowait.fleet.wire import connection, secure
from nowait.fleet.wire.connection import MOST_FIRST_PAYLOAD, SENT_PAYLOAD, Connection
from nowait.fleet.wire.messages import (
    HEAD,
    LIMITS,
    MOST_BODY,
    MOST_RECORD,
    Format,
    MessageKind,
)
from nowait.fleet.wire.secure import (
    GREETING_BYTES,
    HEADER,
    MOST_PAYLOAD,
    OVERHEAD,
    PREFIX,
    VERSION,
    ClientHandshake,
    FrameKind,
    HostKey,
    ProtocolError,
    ServerHandshake,
    ServerKey,
)

SECRET = bytes(range(32))
SMALL, LARGE = Format(5, "<f8"), Format(40_000, "<f8")


def private_key(number):
    return X25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def new_vectors(form):
    return lambda kind, content, count: [np.zeros(form.length, form.dtype) for _ in range(count)]


SERVER = private_key(100)


def a_client(form=SMALL, *, encrypt=True, secret=SECRET, server=SERVER, key=1, **options):
    """A client that knows this secret and the public key that belongs to this private key."""
    handshake = ClientHandshake(ServerKey(secret, server).for_hosts(), private_key(key), encrypt=encrypt)
    return Connection(handshake, form, options.get("destinations", new_vectors(form)))


def a_server(form=SMALL, *, encrypt=True, secret=SECRET, server=SERVER, key=2, **options):
    handshake = ServerHandshake(ServerKey(secret, server), lambda: private_key(key), encrypt=encrypt)
    return Connection(handshake, form, options.get("destinations", new_vectors(form)))


def outgoing(connection):
    """All bytes that an end wants to send."""
    found = b""
    while view := connection.outgoing():
        found += bytes(view)
        connection.sent(len(view))
    return found


def feed(connection, data, most=1 << 30):
    """Give bytes to an end, at most so many at a time; returns the messages as plain values."""
    messages, data = [], memoryview(data)
    while True:
        while (message := connection.next_message()) is not None:
            messages.append((message.kind, message.content, [vector.tolist() for vector in message.vectors]))
        if not data:
            return messages
        view = connection.buffer()
        assert len(view) > 0
        count = min(len(view), len(data), most)
        view[:count] = data[:count]
        connection.received(count)
        data = data[count:]


def connected(form=SMALL, **options):
    """A client and a server after the handshake; the client's first frame was received."""
    client, server = a_client(form, **options), a_server(form, **options)
    feed(server, outgoing(client))
    feed(client, outgoing(server))
    client.send(MessageKind.HELLO, b"me")
    assert feed(server, outgoing(client)) == [(MessageKind.HELLO, b"me", [])]
    return client, server


def split(data):
    """The frames in some bytes."""
    found = []
    while data:
        size = HEADER.unpack_from(data)[0] + OVERHEAD
        found.append(data[:size])
        data = data[size:]
    return found


BOTH = pytest.mark.parametrize("encrypt", [True, False], ids=["encrypted", "authenticated"])


# What arrives


@BOTH
def test_both_ends_receive_what_was_sent(encrypt):
    client, server = connected(encrypt=encrypt)
    assert client.authenticated
    assert server.authenticated
    client.send(MessageKind.REPORTS, b"records ", [np.arange(5.0), np.ones(5)])
    client.send(MessageKind.HEARTBEAT)
    assert feed(server, outgoing(client)) == [
        (MessageKind.REPORTS, b"records ", [[0.0, 1.0, 2.0, 3.0, 4.0], [1.0] * 5]),
        (MessageKind.HEARTBEAT, b"", []),
    ]
    server.send(MessageKind.ORDERS, b"orders")
    assert feed(client, outgoing(server)) == [(MessageKind.ORDERS, b"orders", [])]


@pytest.mark.parametrize("arrived", [0.2, 0.7])
def test_a_message_that_is_being_received_can_be_written_elsewhere(arrived):
    """As much of it as 0.2 is a part of the first vector, 0.7 is a part of the second one."""
    slots = [np.zeros(40_000), np.zeros(40_000)]
    client = a_client(LARGE)
    server = a_server(LARGE, destinations=lambda kind, content, count: slots)
    server.detach()
    feed(server, outgoing(client))
    feed(client, outgoing(server))
    client.send(MessageKind.HELLO, b"me")
    first, second = np.random.default_rng(0).random((2, 40_000))
    vectors = np.split(np.concatenate([first, second]), 2)
    client.send(MessageKind.REPORTS, b"two", vectors)
    data = outgoing(client)
    cut = int(arrived * len(data))
    assert feed(server, data[:cut], most=50_000) == [(MessageKind.HELLO, b"me", [])]
    server.detach()
    before = [slot.copy() for slot in slots]
    [(_, content, received)] = feed(server, data[cut:])
    assert content == b"two"
    assert all(map(np.array_equal, received, vectors))
    assert all(map(np.array_equal, slots, before)), "nothing more was written to the slots"


@BOTH
def test_large_vectors_are_written_where_they_belong(encrypt):
    slots, asked = [np.zeros(40_000), np.zeros(40_000)], []

    def destinations(kind, content, count):
        asked.append((kind, content, count))
        return slots[:count]

    options = {"form": LARGE, "encrypt": encrypt}
    client, server = a_client(**options), a_server(**options, destinations=destinations)
    feed(server, outgoing(client))
    feed(client, outgoing(server))
    first, second = np.random.default_rng(0).random((2, 40_000))
    client.send(MessageKind.HELLO, b"me")
    client.send(MessageKind.REPORTS, b"two", [first, second])
    client.send(MessageKind.HEARTBEAT)
    found = feed(server, outgoing(client), most=100_000)
    assert [(kind, content, len(vectors)) for kind, content, vectors in found] == [
        (MessageKind.HELLO, b"me", 0),
        (MessageKind.REPORTS, b"two", 2),
        (MessageKind.HEARTBEAT, b"", 0),
    ]
    assert asked == [(MessageKind.REPORTS, b"two", 2)]
    assert np.array_equal(slots, [first, second])


def test_content_and_small_vectors_of_many_frames_arrive_whole():
    client, server = connected()
    content, vectors = random.Random(0).randbytes(2 * SENT_PAYLOAD + 16), [np.full(5, float(n)) for n in range(9_000)]
    client.send(MessageKind.REPORTS, content, vectors)
    [(kind, received, found)] = feed(server, outgoing(client))
    assert (kind, received) == (MessageKind.REPORTS, content)
    assert found == [[float(n)] * 5 for n in range(9_000)]


@settings(max_examples=40, deadline=None)
@given(
    pieces=st.lists(st.integers(1, 400), min_size=1, max_size=30),
    sizes=st.lists(st.integers(0, 300), max_size=8),
    encrypt=st.booleans(),
)
def test_it_does_not_matter_in_which_pieces_bytes_arrive(pieces, sizes, encrypt):
    client, server = connected(encrypt=encrypt)
    for size in sizes:
        client.send(MessageKind.DETAILS, bytes(size), [np.arange(5.0)] * (size % 3))
    data, found, place = outgoing(client), [], 0
    while data:
        found += feed(server, data[: pieces[place % len(pieces)]])
        data, place = data[pieces[place % len(pieces)] :], place + 1
    assert [(len(content), len(vectors)) for _, content, vectors in found] == [(size, size % 3) for size in sizes]


def test_messages_wait_for_the_end_of_the_handshake():
    client, server = a_client(), a_server()
    client.send(MessageKind.HELLO, b"early")
    greeting = outgoing(client)
    assert len(greeting) == GREETING_BYTES
    feed(server, greeting)
    assert not server.authenticated
    feed(client, outgoing(server))
    assert feed(server, outgoing(client)) == [(MessageKind.HELLO, b"early", [])]


@BOTH
def test_keys_change_while_frames_are_sent(encrypt, monkeypatch):
    monkeypatch.setattr(secure, "FRAMES_PER_KEY", 3)
    client, server = connected(encrypt=encrypt)
    for number in range(20):
        client.send(MessageKind.DETAILS, bytes([number]))
    keys = set()
    for frame in split(outgoing(client)):
        feed(server, frame)
        keys.add(server._cipher._state._key)
    assert len(keys) == 7


def test_only_encrypted_content_cannot_be_read():
    for encrypt in (True, False):
        client, _ = connected(encrypt=encrypt)
        client.send(MessageKind.DETAILS, b"the content")
        assert (b"the content" in outgoing(client)) is not encrypt


# What is refused


def conversation(encrypt):
    """What both ends send in a short conversation, and what arrives of it."""
    client, server = a_client(encrypt=encrypt), a_server(encrypt=encrypt)
    to_server = outgoing(client)
    feed(server, to_server)
    to_client = outgoing(server)
    feed(client, to_client)
    client.send(MessageKind.HELLO, b"me")
    client.send(MessageKind.REPORTS, b"record 1", [np.arange(5.0)])
    client.end()
    to_server += outgoing(client)
    return to_server, to_client


MESSAGES = [(MessageKind.HELLO, b"me", []), (MessageKind.REPORTS, b"record 1", [[0.0, 1.0, 2.0, 3.0, 4.0]])]


def heard(server, data):
    """What a server understands of some bytes and the end of the connection; the last entry is the error."""
    found, data = [], memoryview(data)
    try:
        while data:
            view = server.buffer()
            count = min(len(view), len(data), 64)
            view[:count] = data[:count]
            server.received(count)
            data = data[count:]
            while (message := server.next_message()) is not None:
                found.append((message.kind, message.content, [vector.tolist() for vector in message.vectors]))
        server.received(0)
        assert server.next_message() is None
    except ProtocolError as error:
        return [*found, str(error)]
    return found


@BOTH
def test_every_prefix_of_a_conversation_is_an_error_and_gives_the_first_messages_only(encrypt):
    to_server, _ = conversation(encrypt)
    assert heard(a_server(encrypt=encrypt), to_server) == MESSAGES
    ends = {}
    for length in range(len(to_server)):
        *found, error = heard(a_server(encrypt=encrypt), to_server[:length])
        assert found == MESSAGES[: len(found)]
        ends[error] = max(ends.get(error, 0), len(found))
    assert ends == {"the connection was closed during the handshake": 0, "the connection broke": 2}


@BOTH
def test_every_bit_of_what_a_client_sends_matters(encrypt):
    to_server, _ = conversation(encrypt)
    for place in range(8 * len(to_server)):
        altered = bytearray(to_server)
        altered[place // 8] ^= 1 << place % 8
        *found, error = heard(a_server(encrypt=encrypt), altered)
        assert found == MESSAGES[: len(found)]
        assert isinstance(error, str)
        if place // 8 < GREETING_BYTES + OVERHEAD + HEAD.size + 2:
            assert found == [], "the first frame proves who it is"


@BOTH
def test_every_bit_of_what_a_server_sends_matters(encrypt):
    _, to_client = conversation(encrypt)
    for place in range(8 * len(to_client)):
        altered = bytearray(to_client)
        altered[place // 8] ^= 1 << place % 8
        client = a_client(encrypt=encrypt)
        with pytest.raises(ProtocolError):
            feed(client, altered)
        assert not client.authenticated
        assert not client.has_keys


@BOTH
def test_frames_that_are_repeated_left_out_or_moved_are_refused(encrypt):
    client, server = connected(encrypt=encrypt)
    for number in range(4):
        client.send(MessageKind.DETAILS, bytes([number]))
    first, second, third, fourth = split(outgoing(client))
    for order in ([first, first], [second], [first, third], [first, second, fourth, third]):
        _, server = twin_of(encrypt)
        with pytest.raises(ProtocolError, match="altered, repeated, left out or moved"):
            feed(server, b"".join(order))
        with pytest.raises(ProtocolError, match="altered"):
            feed(server, b"")
    _, server = twin_of(encrypt)
    assert len(feed(server, first + second + third + fourth)) == 4


def twin_of(encrypt):
    """The same connection once more: keys are the same, because the private keys are."""
    return connected(encrypt=encrypt)


@BOTH
def test_frames_of_another_connection_are_refused(encrypt):
    one, _ = connected(encrypt=encrypt)
    _, server = connected(encrypt=encrypt, key=7)
    one.send(MessageKind.HEARTBEAT)
    with pytest.raises(ProtocolError, match="altered"):
        feed(server, outgoing(one))


@BOTH
def test_an_end_does_not_accept_what_it_sent_itself(encrypt):
    client = a_client(encrypt=encrypt)
    with pytest.raises(ProtocolError, match="does not have the private key of the server"):
        feed(client, outgoing(client))
    client, server = a_client(encrypt=encrypt), a_server(encrypt=encrypt)
    feed(server, outgoing(client))
    feed(client, outgoing(server))
    for end in (client, server):
        end.send(MessageKind.HEARTBEAT)  # the first frame in its direction; the first in the other one is expected
        with pytest.raises(ProtocolError, match="altered"):
            feed(end, outgoing(end))


@BOTH
def test_a_recorded_conversation_does_not_authenticate(encrypt):
    """The server has another private key this time."""
    to_server, _ = conversation(encrypt)
    server = a_server(encrypt=encrypt, key=9)
    assert heard(server, to_server) == ["a frame was altered, repeated, left out or moved"]
    assert not server.authenticated


STRANGERS = {"another secret": {"secret": bytes(32)}, "another server": {"server": private_key(101)}}


@BOTH
@pytest.mark.parametrize("wrong", STRANGERS.values(), ids=STRANGERS)
def test_without_the_key_of_the_server_nothing_is_answered(encrypt, wrong):
    for host, end in ((wrong, {}), ({}, wrong)):
        server, stranger = a_server(encrypt=encrypt, **end), a_client(encrypt=encrypt, **host)
        with pytest.raises(ProtocolError, match="does not have the key of this server"):
            feed(server, outgoing(stranger))
        assert outgoing(server) == b""
        assert not server.has_keys


@BOTH
def test_who_has_only_the_key_of_the_hosts_cannot_pose_as_the_server(encrypt):
    """It has recorded a conversation, diverts a host, and answers with any private key, or with what it recorded."""
    of_hosts = ServerKey(SECRET, SERVER).for_hosts()
    client = a_client(encrypt=encrypt, key=3)
    greeting = outgoing(client)[PREFIX.size :]
    state = secure.SymmetricState(PREFIX.pack(b"nowait", VERSION, encrypt), of_hosts.server)
    with pytest.raises(InvalidTag):
        secure.read_first(state, ServerKey(SECRET, private_key(5)), greeting)
    forged = secure.write_second(state, private_key(5), greeting[:32])
    _, recorded = conversation(encrypt)
    for answer in (PREFIX.pack(b"nowait", VERSION, encrypt) + forged, recorded):
        client = a_client(encrypt=encrypt, key=3)
        with pytest.raises(ProtocolError, match="does not have the private key of the server"):
            feed(client, answer)
        assert not client.authenticated
        assert not client.has_keys


def test_other_versions_and_modes_are_told_apart():
    greeting = bytearray(outgoing(a_client()))
    greeting[6] = 9
    server = a_server()
    with pytest.raises(ProtocolError, match=f"speaks version 9 of the protocol, this one version {VERSION}"):
        feed(server, greeting)
    assert outgoing(server) == PREFIX.pack(b"nowait", VERSION, 1)
    client = a_client()
    with pytest.raises(ProtocolError, match="speaks version 7"):
        feed(client, PREFIX.pack(b"nowait", 7, 1))
    for encrypt in (True, False):
        server = a_server(encrypt=encrypt)
        with pytest.raises(ProtocolError, match=r"the other end is (not )?encrypted \(mode \d\), this one"):
            feed(server, outgoing(a_client(encrypt=not encrypt)))
    with pytest.raises(ProtocolError, match="mode 3"):
        feed(a_server(), PREFIX.pack(b"nowait", VERSION, 3))
    with pytest.raises(ProtocolError, match="does not speak"):
        feed(a_server(), b"GET / HTTP/1.1\r\n")


def test_a_host_of_the_version_before_is_told_so_before_its_greeting_is_complete():
    server = a_server()
    with pytest.raises(ProtocolError, match=f"speaks version 2 of the protocol, this one version {VERSION}"):
        feed(server, PREFIX.pack(b"nowait", 2, 2) + bytes(64))
    assert outgoing(server) == PREFIX.pack(b"nowait", VERSION, 1)


def test_nobody_else_can_change_the_mode():
    """Both ends hash what they say first: a prefix that was altered on its way to look alike does not help."""
    client, server = a_client(encrypt=True), a_server(encrypt=False)
    greeting = bytearray(outgoing(client))
    greeting[7] = 0
    with pytest.raises(ProtocolError, match="does not have the key"):
        feed(server, greeting)


SMALL_ORDER = [
    bytes(32),
    bytes([1]) + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes.fromhex("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes.fromhex("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
]
"""All public keys whose exchange gives zeros, whatever the other key is."""


@pytest.mark.parametrize("public", SMALL_ORDER, ids=bytes.hex)
def test_a_public_key_of_small_order_is_refused(public):
    prefix = PREFIX.pack(b"nowait", VERSION, 1)
    with pytest.raises(ProtocolError, match="public key that is not valid"):
        feed(a_server(), prefix + public + bytes(16))
    with pytest.raises(ProtocolError, match="public key that is not valid"):
        feed(a_client(), prefix + public + bytes(16))
    with pytest.raises(ProtocolError, match="public key that is not valid"):
        ClientHandshake(HostKey(SECRET, public), private_key(1), encrypt=True)


def sealed(client, *parts):
    """Frames that the client's key seals, of any kind and with any header: (kind, payload, flags and zeros)."""
    found = b""
    for kind, payload, *rest in parts:
        frame = memoryview(bytearray(len(payload) + OVERHEAD))
        HEADER.pack_into(frame, 0, len(payload), kind, *rest, *[0] * (2 - len(rest)))
        client._sender._cipher.seal(frame, payload)
        found += bytes(frame)
    return found


BODY, VECTOR, END = FrameKind.BODY, FrameKind.VECTOR, FrameKind.END


@pytest.mark.parametrize(
    ("form", "parts"),
    [
        (SMALL, [(7, b"payload", 0)]),
        (SMALL, [(BODY, b"", 0)]),
        (SMALL, [(BODY, b"short", 0)]),
        (SMALL, [(BODY, HEAD.pack(1, 0, 0, 0), 1)]),
        (SMALL, [(BODY, HEAD.pack(1, 0, 0, 0) + b"more", 0)]),
        (SMALL, [(BODY, HEAD.pack(1, 0, 0, 5), 0)]),
        (SMALL, [(BODY, HEAD.pack(1, MOST_BODY, 0, 0), 0)]),
        (SMALL, [(BODY, HEAD.pack(1, 0, 1 << 31, 0), 0)]),
        (SMALL, [(BODY, HEAD.pack(1, 8, 0, 0), 0), (BODY, b"more than 8", 0)]),
        (SMALL, [(BODY, HEAD.pack(1, 8, 0, 0), 0), (END, b"", 0)]),
        (SMALL, [(BODY, HEAD.pack(1, 8, 0, 0), 0), (VECTOR, b"8 bytes!", 0)]),
        (SMALL, [(VECTOR, b"8 bytes!", 0)]),
        (SMALL, [(END, b"x", 0)]),
        (SMALL, [(END, b"", 0), (END, b"", 0)]),
        (SMALL, [(END, b"", 0), (BODY, HEAD.pack(1, 0, 0, 0), 0)]),
        (LARGE, [(BODY, HEAD.pack(1, 0, 1, 0), 0), (BODY, HEAD.pack(1, 0, 0, 0), 0)]),
        (LARGE, [(BODY, HEAD.pack(1, 0, 1, 0), 0), (VECTOR, b"", 0)]),
        (LARGE, [(BODY, HEAD.pack(1, 0, 1, 0), 0), (VECTOR, bytes(320_001), 0)]),
        (LARGE, [(BODY, HEAD.pack(1, 0, 1, 0), 0), (END, b"", 0)]),
    ],
)
def test_frames_that_do_not_follow_the_rules_are_refused_although_they_are_authentic(form, parts):
    client, server = connected(form)
    with pytest.raises(ProtocolError):
        feed(server, sealed(client, *parts))


def test_what_is_reserved_is_sent_as_zeros_and_refused_otherwise():
    client, server = connected()
    head = HEAD.pack(MessageKind.HEARTBEAT, 0, 0, 0)
    client.send(MessageKind.HEARTBEAT)
    assert outgoing(client)[: HEADER.size] == HEADER.pack(HEAD.size, BODY, 0, 0)
    assert SMALL.pack(MessageKind.HEARTBEAT) == head
    for frame in ([BODY, head, 1], [BODY, head, 0, 1]):
        client, server = connected()
        with pytest.raises(ProtocolError, match="is not accepted"):
            feed(server, sealed(client, frame))
    client, server = connected()
    with pytest.raises(ProtocolError, match="a message of the kind 12 would have"):
        feed(server, sealed(client, (BODY, HEAD.pack(MessageKind.HEARTBEAT, 0, 0, 1))))
    client, server = connected()
    assert feed(server, sealed(client, (BODY, head))) == [(MessageKind.HEARTBEAT, b"", [])]


def test_a_message_that_must_not_have_vectors_is_refused_before_they_are_read():
    def refuse(kind, content, count):
        raise ProtocolError(f"{count} vectors")

    client, server = a_client(LARGE), a_server(LARGE, destinations=refuse)
    feed(server, outgoing(client))
    feed(client, outgoing(server))
    client.send(MessageKind.HELLO, b"me", [np.zeros(40_000)] * 3)
    with pytest.raises(ProtocolError, match="3 vectors"):
        feed(server, outgoing(client))


def test_sizes_are_checked_before_memory_is_allocated():
    client, server = connected()
    with pytest.raises(ProtocolError, match="is not accepted"):
        feed(server, HEADER.pack(MOST_PAYLOAD + 1, BODY, 0, 0))
    client, server = a_client(), a_server()
    feed(server, outgoing(client))
    with pytest.raises(ProtocolError, match="is not accepted"):
        feed(server, HEADER.pack(MOST_FIRST_PAYLOAD + 1, BODY, 0, 0))
    assert len(server.buffer()) <= MOST_FIRST_PAYLOAD + OVERHEAD


def test_an_announced_size_takes_no_memory_before_its_bytes_arrive():
    client, server = connected()
    assembly = server.assembly
    head = HEAD.pack(MessageKind.REPORTS, MOST_BODY - HEAD.size, 0, 0)
    for arrived, payload in ((16, head), (17, b"x"), (20, b"xyz"), (1 << 20, bytes((1 << 20) - 20))):
        assert feed(server, sealed(client, (BODY, payload))) == []
        assert server.missing() == MOST_BODY - arrived
        assert len(assembly._body) <= 2 * arrived


@pytest.mark.parametrize("kind", [*MessageKind, 0, 99])
def test_a_message_of_each_kind_has_a_limit_of_its_own(kind):
    limit = LIMITS.get(kind, MOST_RECORD)
    assert limit < MOST_BODY or kind in {MessageKind.ORDERS, MessageKind.REPLY, MessageKind.REPORTS}
    client, server = connected()
    assert feed(server, sealed(client, (BODY, HEAD.pack(kind, limit - HEAD.size, 0, 0)))) == []
    client, server = connected()
    with pytest.raises(ProtocolError, match=f"a message of the kind {int(kind)} would have {limit + 1} bytes"):
        feed(server, sealed(client, (BODY, HEAD.pack(kind, limit + 1 - HEAD.size, 0, 0))))


def test_after_the_last_frame_nothing_is_sent_or_accepted():
    client, server = connected()
    client.end()
    client.end()
    with pytest.raises(ValueError, match="was ended"):
        client.send(MessageKind.HEARTBEAT)
    data = outgoing(client)
    assert heard(server, data) == []
    assert server.ended
    client, server = connected()
    client.end()
    outgoing(client)
    with pytest.raises(ProtocolError, match="after the last frame"):
        feed(server, data + b"x")


def test_an_error_is_final():
    client, server = connected()
    client.send(MessageKind.HEARTBEAT)
    good = outgoing(client)
    with pytest.raises(ProtocolError):
        feed(server, bytes(40))
    assert server.has_input
    with pytest.raises(ProtocolError):
        feed(server, good)


def test_vectors_are_sealed_only_when_the_frame_before_was_sent():
    """So a connection that does not get on needs no memory for what waits."""
    client, _ = connected(LARGE)
    vectors = [np.zeros(40_000)] * 50
    client.send(MessageKind.REPORTS, b"", vectors)
    assert len(client.outgoing()) <= SENT_PAYLOAD + OVERHEAD
    assert connection.SENT_PAYLOAD <= MOST_PAYLOAD
