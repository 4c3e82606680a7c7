"""TCP sockets of connections: their options, when they wake a process, how they are closed, and whose turn it is."""

import contextlib
import os
import socket

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from nowait.fleet.platform import is_ready
from nowait.fleet.wire.connection import (
    CAN_WAIT_FOR_BYTES,
    KEEPALIVE,
    WAKING_BYTES,
    Connection,
    Link,
)
from nowait.fleet.wire.messages import Format, MessageKind
from nowait.fleet.wire.secure import ClientHandshake, ServerHandshake, ServerKey

SMALL, LARGE = Format(5, "<f8"), Format(400_000, "<f8")
KEY = ServerKey.new()


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


def linked(stack, form=SMALL):
    """The two ends of a connection, after the handshake; the server writes vectors to the array that is returned."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    slot = np.zeros(form.length)
    handshakes = (
        ClientHandshake(KEY.for_hosts(), X25519PrivateKey.generate(), encrypt=True),
        ServerHandshake(KEY, X25519PrivateKey.generate, encrypt=True),
    )
    client, server = (
        Link(tcp, Connection(handshake, form, lambda *_: [slot]))
        for tcp, handshake in zip((ours, theirs), handshakes, strict=True)
    )
    stack.callback(client.close)
    stack.callback(server.close)
    client.connection.send(MessageKind.HELLO, b"me")
    for sender, receiver in ((client, server), (server, client), (client, server)):
        assert sender.write()
        assert is_ready(receiver.fd, 30)
        hello = receiver.receive()
    assert hello.content == b"me"
    return client, server, slot


def test_sockets_send_at_once_and_notice_machines_that_are_gone(stack):
    for link in linked(stack)[:2]:
        with socket.socket(fileno=socket.dup(link.fd)) as tcp:
            assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            found = {name: tcp.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in KEEPALIVE}
            assert found == KEEPALIVE
        assert not os.get_blocking(link.fd)


def waking_bytes(link):
    """How many bytes have to arrive before a socket is readable."""
    with socket.socket(fileno=socket.dup(link.fd)) as tcp:
        return tcp.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


@pytest.mark.skipif(not CAN_WAIT_FOR_BYTES, reason="poll does not respect SO_RCVLOWAT")
def test_a_socket_waits_for_more_bytes_while_a_large_message_arrives(stack):
    client, server, slot = linked(stack, LARGE)
    sent = np.random.default_rng(0).random(LARGE.length)
    client.connection.send(MessageKind.REPORTS, b"", [sent])
    assert waking_bytes(server) == 1
    found, message = set(), None
    while message is None:
        client.write()
        assert is_ready(server.fd, 30), "it waits for more bytes than there are"
        message = server.receive()
        found.add(waking_bytes(server))
    assert np.array_equal(slot, sent)
    assert max(found) <= WAKING_BYTES
    assert max(found) > WAKING_BYTES / 2
    assert server.receive() is None
    assert waking_bytes(server) == 1


def test_what_was_sent_last_arrives_although_the_sender_has_not_read_everything(stack):
    """The system would discard what is on its way if the socket were closed with unread bytes."""
    client, server, _ = linked(stack)
    with socket.socket(fileno=socket.dup(server.fd)) as tcp:
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
    with socket.socket(fileno=socket.dup(client.fd)) as tcp:
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_000_000)
    for _ in range(4_000):
        server.connection.send(MessageKind.HEARTBEAT)
    assert server.write()
    last = bytes(1_000_000)
    client.connection.send(MessageKind.DETAILS, last)
    client.finish(0.0)
    while (message := server.receive()) is None:
        assert is_ready(server.fd, 30)
    assert message.content == last
