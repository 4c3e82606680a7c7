"""Connections and hosts that fail: how many may wait, and for how long. Nothing here needs a Ray cluster."""

import contextlib
import math
import select
import socket
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from nowait.engines.cluster.back_off import LONGEST_PAUSE, STEADY_SECONDS, BackOff
from nowait.engines.cluster.host_table import FULL_SECONDS, STUCK_SECONDS, HostRecord, HostTable, Request, choose_nodes
from nowait.engines.cluster.listener import LocalListener
from nowait.engines.network.gateway import Disconnected, Other
from nowait.engines.processes.mailbox import Mailbox
from nowait.engines.processes.resources import SharedResources
from nowait.engines.workers.transport import Gone, Leaving
from nowait.fleet.options import RayCluster
from nowait.fleet.wire.messages import GRACE, Message, MessageKind
from nowait.fleet.wire.shared import SharedSlots


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
    delivered = False

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
    assert hosts.request(3, now=1.0) == Request(1, 5)
    assert hosts.request(3, now=1.2) is None, "too soon"
    assert hosts.request(3, now=1.6) == Request(1, 5)
    hosts.do_not_ask_before(9.0)
    assert hosts.request(3, now=8.0) is None


def test_losing_a_host_pauses_its_node_and_counts_those_that_were_of_no_use():
    useful = Pool(0.0)
    useful.delivered = True
    hosts = table(host(1), host(2), host(3, ready=True, delivered=True), host(4), host(5, ready=True, remote=useful))
    for place, failures in ((1, 1), (2, 2), (3, 1), (4, 2), (5, 1)):
        hosts.lose(hosts.by_place[place], now=5.0)
        assert hosts.failures_in_a_row == failures
    assert hosts.request(1, now=5.01) == Request(1, 1, frozenset({f"node {place}" for place in range(1, 6)}))
    assert hosts.of(b"1") is None


def test_a_node_whose_hosts_become_ready_and_fail_at_once_has_its_own_growing_pause():
    hosts, pauses = table(), []
    for number in range(1, 5):
        failing = host(number, node_id="bad")
        hosts.add([failing])
        hosts.is_ready(failing, now=100.0 * number)
        hosts.lose(failing, now=100.0 * number + 1.0)
        pauses.append(round(hosts._back_off.next_end() - (100.0 * number + 1.0), 3))
        assert hosts.request(1, now=100.0 * number + 1.01).paused == {"bad"}
        assert hosts.request(1, now=100.0 * number + 2.0).paused == frozenset()
    assert pauses == [0.1, 0.2, 0.4, 0.8]


def test_a_host_that_waits_for_resources_is_asked_for_elsewhere_and_its_node_is_paused():
    waiting, loading = host(1), host(2, connected=True)
    hosts = table(waiting, loading)
    assert hosts.request(4, now=STUCK_SECONDS) is None, "both may still start"
    request = hosts.request(5, now=STUCK_SECONDS + 1.0)
    assert request == Request(3, 5, frozenset({"node 1"}), (waiting,)), "two of them instead of the waiting host"
    waiting.cancelled = "another job took the resources of its node"
    hosts.lose(waiting, now=STUCK_SECONDS + 2.0)
    assert hosts.failures_in_a_row == 0
    assert hosts.request(5, now=STUCK_SECONDS + FULL_SECONDS).paused == {"node 1"}
    assert hosts.request(5, now=STUCK_SECONDS + FULL_SECONDS + 3.0).paused == frozenset()


def test_hosts_are_cancelled_only_if_others_were_started_for_their_workers(monkeypatch):
    from nowait.engines.cluster import provisioner

    killed = []
    monkeypatch.setattr(provisioner, "_kill", killed.append)
    stuck = [host(1), host(2)]
    provisioner._cancel(stuck, instead=0)
    assert killed == []
    provisioner._cancel(stuck, instead=1)
    assert killed == stuck[:1]
    assert [record.cancelled != "" for record in stuck] == [True, False]


def test_a_host_that_leaves_has_no_room_and_its_end_is_no_failure():
    leaving, staying = host(1, ready=True), host(2, ready=True)
    hosts = table(leaving, staying)
    assert hosts.room() == 4
    hosts.leave(leaving, 30.0, now=5.0)
    assert hosts.room() == 2
    assert hosts.request(2, now=6.0) == Request(2, 4, frozenset({"node 1"}))
    hosts.lose(leaving, now=7.0)
    assert hosts.failures_in_a_row == 0
    assert hosts.request(2, now=34.0).paused == {"node 1"}
    assert hosts.request(2, now=36.0).paused == frozenset(), "a pause, not a failure"


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


# Hosts on other nodes


@pytest.fixture
def transport():
    """A transport with one host on another node that is ready."""
    from nowait.engines.cluster.transport import RayTransport

    slots, payload = SharedSlots(5, "<f8"), None
    with contextlib.closing(slots), contextlib.closing(Mailbox.open()) as mailbox:
        resources = SharedResources(slots, slots, mailbox, payload)
        made = RayTransport(RayCluster(), resources, lambda _: 0, minimum=1, max_failures=5, log=None)
        made._gateway._socket = SimpleNamespace(disconnect=lambda _: None)
        made._provisioner = SimpleNamespace(dismiss=lambda _: None)
        made._hosts.add([host(1, ready=True)])
        yield made


def test_a_host_that_sends_something_wrong_is_given_up_at_once(transport, caplog):
    [gone] = transport._on_network_event(Disconnected(b"1", "a record of 8 bytes has 3", wrong=True))
    assert gone == Gone(1, "the host on node 1 is lost (a record of 8 bytes has 3)")
    assert transport._hosts.of(b"1") is None


def leaving(content):
    return Other(b"1", Message(MessageKind.LEAVING, content, ()))


def test_a_host_that_says_nonsense_about_leaving_is_given_up(transport, caplog):
    [gone] = transport._on_network_event(leaving(b""))
    assert gone == Gone(1, "the host on node 1 is lost (a record of 8 bytes has 0)")


def test_a_host_that_leaves_is_dismissed_in_order_and_its_resources_return(transport):
    released, ended = [], []
    transport._provisioner.release = released.append
    transport._gateway.pools[b"1"] = SimpleNamespace(end=lambda: ended.append(True))
    record = transport._hosts.by_place[1]
    assert list(transport._on_network_event(leaving(GRACE.pack(30.0)))) == [Leaving(1, 30.0)]
    assert record.leaving
    transport.dismiss(1)
    assert (released, ended) == ([record], [True])
    assert transport._gateway.pools == transport._hosts.by_place == {}
    transport.dismiss(1)
    assert len(released) == 1, "it is gone already"


def test_a_host_that_uses_a_message_of_another_engine_is_given_up(transport, caplog):
    [gone] = transport._on_network_event(Other(b"1", Message(99, b"", ())))
    assert isinstance(gone, Gone)


def test_a_host_whose_connection_broke_has_time_to_say_why(transport):
    assert list(transport._on_network_event(Disconnected(b"1", "it was cut"))) == []
    assert transport._hosts.of(b"1").disconnected[1] == "it was cut"


def test_events_of_hosts_that_were_given_up_are_ignored(transport):
    assert list(transport._on_network_event(Disconnected(b"7", "it was cut", wrong=True))) == []


def test_a_host_whose_connection_broke_is_given_up_if_ray_does_not_say_why():
    hosts = table(host(1, ready=True, remote=Pool(0.0)))
    hosts.disconnected(b"1", "it was cut", now=1.0)
    hosts.disconnected(b"2", "unknown hosts do not matter", now=1.0)
    assert hosts.overdue(2.0) == []
    assert [(found.place, cause) for found, cause in hosts.overdue(4.5)] == [(1, "its connection is gone: it was cut")]
