"""Connections and hosts that fail: how many may wait, and for how long. Nothing here needs a Ray cluster."""

import contextlib
import math
import select
import socket
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("ray")

from nowait.engines.cluster.back_off import LONGEST_PAUSE, STEADY_SECONDS, BackOff
from nowait.engines.cluster.host_table import HostRecord, HostTable, choose_nodes
from nowait.engines.cluster.listener import LocalListener
from nowait.engines.cluster.options import RayCluster
from nowait.engines.network.handshake import ProtocolError
from nowait.engines.network.messages import POINT_ORDER, Message, MessageKind
from nowait.engines.network.remote import RemotePool
from nowait.engines.processes.mailbox import Mailbox
from nowait.engines.processes.resources import SharedResources
from nowait.engines.processes.shared import SharedSlots
from nowait.engines.workers.records import REPORT, Instruction, ReportKind
from nowait.engines.workers.transport import Gone


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


NODES = [("a", "node a", 2), ("b", "node b", 2), ("c", "node c", 2)]


def test_no_host_is_started_on_a_node_that_is_paused():
    assert choose_nodes(3, NODES, {"a"}, math.inf) == ([("b", "node b", 2), ("c", "node c", 1)], 0)


def test_hosts_have_at_most_the_largest_size_and_what_does_not_fit_is_left():
    chosen = [("a", "node a", 1), ("a", "node a", 1), ("c", "node c", 1), ("c", "node c", 1)]
    assert choose_nodes(7, [*NODES[:1], ("b", "node b", -1), *NODES[2:]], (), 1) == (chosen, 3)


# The table of hosts


def host(place, **state):
    record = HostRecord(place, f"node {place}", f"node {place}", size=2, since=0.0)
    for name, value in state.items():
        setattr(record, name, value)
    return record


def table(*hosts):
    made = HostTable(start_seconds=60.0, heartbeat_seconds=10.0, bytes_per_gradient=8)
    made.add(hosts)
    return made


class Pool:
    def __init__(self, last_message):
        self.last_message = last_message


def test_hosts_that_do_not_start_or_are_silent_are_overdue():
    silent, heard = Pool(0.0), Pool(55.0)
    hosts = table(host(1), host(2, ready=True, remote=silent), host(3, ready=True, remote=heard), host(4, ready=True))
    assert [(found.place, cause) for found, cause in hosts.overdue(9.0)] == []
    assert [found.place for found, _ in hosts.overdue(10.5)] == [2]
    silent.last_message = 59.0
    assert hosts.overdue(59.5) == [], "the server did not check for long, so it cannot say who was silent"
    assert [(found.place, cause) for found, cause in hosts.overdue(60.5)] == [(1, "it did not start within 60 s")]


def test_a_request_counts_what_is_promised_and_is_not_repeated_at_once():
    hosts = table(host(1), host(2, ready=True))
    assert hosts.request(2, now=1.0) is None, "host 1 will have room for two"
    assert hosts.request(3, now=1.0) == (1, 5, frozenset())
    assert hosts.request(3, now=1.2) is None, "too soon"
    assert hosts.request(3, now=1.6) == (1, 5, frozenset())
    hosts.do_not_ask_before(9.0)
    assert hosts.request(3, now=8.0) is None


def test_losing_a_host_pauses_its_node_and_counts_those_that_were_of_no_use():
    hosts = table(host(1), host(2), host(3, ready=True, delivered=True))
    for place, failures in ((1, 1), (2, 2), (3, 1)):
        hosts.lose(hosts.by_place[place], now=5.0)
        assert hosts.failures_in_a_row == failures
    assert hosts.request(1, now=5.01) == (1, 1, frozenset({"node 1", "node 2", "node 3"}))
    assert hosts.of(b"1") is None


# Connections on the driver's own node


def is_closed(stranger):
    """Whether the other end hung up; waits for that."""
    while select.select([stranger], [], [], 30)[0]:
        try:
            if not stranger.recv(1024):
                return True
        except ConnectionResetError:
            return True
    return False


def accept(listener):
    """Accept one connection."""
    [accepting] = listener.fds - listener.waiting.keys()
    return listener.receive(accepting)


def connect(listener):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(listener.address[0])
    assert accept(listener) is None
    return connection


def authenticated(listener):
    """What the listener returns for the connections that wait."""
    return [found for fd in listener.fds if (found := listener.receive(fd)) is not None]


def test_local_connections_that_send_nothing_are_limited_and_hosts_still_get_in():
    listener = LocalListener.open(most_waiting=3)
    silent = [connect(listener) for _ in range(10)]
    assert all(is_closed(stranger) for stranger in silent[:7])
    with connect(listener) as host:
        assert is_closed(silent[7])
        host.send(listener.address[1] + b"1")
        [(identity, control)] = authenticated(listener)
        assert identity == b"1"
        assert authenticated(listener) == [], "it does not wait any longer"
        control.close()
    listener.close()
    for stranger in silent:
        stranger.close()


def test_a_local_connection_that_has_sent_nothing_yet_is_kept_and_one_with_a_wrong_password_closed():
    listener = LocalListener.open()
    with connect(listener) as host, connect(listener) as stranger:
        assert authenticated(listener) == []
        stranger.send(b"x" * 32 + b"1")
        host.send(listener.address[1] + b"1")
        [(identity, control)] = authenticated(listener)
        assert identity == b"1"
        assert is_closed(stranger)
        control.close()
    listener.close()


# Replies to reports


class RecordingSocket:
    """In the place of the server's socket: keeps what is sent."""

    def __init__(self):
        self.sent, self.disconnected = [], []

    def disconnect(self, identity):
        self.disconnected.append(identity)

    def send(self, receiver, kind, content=b"", vectors=()):
        self.sent.append((kind, len(content) // POINT_ORDER.size, len(vectors)))


@pytest.fixture
def remote():
    """A transport with one host on another node that has two workers, and the points that tickets have."""
    from nowait.engines.cluster.transport import RayTransport

    points, gradients, versions = SharedSlots(5, "<f8"), SharedSlots(5, "<f8"), {}
    with contextlib.closing(points), contextlib.closing(gradients), contextlib.closing(Mailbox.open()) as mailbox:
        for _ in range(2):
            points.allocate()
        resources = SharedResources(points, gradients, mailbox, payload=None)
        of = versions.__getitem__
        transport = RayTransport(RayCluster(), resources, of, minimum=1, max_failures=5, log=None)
        transport._socket = RecordingSocket()
        pool = RemotePool(b"1", transport._socket, points, of)
        transport._hosts.add([host(1, ready=True, remote=pool)])
        channels = [pool.start(worker, 10 + worker, 0.0) for worker in range(2)]
        transport._socket.sent.clear()
        yield transport, channels, versions


def report(ticket, worker):
    record = REPORT.pack(ticket, 0.0, 0.0, worker, ReportKind.GRADIENT)
    return Message(MessageKind.REPORTS, record, [np.ones(5)])


def test_every_message_of_reports_gets_its_own_reply(remote):
    """A relay that misses replies stops reading its workers' reports."""
    transport, channels, versions = remote
    for ticket in range(4):
        worker = ticket % 2
        for event in transport._on_message(b"1", report(ticket, worker)):
            assert list(event.gradients) == [worker]
            if ticket < 3:
                versions[ticket + 9] = ticket
                channels[worker].send(ticket + 9, 0, worker, Instruction.KEEP)
    assert transport._socket.sent == [(MessageKind.ORDERS, 1, 1)] * 3 + [(MessageKind.ORDERS, 0, 0)]


def test_a_point_that_the_host_has_is_not_sent_again(remote):
    """Both workers get version 7, then worker 0 gets it again, then version 8, then both do."""
    transport, channels, versions = remote
    orders = [(0, 7), (1, 7), (0, 7), (0, 8), (0, 8), (1, 8)]
    for ticket, (worker, version) in enumerate(orders):
        for _ in transport._on_message(b"1", report(ticket, worker)):
            versions[ticket] = version
            channels[worker].send(ticket, 0, 0, Instruction.KEEP)
    assert [points for _, _, points in transport._socket.sent] == [1, 0, 0, 1, 0, 0]


def test_gradients_go_to_the_slots_of_the_workers_that_the_host_has(remote):
    transport, _, _ = remote
    [slot] = transport._gradient_slots(b"1", MessageKind.REPORTS, report(0, 1).content, 1)
    assert slot is transport._resources.gradients[1]
    for identity, kind, content, count in [
        (b"1", MessageKind.REPORTS, report(0, 5).content, 1),
        (b"1", MessageKind.REPORTS, report(0, 1).content, 2),
        (b"1", MessageKind.REPORTS, b"odd", 1),
        (b"1", MessageKind.DETAILS, report(0, 1).content, 1),
        (b"2", MessageKind.REPORTS, report(0, 1).content, 1),
    ]:
        with pytest.raises(ProtocolError):
            transport._gradient_slots(identity, kind, content, count)


@pytest.mark.parametrize(
    "message", [report(0, 5), report(0, 1)._replace(vectors=[]), report(0, 1)._replace(content=b"x")]
)
def test_a_host_that_reports_for_others_or_nonsense_is_given_up(message, remote, caplog):
    transport, _, _ = remote
    transport._provisioner = SimpleNamespace(dismiss=lambda host: None)
    [gone] = transport._on_message(b"1", message)
    assert isinstance(gone, Gone)
    assert transport._socket.disconnected == [b"1"]
    assert transport._hosts.of(b"1") is None


def test_a_host_whose_connection_broke_is_given_up_if_ray_does_not_say_why():
    hosts = table(host(1, ready=True, remote=Pool(0.0)))
    hosts.disconnected(b"1", "it was cut", now=1.0)
    hosts.disconnected(b"2", "unknown hosts do not matter", now=1.0)
    assert hosts.overdue(2.0) == []
    assert [(found.place, cause) for found, cause in hosts.overdue(4.5)] == [(1, "its connection is gone: it was cut")]
