"""The sockets between the server and hosts on other machines: who gets in, what arrives, and what happens when not."""

import contextlib
import errno
import pickle
import random
import select
import socket
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from nowait.engines.network.sockets import Lost, ServerSocket
from nowait.engines.network.unauthenticated import Unauthenticated
from nowait.fleet.wire.connection import DisconnectedError, HostSocket
from nowait.fleet.wire.messages import Format, MessageKind
from nowait.fleet.wire.secure import (
    PREFIX,
    VERSION,
    ProtocolError,
    ServerKey,
)

SMALL, LARGE = Format(5, "<f8"), Format(600_000, "<f8")
BOTH = pytest.mark.parametrize("encrypt", [True, False], ids=["encrypted", "authenticated"])


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


def a_server(stack, form=SMALL, *, encrypt=True, slots=None):
    make = slots or (lambda identity, kind, content, count: [np.zeros(form.length) for _ in range(count)])
    server = ServerSocket.open("127.0.0.1", None, form, make, encrypt=encrypt)
    stack.callback(server.close, linger_seconds=0.0)
    return server


def a_host(stack, address, identity=b"1", form=SMALL):
    make = lambda kind, content, count: [np.zeros(form.length) for _ in range(count)]  # noqa: E731
    host = HostSocket.connect(address, identity, form, make)
    stack.callback(host.close, linger_seconds=0.0)
    return host


def readable(fds, seconds, hosts=()):
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    for host in hosts:
        poller.register(host.fd, host.events)
    return [fd for fd, _ in poller.poll(1000 * seconds)]


def exchange(server, hosts, done):
    """Let all ends read and write until ``done(what the server got, what the hosts got)``. The test waits for that."""
    at_server, at_hosts = [], []
    while not done(at_server, at_hosts):
        ready = readable(server.fds, 0 if server.pending() else 30, hosts)
        assert ready or server.pending(), "nothing moves"
        at_server += server.receive([fd for fd in ready if fd in server.fds])
        for host in hosts:
            while (message := host.receive()) is not None:
                at_hosts.append(message)
    return at_server, at_hosts


def connected(stack, **options):
    """A server and a host that has authenticated."""
    server = a_server(stack, **options)
    host = a_host(stack, server.address, form=options.get("form", SMALL))
    [(identity, hello)], _ = exchange(server, [host], lambda at_server, _: at_server)
    assert (identity, hello.kind, hello.content) == (b"1", MessageKind.HELLO, b"1")
    return server, host


def is_closed(stranger):
    """Whether the other end hung up; waits for that, and skips what it sent before."""
    while readable([stranger.fileno()], 30):
        try:
            if not stranger.recv(1024):
                return True
        except ConnectionResetError:
            return True
    return False


# What arrives


@BOTH
def test_messages_go_both_ways(encrypt, stack):
    server, host = connected(stack, encrypt=encrypt)
    host.send(MessageKind.REPORTS, b"records ", [np.arange(5.0)])
    server.send(b"1", MessageKind.ORDERS, b"orders", [np.ones(5)])
    server.send(b"nobody", MessageKind.ORDERS)
    [(sender, reports)], [orders] = exchange(server, [host], lambda *got: all(got))
    assert (sender, reports.kind, reports.content) == (b"1", MessageKind.REPORTS, b"records ")
    assert np.array_equal(reports.vectors, [np.arange(5.0)])
    assert (orders.kind, orders.content, len(orders.vectors)) == (MessageKind.ORDERS, b"orders", 1)


def test_the_bytes_of_all_connections_are_counted_also_of_those_that_are_gone(stack):
    server, host = connected(stack, encrypt=False)
    before = server.traffic
    host.send(MessageKind.REPORTS, bytes(800))
    server.send(b"1", MessageKind.ORDERS, bytes(1600))
    exchange(server, [host], lambda *got: all(got))
    after = server.traffic
    assert [new - old > size for old, new, size in zip(before, after, (800, 1600), strict=True)] == [True, True]
    assert after == (host._link.bytes_sent, host._link.bytes_received)
    server.disconnect(b"1")
    server.disconnect(b"1")
    assert server.traffic == after


@BOTH
def test_more_than_the_system_takes_is_sent_in_both_directions_at_once(encrypt, stack):
    """Neither end blocks: both would wait for the other one."""
    slots = np.zeros((10, LARGE.length))
    server, host = connected(stack, form=LARGE, encrypt=encrypt, slots=lambda *_: [slots[0], slots[1]])
    first, second = np.random.default_rng(0).random((2, LARGE.length))
    for _ in range(5):
        host.send(MessageKind.REPORTS, b"", [first, second])
        server.send(b"1", MessageKind.ORDERS, b"", [second])
    at_server, at_host = exchange(server, [host], lambda *got: [len(one) for one in got] == [5, 5])
    assert np.array_equal(slots[:2], [first, second])
    assert all(np.array_equal(message.vectors, [second]) for message in at_host)
    assert all(len(message.vectors) == 2 for _, message in at_server)


def test_many_small_messages_arrive_in_order_from_all_hosts(stack):
    server = a_server(stack)
    hosts = [a_host(stack, server.address, str(number).encode()) for number in range(3)]
    exchange(server, hosts, lambda at_server, _: len(at_server) == 3)
    for number in range(200):
        for host in hosts:
            host.send(MessageKind.DETAILS, str(number).encode())
    at_server, _ = exchange(server, hosts, lambda at_server, _: len(at_server) == 600)
    for host in (b"0", b"1", b"2"):
        assert [int(message.content) for sender, message in at_server if sender == host] == list(range(200))


def test_a_host_can_wait_for_the_handshake_only_if_somebody_answers(stack):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = a_server(stack)
        address = replace(server.address, port=silent.getsockname()[1])
        host = a_host(stack, address)
        with pytest.raises(DisconnectedError, match="did not answer within"):
            host.finish_handshake(0.01)
    with pytest.raises(DisconnectedError, match="cannot be reached"):
        a_host(stack, address)


# Ends


def test_the_last_messages_of_a_host_arrive_before_its_end(stack):
    server, host = connected(stack)
    server.send(b"1", MessageKind.HEARTBEAT)  # which the host does not read
    host.send(MessageKind.FAILED, b"why")
    host.close(linger_seconds=0.0)
    at_server, _ = exchange(server, [], lambda at_server, _: len(at_server) == 2)
    assert at_server[0][1].content == b"why"
    assert at_server[1] == (b"1", Lost("the other end closed the connection"))
    server.send(b"1", MessageKind.ORDERS)


def test_a_host_that_is_told_of_the_end_does_not_wait_for_the_server(stack):
    """The server only waits for hosts then, and reads nothing any longer."""
    server, host = connected(stack, form=LARGE)
    host.send(MessageKind.REPORTS, b"", [np.zeros(LARGE.length)] * 10)
    server.send(b"1", MessageKind.END)
    server.end(b"1")
    while (message := host.receive()) is None:
        assert readable([host.fd], 30)
    assert message.kind == MessageKind.END
    host.close(linger_seconds=1e6)


def test_a_connection_that_is_cut_is_lost(stack):
    server, host = connected(stack)
    host._link.close()
    at_server, _ = exchange(server, [], lambda at_server, _: at_server)
    assert at_server == [(b"1", Lost("the connection broke"))]


def test_a_connection_that_waits_to_be_written_can_be_closed_and_its_descriptor_used_again(stack):
    server = a_server(stack, LARGE)
    for _ in range(2):
        host = a_host(stack, server.address, form=LARGE)
        exchange(server, [host], lambda at_server, _: at_server)
        server.send(b"1", MessageKind.ORDERS, b"", [np.zeros(LARGE.length)] * 10)
        server.disconnect(b"1")
        host.close(linger_seconds=0.0)


def test_after_a_host_was_disconnected_nothing_more_comes_from_it(stack):
    """Its second message was read together with the first one."""
    server, host = connected(stack)
    for content in (b"first", b"second"):
        host._link.connection.send(MessageKind.DETAILS, content)
    host.send(MessageKind.HEARTBEAT)
    contents = []
    for identity, message in server.receive(readable(server.fds, 30)):
        contents.append(message.content)
        server.disconnect(identity)
    assert contents == [b"first"]


def test_a_host_notices_that_the_server_is_gone(stack):
    server, host = connected(stack)
    server.disconnect(b"1")
    assert readable([host.fd], 30)
    with pytest.raises(DisconnectedError, match="the connection broke"):
        host.receive()
    assert not server.pending(), "the server knows"


def test_an_altered_frame_ends_its_connection_and_no_other(stack):
    server, host = connected(stack)
    other = a_host(stack, server.address, b"2")
    exchange(server, [host, other], lambda at_server, _: at_server)
    host._link._socket.send(bytes(64))
    other.send(MessageKind.HEARTBEAT)
    at_server, _ = exchange(server, [other], lambda at_server, _: len(at_server) == 2)
    assert {sender: type(got) is Lost for sender, got in at_server} == {b"1": True, b"2": False}


def test_vectors_that_nobody_asked_for_end_the_connection(stack):
    def refuse(identity, kind, content, count):
        raise ProtocolError(f"{count} vectors from {identity.decode()}")

    server, host = connected(stack, form=LARGE, slots=refuse)
    host.send(MessageKind.REPORTS, b"", [np.zeros(LARGE.length)])
    at_server, _ = exchange(server, [], lambda at_server, _: at_server)
    assert at_server == [(b"1", Lost("1 vectors from 1"))]


# Who gets in


@BOTH
def test_nobody_without_the_key_of_the_run_can_connect(encrypt, stack):
    server, other = a_server(stack, encrypt=encrypt), a_server(stack, encrypt=encrypt)
    stranger = a_host(stack, replace(server.address, key=other.address.key), b"stranger")
    with socket.create_connection((server.address.host, server.address.port)) as nobody:
        nobody.send(b"let me in, I have no idea of the protocol but many bytes, more than a greeting has" * 2)
        stranger.send(MessageKind.HEARTBEAT, b"let me in")
        host = a_host(stack, server.address)
        host.send(MessageKind.DETAILS, b"hello")
        at_server, _ = exchange(server, [host], lambda at_server, _: len(at_server) == 2)
        assert [message.content for _, message in at_server] == [b"1", b"hello"]
        assert is_closed(nobody)
    assert readable([stranger.fd], 30)
    with pytest.raises(DisconnectedError):
        stranger.receive()


def test_a_host_of_another_version_is_told_so(stack):
    server = a_server(stack)
    with socket.create_connection((server.address.host, server.address.port)) as old:
        old.send(PREFIX.pack(b"nowait", 200, 1))
        while not readable([old.fileno()], 0):
            list(server.receive(readable(server.fds, 30)))
        assert old.recv(100)[:7] == b"nowait" + bytes([VERSION])
        assert is_closed(old)


@pytest.mark.parametrize("what", [(MessageKind.HEARTBEAT, b"2"), (MessageKind.HELLO, b"1"), (MessageKind.HELLO, b"")])
def test_the_first_message_is_an_identity_that_no_other_connection_has(what, stack, monkeypatch):
    server, _ = connected(stack)
    send = HostSocket.send
    monkeypatch.setattr(HostSocket, "send", lambda self, kind, content: send(self, *what))
    second = a_host(stack, server.address, b"2")
    with pytest.raises(DisconnectedError):
        exchange(server, [second], lambda at_server, _: False)


@BOTH
def test_connections_without_the_key_are_limited_and_hosts_still_get_in(encrypt, stack):
    server = a_server(stack, encrypt=encrypt)
    server.spare_connections = 4
    server.expect(1)

    def strangers():
        return [stack.enter_context(socket.create_connection((address.host, address.port))) for _ in range(20)]

    address = server.address
    first = strangers()
    list(server.receive(readable(server.fds, 30)))
    assert all(is_closed(stranger) for stranger in first[:15]), "only the last five are left"
    host = a_host(stack, address)
    exchange(server, [host], lambda at_server, _: at_server)
    second = strangers()
    list(server.receive(readable(server.fds, 30)))
    assert all(is_closed(stranger) for stranger in (*first[15:], *second[:15]))
    host.send(MessageKind.DETAILS, b"still here")
    [(sender, message)], _ = exchange(server, [host], lambda at_server, _: at_server)
    assert (sender, message.content) == (b"1", b"still here")


def test_a_connection_that_does_not_show_the_key_in_time_is_closed(stack):
    server = a_server(stack)
    server.handshake_seconds = 0.0
    stranger = stack.enter_context(socket.create_connection((server.address.host, server.address.port)))
    sending = stack.enter_context(socket.create_connection((server.address.host, server.address.port)))
    list(server.receive(readable(server.fds, 30)))
    sending.send(b"n")
    [connection] = [link for link in server._unauthenticated if readable([link.fd], 0)] or [None]
    while connection is None:
        [connection] = [link for link in server._unauthenticated if readable([link.fd], 0)] or [None]
    server.close_overdue(float("inf"))
    assert is_closed(stranger)
    assert list(server._unauthenticated) == [connection], "what it sent was not read yet"
    list(server.receive([connection.fd]))
    server.close_overdue(float("inf"))
    assert is_closed(sending)
    assert len(server._unauthenticated) == 0


def test_without_descriptors_for_another_connection_the_oldest_unauthenticated_one_is_closed(stack):
    class NoDescriptors:
        def __init__(self, listener):
            self.fileno, self.close = listener.fileno, listener.close

        def accept(self):
            raise OSError(errno.EMFILE, "Too many open files")

    server, host = connected(stack)
    strangers = []
    for _ in range(2):
        strangers.append(stack.enter_context(socket.create_connection((server.address.host, server.address.port))))
        list(server.receive([server._listener.fileno()]))
    server._listener = NoDescriptors(server._listener)
    list(server.receive([server._listener.fileno()]))
    assert is_closed(strangers[0])
    assert len(server._unauthenticated) == 1
    host.send(MessageKind.DETAILS, b"still here")
    [(sender, message)], _ = exchange(server, [host], lambda at_server, _: at_server)
    assert (sender, message.content) == (b"1", b"still here")


def test_an_address_and_keys_do_not_show_what_is_secret(stack):
    address, key = a_server(stack).address, ServerKey.new()
    assert f"{address.key.secret!r}" not in repr(address)
    assert repr(key) == "ServerKey()"
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(key)
    assert pickle.loads(pickle.dumps(address)) == address


def test_a_port_that_is_taken_is_named(stack):
    server = a_server(stack)
    with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1, port {server.address.port}"):
        ServerSocket.open("127.0.0.1", server.address.port, SMALL, lambda *_: [], encrypt=True)


def test_past_the_limit_the_oldest_connection_has_to_go():
    waiting = Unauthenticated(most=2)
    assert waiting.accepted(5) == []
    assert waiting.accepted(6) == []
    assert waiting.accepted(7) == [5]
    waiting.remove(7)
    assert waiting.accepted(8) == []
    assert waiting.accepted(6) == [], "its number was given to a new connection"
    assert waiting.accepted(9) == [8]
    waiting.most = 1
    assert waiting.accepted(10) == [6, 9]
    assert len(waiting) == 1


def test_no_order_of_events_lets_more_wait_than_the_limit():
    chance, waiting = random.Random(0), Unauthenticated(most=5)
    for _ in range(2_000):
        connection = chance.randrange(20)
        what = chance.random()
        if what < 0.6:
            assert connection not in waiting.accepted(connection)
        else:
            waiting.remove(connection)
        assert len(waiting) <= 5
