"""TCP sockets of connections: their options, when they wake a process, how they are closed, and whose turn it is."""

import contextlib
import os
import select
import socket
import struct

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from nowait.engines.network.sockets import Lost, ServerSocket
from nowait.fleet.platform import is_ready
from nowait.fleet.wire.connection import (
    CAN_WAIT_FOR_BYTES,
    KEEPALIVE,
    WAKING_BYTES,
    Connection,
    HostSocket,
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


def open_server(stack, hosts):
    """A server and hosts that have authenticated."""
    server = ServerSocket.open("127.0.0.1", None, SMALL, lambda *_: [], encrypt=True)
    stack.callback(server.close, linger_seconds=0.0)
    found = []
    for number in range(hosts):
        host = HostSocket.connect(server.address, str(number).encode(), SMALL, lambda *_: [])
        stack.callback(host.close, linger_seconds=0.0)
        while len(list(server.receive(readable(server.fds)))) == 0:
            if is_ready(host.fd, 0):
                host.receive()
        found.append(host)
    return server, found


def readable(fds):
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(30_000)]


def test_a_host_that_sends_much_lets_others_have_their_turn(stack):
    server, (busy, other) = open_server(stack, 2)
    for number in range(150):
        busy._link.connection.send(MessageKind.DETAILS, str(number).encode())
    busy._link.write()
    other.send(MessageKind.HEARTBEAT)
    first, second = (server._links[identity].fd for identity in (b"0", b"1"))
    assert {first, second} <= set(readable(server.fds))
    turn = list(server.receive([first, second]))
    assert turn[-1][0] == b"1"
    assert 1 < len(turn) <= 65
    found = [int(message.content) for identity, message in turn if identity == b"0"]
    while server.pending():
        found += [int(message.content) for _, message in server.receive([])]
    assert found == list(range(150))


def test_a_connection_that_breaks_while_something_is_sent_is_reported_without_waiting(stack):
    server, [host] = open_server(stack, 1)
    with socket.socket(fileno=socket.dup(host.fd)) as tcp:
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    host._link.close()  # it resets the connection
    assert not server.pending()
    server.send(b"0", MessageKind.ORDERS, b"orders")
    assert server.pending()
    [(identity, lost)] = server.receive([])
    assert identity == b"0"
    assert isinstance(lost, Lost)
    assert not server.pending()
