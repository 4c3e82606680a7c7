"""The door of the server: who gets in, what arrives, and what happens when not."""

import contextlib
import errno
import pickle
import random
import socket
import struct
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from doors import Door, a_host, connected, exchange, is_closed, poll, readable

from nowait.fleet.server.gateway import PASSWORD_BYTES, Strangers
from nowait.fleet.server.patience import SLOW_NETWORK
from nowait.fleet.server.remote import SECONDS_TO_EXIT
from nowait.fleet.wire.connection import ENDED, DisconnectedError, HostSocket
from nowait.fleet.wire.messages import AHEAD, MessageKind
from nowait.fleet.wire.records import REPORT, ReportKind
from nowait.fleet.wire.secure import PREFIX, VERSION, ServerKey

LARGE = 600_000
BOTH = pytest.mark.parametrize("encrypt", [True, False], ids=["encrypted", "authenticated"])
JOIN, LOST = MessageKind.JOIN, ("lost", "the connection broke")
"""JOIN stands for any message that is passed on to the owner of the hosts."""


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


def with_workers(stack, length=5, **options):
    """A server, and a host that has the workers 0 and 1."""
    door, host = connected(stack, length, **options)
    host.send(MessageKind.READY, AHEAD.pack(0.0))
    exchange(door, [host], lambda _: door.events)
    for number in range(2):
        door.host().start(number, 10 + number, 0.0)
    exchange(door, [host], lambda got: len(got) == 2)
    door.events.clear()
    return door, host


def reports(*workers):
    return b"".join(REPORT.pack(5, 0.0, 0.0, worker, ReportKind.GRADIENT) for worker in workers)


# What arrives


@BOTH
def test_messages_go_both_ways(encrypt, stack):
    door, host = with_workers(stack, encrypt=encrypt)
    host.send(MessageKind.REPORTS, reports(1), [np.arange(5.0)])
    door.host().send(MessageKind.ORDERS, b"orders", [np.ones(5)])
    orders, reply = exchange(door, [host], lambda got: len(got) == 2 and door.events)
    [(_, (records, gradients))] = door.events
    assert records == reports(1)
    assert {number: each.tolist() for number, each in gradients.items()} == {1: [0.0, 1.0, 2.0, 3.0, 4.0]}
    assert (orders.kind, orders.content, len(orders.vectors)) == (MessageKind.ORDERS, b"orders", 1)
    assert (reply.kind, reply.content) == (MessageKind.REPLY, b"")


def test_the_bytes_of_all_connections_are_counted_also_of_those_that_are_gone(stack):
    door, host = connected(stack, encrypt=False)
    before = door.gateway.traffic
    host.send(JOIN, bytes(800))
    door.host().send(MessageKind.ORDERS, bytes(1600))
    exchange(door, [host], lambda got: got and door.events)
    after = door.gateway.traffic
    assert [new - old > size for old, new, size in zip(before, after, (800, 1600), strict=True)] == [True, True]
    assert after == (host._link.bytes_sent, host._link.bytes_received)
    server_side = door.host()
    server_side.close()
    server_side.close()
    assert door.gateway.traffic == after


@BOTH
def test_more_than_the_system_takes_is_sent_in_both_directions_at_once(encrypt, stack):
    """Neither end blocks: both would wait for the other one."""
    door, host = with_workers(stack, LARGE, encrypt=encrypt)
    first, second = np.random.default_rng(0).random((2, LARGE))
    for _ in range(5):
        host.send(MessageKind.REPORTS, reports(0, 1), [first, second])
        door.host().send(MessageKind.ORDERS, b"", [second])
    at_host = exchange(door, [host], lambda got: len(got) == 10 and len(door.events) == 5)
    for _, (_, gradients) in door.events:
        assert np.array_equal([gradients[0], gradients[1]], [first, second])
    assert np.array_equal([door.gradients[0], door.gradients[1]], [first, second])
    points = [message for message in at_host if message.kind == MessageKind.ORDERS]
    assert len(points) == 5
    assert all(np.array_equal(message.vectors, [second]) for message in points)


def test_many_small_messages_arrive_in_order_from_all_hosts(stack):
    door = Door(stack)
    hosts = [a_host(stack, door.address, str(number).encode()) for number in range(3)]
    exchange(door, hosts, lambda _: len(door.events) == 3)
    for number in range(200):
        for host in hosts:
            host.send(JOIN, str(number).encode())
    exchange(door, hosts, lambda _: len(door.events) == 603)
    for host in (b"0", b"1", b"2"):
        found = [what for sender, what in door.events if sender == host and what != "connected"]
        assert [int(content) for content in found] == list(range(200))


def test_a_host_that_sends_much_lets_others_have_their_turn(stack):
    door = Door(stack)
    busy, other = hosts = [a_host(stack, door.address, identity) for identity in (b"0", b"1")]
    exchange(door, hosts, lambda _: len(door.events) == 2)
    door.events.clear()
    for number in range(150):
        busy._link.connection.send(JOIN, str(number).encode())
    busy._link.write()
    other.send(JOIN, b"other")
    fds = {door.host(identity).link.fd for identity in (b"0", b"1")}
    while not fds <= set(readable(list(fds), 30)):
        pass
    door.hub.wait(0.0)
    assert (b"1", b"other") in door.events
    assert 1 < len(door.events) <= 65
    while door.hub.unfinished:
        door.hub.wait(0.0)
    assert [int(what) for sender, what in door.events if sender == b"0"] == list(range(150))


def test_a_host_can_wait_for_the_handshake_only_if_somebody_answers(stack):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        door = Door(stack)
        address = replace(door.address, port=silent.getsockname()[1])
        host = a_host(stack, address)
        with pytest.raises(DisconnectedError, match="did not answer within"):
            host.finish_handshake(0.01)
    with pytest.raises(DisconnectedError, match="cannot be reached"):
        a_host(stack, address)


# Ends


def test_the_last_messages_of_a_host_arrive_before_its_end(stack):
    door, host = connected(stack)
    door.host().send(MessageKind.TIME)  # which the host does not read
    host.send(JOIN, b"why")
    host.close(linger_seconds=0.0)
    exchange(door, [], lambda _: len(door.events) == 2)
    assert door.events == [(b"1", b"why"), (b"1", ("lost", ENDED))]
    assert door.gateway.hosts == {}


def test_a_host_that_is_told_of_the_end_does_not_wait_for_the_server(stack):
    """The server only waits for hosts then, and reads nothing any longer."""
    door, host = with_workers(stack, LARGE)
    host.send(MessageKind.REPORTS, reports(0) * 10, [np.zeros(LARGE)] * 10)
    door.host().end()
    while (message := host.receive()) is None:
        assert readable([host.fd], 30)
    assert message.kind == MessageKind.END
    host.close(linger_seconds=1e6)


def test_an_end_that_waits_behind_data_arrives_although_the_host_goes_on_sending(stack):
    """Race 8: to close the connection at its next message would lose what was not sent."""
    door, host = with_workers(stack, LARGE)
    for _ in range(10):
        door.host().send(MessageKind.ORDERS, b"", [np.zeros(LARGE)])
    door.host().end("this host was drained")
    host.send(MessageKind.REPORTS, reports(0), [np.ones(LARGE)])
    host.send(JOIN, b"again")
    at_host = exchange(door, [host], lambda got: len(got) == 11)
    assert at_host[-1].content == b"this host was drained"
    host.close()
    exchange(door, [], lambda _: not door.gateway.hosts)
    assert door.events == [], "its owner has given it up"
    assert not door.gradients[0].any(), "nothing is written to the slots of its workers"


def test_a_host_that_was_told_to_exit_has_some_seconds(stack):
    door, _ = connected(stack)
    door.host().end()
    now = door.host().exits_by - SECONDS_TO_EXIT
    door.gateway.tick(now + SECONDS_TO_EXIT - 1.0)
    assert list(door.gateway.hosts) == [b"1"]
    door.gateway.tick(now + SECONDS_TO_EXIT + 1.0)
    assert door.gateway.hosts == {}
    assert door.events == []


@pytest.mark.parametrize(("length", "longest"), [(5, 15.0), (LARGE, 15.0 + 2 * 8 * LARGE / SLOW_NETWORK)])
def test_a_silent_host_is_disconnected_later_if_its_gradients_are_large(stack, length, longest):
    door, _ = with_workers(stack, length)
    heard = door.host().last_message
    for tick in range(int(longest) + 1):
        door.gateway.tick(heard + tick)
    assert door.events == []
    door.gateway.tick(heard + longest + 0.5)
    assert door.events == [(b"1", ("lost", f"it was silent for {longest + 0.5:.0f} s"))]


def test_a_host_that_is_expected_to_be_silent_is_not_disconnected_for_it(stack):
    door, _ = connected(stack)
    door.host().may_be_silent = True
    for tick in range(1000):
        door.gateway.tick(door.host().last_message + tick)
    assert list(door.gateway.hosts) == [b"1"]


def test_a_server_that_was_stopped_does_not_blame_its_hosts(stack):
    """Race 9: their messages may be under way."""
    door, _ = with_workers(stack)
    heard = door.host().last_message
    for now in (0.0, 100.0, 101.0):
        door.gateway.tick(heard + now)
    assert door.events == []
    for tick in range(16):
        door.gateway.tick(heard + 101.0 + tick)
    assert door.events == [(b"1", ("lost", "it was silent for 16 s"))]


def test_a_connection_that_is_cut_is_lost(stack):
    door, host = connected(stack)
    host._link.close()
    exchange(door, [], lambda _: door.events)
    assert door.events == [(b"1", LOST)]


def test_a_connection_that_waits_to_be_written_can_be_closed_and_its_descriptor_used_again(stack):
    door = Door(stack, LARGE)
    for _ in range(2):
        host = a_host(stack, door.address, length=LARGE)
        exchange(door, [host], lambda _: door.events)
        door.host().send(MessageKind.ORDERS, b"", [np.zeros(LARGE)] * 10)
        door.host().close()
        host.close(linger_seconds=0.0)
        door.events.clear()


def test_after_a_host_was_disconnected_nothing_more_comes_from_it(stack):
    """Its second message was read together with the first one."""
    door, host = connected(stack)
    for content in (b"first", b"second"):
        host._link.connection.send(JOIN, content)
    host.send(MessageKind.HEARTBEAT)
    door.during = lambda host, message: host.close()
    door.wait()
    assert door.contents() == [b"first"]


def test_a_host_notices_that_the_server_is_gone(stack):
    door, host = connected(stack)
    door.host().close()
    assert readable([host.fd], 30)
    with pytest.raises(DisconnectedError, match="the connection broke"):
        host.receive()
    assert door.events == [], "the server knows"


def test_an_altered_frame_ends_its_connection_and_no_other(stack):
    door, host = connected(stack)
    other = a_host(stack, door.address, b"2")
    exchange(door, [host, other], lambda _: door.events)
    door.events.clear()
    host._link._socket.send(bytes(64))
    other.send(JOIN, b"fine")
    exchange(door, [other], lambda _: len(door.events) == 2)
    assert sorted(door.events)[1] == (b"2", b"fine")
    assert sorted(door.events)[0][1][0] == "lost"


def test_vectors_that_nobody_asked_for_end_the_connection(stack):
    door, host = connected(stack, LARGE)
    host.send(MessageKind.REPORTS, reports(0), [np.zeros(LARGE)])
    exchange(door, [], lambda _: door.events)
    assert door.events == [(b"1", ("lost", "a host reported for worker 0, which it does not have"))]


def test_a_connection_that_breaks_while_something_is_sent_is_told_without_waiting(stack):
    door, host = connected(stack)
    with socket.socket(fileno=socket.dup(host.fd)) as tcp:
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    host._link.close()  # it resets the connection
    door.host().send(MessageKind.ORDERS, b"orders")
    assert door.events == []
    assert door.hub.unfinished
    door.hub.wait(0.0)
    [(identity, (what, _))] = door.events
    assert (identity, what) == (b"1", "lost")


# Who gets in


@BOTH
def test_nobody_without_the_key_of_the_run_can_connect(encrypt, stack):
    door, other = Door(stack, encrypt=encrypt), Door(stack, encrypt=encrypt)
    stranger = a_host(stack, replace(door.address, key=other.address.key), b"stranger")
    with socket.create_connection((door.address.host, door.address.port)) as nobody:
        nobody.send(b"let me in, I have no idea of the protocol but many bytes, more than a greeting has" * 2)
        stranger.send(JOIN, b"let me in")
        host = a_host(stack, door.address)
        host.send(JOIN, b"hello")
        exchange(door, [host], lambda _: len(door.events) == 2)
        assert door.events == [(b"1", "connected"), (b"1", b"hello")]
        assert is_closed(nobody)
    assert readable([stranger.fd], 30)
    with pytest.raises(DisconnectedError):
        stranger.receive()


def test_a_host_of_another_version_is_told_so(stack):
    door = Door(stack)
    with socket.create_connection((door.address.host, door.address.port)) as old:
        old.send(PREFIX.pack(b"nowait", 200, 1))
        while not readable([old.fileno()], 0):
            door.wait()
        assert old.recv(100)[:7] == b"nowait" + bytes([VERSION])
        assert is_closed(old)


@pytest.mark.parametrize("what", [(MessageKind.HEARTBEAT, b"2"), (MessageKind.HELLO, b"1"), (MessageKind.HELLO, b"")])
def test_the_first_message_is_an_identity_that_no_other_connection_has(what, stack, monkeypatch):
    door, _ = connected(stack)
    send = HostSocket.send
    monkeypatch.setattr(HostSocket, "send", lambda self, kind, content: send(self, *what))
    second = a_host(stack, door.address, b"2")
    with pytest.raises(DisconnectedError):
        exchange(door, [second], lambda _: False)
    assert list(door.gateway.hosts) == [b"1"]


def test_a_host_that_does_not_belong_to_the_run_is_disconnected(stack):
    door = Door(stack, knows=lambda identity: identity != b"given up")
    host = a_host(stack, door.address, b"given up")
    with pytest.raises(DisconnectedError):
        exchange(door, [host], lambda _: False)
    assert door.gateway.hosts == {}
    assert len(door.gateway.strangers) == 0


@BOTH
def test_connections_without_the_key_are_limited_and_hosts_still_get_in(encrypt, stack):
    door = Door(stack, encrypt=encrypt)
    door.gateway.spare_connections = 4
    door.gateway.expect(1)

    def strangers():
        return [stack.enter_context(socket.create_connection((address.host, address.port))) for _ in range(20)]

    address = door.address
    first = strangers()
    door.wait()
    assert all(is_closed(stranger) for stranger in first[:15]), "only the last five are left"
    host = a_host(stack, address)
    exchange(door, [host], lambda _: door.events)
    second = strangers()
    door.wait()
    assert all(is_closed(stranger) for stranger in (*first[15:], *second[:15]))
    host.send(JOIN, b"still here")
    exchange(door, [host], lambda _: door.contents())
    assert door.contents() == [b"still here"]


def test_a_connection_that_does_not_show_the_key_in_time_is_closed(stack):
    door = Door(stack)
    gateway = door.gateway
    gateway.handshake_seconds = 0.0
    stranger, sending = (
        stack.enter_context(socket.create_connection((door.address.host, door.address.port))) for _ in range(2)
    )
    while len(gateway.strangers) < 2:
        door.wait()
    sending.send(b"n")
    while not (found := [each for each in gateway.strangers if readable([each.fd], 0)]):
        pass
    gateway.tick(float("inf"))
    assert is_closed(stranger)
    assert list(gateway.strangers) == found, "what it sent was not read yet"
    door.wait()
    gateway.tick(float("inf"))
    assert is_closed(sending)
    assert len(gateway.strangers) == 0


def test_without_descriptors_for_another_connection_the_oldest_unauthenticated_one_is_closed(stack):
    class NoDescriptors:
        def accept(self):
            raise OSError(errno.EMFILE, "Too many open files")

    door, host = connected(stack)
    strangers = []
    for number in range(2):
        strangers.append(stack.enter_context(socket.create_connection((door.address.host, door.address.port))))
        while len(door.gateway.strangers) == number:
            door.wait()
    door.gateway._accept(NoDescriptors())
    assert is_closed(strangers[0])
    assert len(door.gateway.strangers) == 1
    host.send(JOIN, b"still here")
    exchange(door, [host], lambda _: door.contents())
    assert door.contents() == [b"still here"]


def test_a_client_that_is_gone_before_its_socket_has_options_does_not_end_the_run(stack, monkeypatch):
    """As on macOS."""

    def gone(tcp):
        raise OSError(errno.EINVAL, "Invalid argument")

    door = Door(stack)
    monkeypatch.setattr("nowait.fleet.wire.connection._set_options", gone)
    client = stack.enter_context(socket.create_connection((door.address.host, door.address.port)))
    door.wait()
    assert is_closed(client)
    assert len(door.gateway.strangers) == 0


def test_an_address_and_keys_do_not_show_what_is_secret(stack):
    address, key = Door(stack).address, ServerKey.new()
    assert f"{address.key.secret!r}" not in repr(address)
    assert repr(key) == "ServerKey()"
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(key)
    assert pickle.loads(pickle.dumps(address)) == address


def test_a_port_that_is_taken_is_named(stack):
    door, other = Door(stack), Door(stack)
    with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1, port {door.address.port}"):
        other.gateway.open("127.0.0.1", door.address.port, encrypt=True)


def test_a_gateway_may_be_closed_twice_and_sends_what_it_has_to_say(stack):
    door, host = connected(stack)
    door.host().end("over")
    door.gateway.close(linger_seconds=0.0)
    door.gateway.close(linger_seconds=0.0)
    assert door.hub.handlers == {}
    while (message := host.receive()) is None:
        assert readable([host.fd], 30)
    assert message.content == b"over"


def test_past_the_limit_the_oldest_connection_has_to_go():
    waiting = Strangers(most=2)
    assert waiting.accepted(5) == []
    assert waiting.accepted(6) == []
    assert waiting.accepted(7) == [5]
    waiting.remove(5)
    waiting.remove(7)
    assert waiting.accepted(8) == []
    assert waiting.accepted(9) == [6]
    waiting.remove(6)
    waiting.most = 1
    assert waiting.accepted(10) == [8, 9]
    for closed in (8, 9):
        waiting.remove(closed)
    assert len(waiting) == 1


def test_no_order_of_events_lets_more_wait_than_the_limit():
    chance, waiting = random.Random(0), Strangers(most=5)
    for connection in range(2_000):
        if chance.random() < 0.6:
            victims = waiting.accepted(connection)
            assert connection not in victims
            for victim in victims:
                waiting.remove(victim)
        else:
            waiting.remove(chance.randrange(connection + 1))
        assert len(waiting) <= 5


# Hosts on this machine


def here(door):
    """Connect to the Unix socket."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(door.gateway.local_address[0])
    return connection


@pytest.fixture
def near(stack):
    """A door that is open for hosts on this machine."""
    door = Door(stack)
    door.gateway.open_here()
    return door


def test_connections_of_both_sockets_that_send_nothing_are_limited_together_and_hosts_still_get_in(near, stack):
    near.gateway.spare_connections = 3
    near.gateway.expect(0)
    silent = []
    for number in range(10):
        address = near.address.host, near.address.port
        silent.append(stack.enter_context(here(near) if number % 2 else socket.create_connection(address)))
        while not near.gateway.strangers or is_waiting(near, number):
            near.wait()
    assert all(is_closed(stranger) for stranger in silent[:7])
    host = stack.enter_context(here(near))
    near.wait()
    assert is_closed(silent[7])
    host.send(near.gateway.local_address[1] + b"1")
    while not near.controls:
        near.wait()
    [(identity, control)] = near.controls
    assert identity == b"1"
    assert len(near.gateway.strangers) == 2, "it does not wait any longer"
    assert control.fileno() not in near.hub.handlers
    control.close()


def is_waiting(near, number):
    """Whether the connection with this number was not accepted yet."""
    return len(near.gateway.strangers) < min(number + 1, 3) or bool(
        readable([listener.fileno() for listener in near.gateway._listeners], 0)
    )


def test_a_local_connection_that_has_sent_nothing_yet_is_kept_and_one_with_a_wrong_password_closed(near, stack):
    host, stranger = (stack.enter_context(here(near)) for _ in range(2))
    while len(near.gateway.strangers) < 2:
        near.wait()
    assert near.controls == []
    stranger.send(b"x" * PASSWORD_BYTES + b"1")
    host.send(near.gateway.local_address[1] + b"1")
    assert is_open_until(near, stranger)
    while not near.controls:
        near.wait()
    [(identity, control)] = near.controls
    assert identity == b"1"
    control.close()


def is_open_until(near, stranger):
    """Let the server read; returns True when the stranger is closed."""
    while len(near.gateway.strangers) > 0:
        poll(near)
        near.hub.wait(0.0)
    return is_closed(stranger)


def test_a_local_connection_that_does_not_show_the_password_in_time_is_closed(near, stack):
    near.gateway.handshake_seconds = 0.0
    stranger = stack.enter_context(here(near))
    while not len(near.gateway.strangers):
        near.wait()
    near.gateway.tick(float("inf"))
    assert is_closed(stranger)
