"""Connections and hosts that fail: how many may wait, and for how long. Nothing here needs a Ray cluster."""

import math
import random
import select
import socket

import numpy as np
import pytest

pytest.importorskip("ray")
pytest.importorskip("zmq")

from nowait.engines.cluster import door as doors
from nowait.engines.cluster import guard, network
from nowait.engines.cluster.back_off import LONGEST_PAUSE, STEADY_SECONDS, BackOff
from nowait.engines.cluster.guard import Unproven
from nowait.engines.cluster.network import Dial, Exchange
from nowait.engines.cluster.options import RayCluster
from nowait.engines.cluster.recruiter import Recruiter
from nowait.engines.cluster.wire import Format, Say


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


# Pauses after hosts are lost


def pauses(back_off, clock, node, lose, times):
    """How long a node is paused after each of so many losses in a row."""
    found = []
    for _ in range(times):
        clock.now = 0.0
        lose()
        while node in back_off.paused():
            clock.now = round(clock.now + 0.05, 2)
        found.append(clock.now)
    return found


def test_hosts_that_are_of_no_use_make_the_pause_of_their_node_double():
    clock = Clock()
    back_off = BackOff(clock)
    found = pauses(back_off, clock, "bad", lambda: back_off.lost("bad"), times=9)
    assert found == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, LONGEST_PAUSE, LONGEST_PAUSE]


def test_a_pause_is_that_of_one_node():
    clock = Clock()
    back_off = BackOff(clock)
    for _ in range(20):
        back_off.lost("bad")
    assert back_off.paused() == {"bad"}
    back_off.lost("good", delivered=True)
    assert back_off.paused() == {"bad", "good"}
    assert back_off.next_end() == 0.1
    clock.now = 0.15
    assert back_off.paused() == {"bad"}
    assert back_off.next_end() == LONGEST_PAUSE
    clock.now = LONGEST_PAUSE + 0.1
    assert back_off.paused() == frozenset()
    assert back_off.next_end() == math.inf


@pytest.mark.parametrize("use", [{"delivered": True}, {"ready_seconds": STEADY_SECONDS}], ids=str)
def test_a_host_that_was_of_use_ends_the_doubling(use):
    clock = Clock()
    back_off = BackOff(clock)
    for _ in range(20):
        assert not back_off.lost("node", ready_seconds=STEADY_SECONDS - 1)
    assert back_off.lost("node", **use)
    assert pauses(back_off, clock, "node", lambda: back_off.lost("node", **use), times=3) == [0.1, 0.1, 0.1]


def test_an_overflow_of_failures_is_still_the_longest_pause():
    clock = Clock()
    back_off = BackOff(clock)
    for _ in range(5_000):
        back_off.lost("node")
    clock.now = LONGEST_PAUSE
    assert back_off.paused() == frozenset()


def test_with_a_host_killed_every_five_seconds_the_others_work_on():
    """The hosts of one node never come up; those of the other are killed every 5 s, after having delivered."""
    clock, tick = Clock(), 0.05
    back_off = BackOff(clock)
    starting, working = 2.0, 0.0
    began = None
    for number in range(round(100 / tick)):
        clock.now = number * tick
        if "bad" not in back_off.paused():
            back_off.lost("bad")
        if began is None and "good" not in back_off.paused():
            began = clock.now
        if began is not None and clock.now - began >= starting:
            working += tick
            if number % round(5 / tick) == 0:
                back_off.lost("good", ready_seconds=clock.now - began - starting, delivered=True)
                began = None
    assert working > 50.0, "3 of 5 seconds are left of a host that takes 2 to start"


def test_no_host_is_started_on_a_node_that_is_paused(monkeypatch):
    recruiter, started = Recruiter.__new__(Recruiter), []
    recruiter._closing, recruiter._pending, recruiter._demand, recruiter.asking = False, [], 0, True
    recruiter._cluster = RayCluster()
    nodes = [("a", "node a", 2), ("b", "node b", 2), ("c", "node c", 2)]
    monkeypatch.setattr(Recruiter, "_nodes_with_room", lambda self: nodes)
    monkeypatch.setattr(Recruiter, "_start", lambda self, node_id, node, size: started.append((node_id, size)))
    recruiter._recruit(3, 3, frozenset({"a"}))
    assert started == [("b", 2), ("c", 1)]
    assert not recruiter.asking


# Connections without the keys


def test_past_the_limit_the_oldest_connection_has_to_go():
    waiting = Unproven(most=2)
    assert waiting.accepted(5) == []
    assert waiting.accepted(6) == []
    assert waiting.accepted(7) == [5]
    waiting.closed(7)
    assert waiting.accepted(8) == []
    assert waiting.accepted(6) == [], "its number was given to a new connection"
    assert waiting.accepted(9) == [8]
    waiting.most = 1
    assert waiting.accepted(10) == [6, 9]
    assert len(waiting) == 1


def test_no_order_of_events_lets_more_wait_than_the_limit():
    chance, waiting = random.Random(0), Unproven(most=5)
    for _ in range(2_000):
        connection = chance.randrange(20)
        what = chance.random()
        if what < 0.6:
            assert connection not in waiting.accepted(connection)
        elif what < 0.7:
            waiting.proved(connection)
        else:
            waiting.closed(connection)
        assert len(waiting) <= 5


def test_a_connection_that_proved_itself_does_not_have_to_go():
    waiting = Unproven(most=1)
    waiting.accepted(5)
    waiting.proved(5)
    waiting.proved(6)
    assert waiting.accepted(6) == [], "its message was read before it was heard of"
    assert waiting.accepted(7) == []
    assert waiting.accepted(8) == [7]
    waiting.closed(6)
    assert waiting.accepted(6) == [8], "another one with its number"


def is_closed(stranger):
    """Whether the other end hung up; waits for that, but reads over ZeroMQ's greeting."""
    while select.select([stranger], [], [], 30)[0]:
        try:
            if not stranger.recv(1024):
                return True
        except ConnectionResetError:
            return True
    return False


@pytest.mark.parametrize("encrypt", [True, False])
def test_connections_without_the_keys_are_limited_and_hosts_still_get_in(encrypt, monkeypatch):
    monkeypatch.setattr(guard, "SPARE_CONNECTIONS", 4)
    monkeypatch.setattr(network, "HANDSHAKE", 0)  # no limit of time
    form = Format(5, "<f8")
    exchange = Exchange("127.0.0.1", None, form, encrypt=encrypt)
    exchange.expect(1)
    port = int(exchange.address.url.rpartition(":")[2])
    first = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    assert all(is_closed(stranger) for stranger in first[:15]), "only the last five are left"
    host = Dial(exchange.address, b"host 1", form)
    host.send(Say.BEAT)
    assert received(exchange)[0] == b"host 1"
    second = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    assert all(is_closed(stranger) for stranger in (*first[15:], *second[:15]))
    host.send(Say.REPORTS, b"records ", [np.arange(5.0)])
    sender, message = received(exchange)
    assert (sender, message.kind, message.content) == (b"host 1", Say.REPORTS, b"records ")
    assert not host.broken()
    for end in (*first, *second, host, exchange):
        end.close()


def test_a_connection_that_does_not_show_the_keys_in_time_is_closed(monkeypatch):
    monkeypatch.setattr(network, "HANDSHAKE", 50)
    exchange = Exchange("127.0.0.1", None, Format(5, "<f8"), encrypt=True)
    with socket.create_connection(("127.0.0.1", int(exchange.address.url.rpartition(":")[2]))) as stranger:
        assert is_closed(stranger)
    exchange.close()


def received(exchange):
    """The next message; the test waits for it."""
    while not exchange.pending():
        select.select([exchange.fd], [], [], 1.0)
    return exchange.receive()


def test_guests_that_say_nothing_are_limited_and_hosts_still_get_in(monkeypatch):
    monkeypatch.setattr(doors, "MOST_GUESTS", 3)
    door, poller = doors.Door(), select.poll()
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(10)]
    for stranger in silent:
        stranger.connect(door.key[0])
        assert door.answer(door.fd, poller) is None
    assert all(is_closed(stranger) for stranger in silent[:7])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as host:
        host.connect(door.key[0])
        host.send(door.key[1] + b"host 1")
        assert door.answer(door.fd, poller) is None
        assert is_closed(silent[7])
        [(fd, _)] = poller.poll()
        identity, control = door.answer(fd, poller)
        assert identity == b"host 1"
        assert door.answer(fd, poller) is None, "it is no guest any longer"
        control.close()
    door.close()
    for stranger in silent:
        stranger.close()


def test_a_guest_that_has_said_nothing_yet_is_not_sent_away():
    door, poller = doors.Door(), select.poll()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as host:
        host.connect(door.key[0])
        door.answer(door.fd, poller)
        [fd] = door._guests
        assert door.answer(fd, poller) is None
        host.send(door.key[1] + b"host 1")
        identity, control = door.answer(fd, poller)
        assert identity == b"host 1"
        control.close()
    door.close()
