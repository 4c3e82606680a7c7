"""Hosts on a Ray cluster: for which to ask, which are lost, and what the run hears. Nothing here needs a cluster."""

import contextlib
import math
from time import monotonic
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography")

import nowait as nw
import nowait.fleet.sources.ray as module
from nowait.fleet.host.host import Mailbox, Resources
from nowait.fleet.server.events import HOME, HostGone, HostLeaves, HostReady, ProcessDied
from nowait.fleet.sources.ray import (
    FULL_SECONDS,
    STUCK_SECONDS,
    HostRecord,
    HostTable,
    RaySource,
    Request,
    choose_nodes,
)
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.messages import GRACE, Message, MessageKind
from nowait.fleet.wire.records import REPORT, ReportKind
from nowait.fleet.wire.secure import ProtocolError
from nowait.fleet.wire.shared import SharedSlots

# Where to start hosts

NODES = [("a", "node a", 2), ("b", "node b", 2), ("c", "node c", 2)]


def test_no_host_is_started_on_a_node_that_is_paused():
    assert choose_nodes(3, NODES, {"a"}, math.inf) == ([("b", "node b", 2), ("c", "node c", 1)], 0)


def test_hosts_have_at_most_the_largest_size_and_what_does_not_fit_is_left():
    chosen = [("a", "node a", 1), ("a", "node a", 1), ("c", "node c", 1), ("c", "node c", 1)]
    assert choose_nodes(7, [*NODES[:1], ("b", "node b", -1), *NODES[2:]], (), 1) == (chosen, 3)


# The table of hosts


def host(number, **state):
    record = HostRecord(number, f"node {number}", f"node {number}", size=2, since=0.0)
    for name, value in state.items():
        setattr(record, name, value)
    return record


def table(*hosts):
    made = HostTable(start_seconds=60.0)
    made.add(hosts)
    return made


class Remote:
    """In the place of a connection."""

    delivered = False


def test_hosts_that_do_not_start_are_overdue():
    hosts = table(host(1), host(4, ready=True))
    assert hosts.overdue(59.5) == []
    assert [(late.number, cause) for late, cause in hosts.overdue(60.5)] == [(1, "it did not start within 60 s")]


def test_a_request_counts_what_is_promised_and_is_not_repeated_at_once():
    hosts = table(host(1), host(2, ready=True))
    assert hosts.request(2, now=1.0) is None, "host 1 will have room for two"
    assert hosts.request(3, now=1.0) == Request(1, 5)
    assert hosts.request(3, now=1.2) is None, "too soon"
    assert hosts.request(3, now=1.6) == Request(1, 5)
    hosts.do_not_ask_before(9.0)
    assert hosts.request(3, now=8.0) is None


def test_losing_a_host_pauses_its_node_and_counts_those_that_were_of_no_use():
    useful = Remote()
    useful.delivered = True
    hosts = table(host(1), host(2), host(3, ready=True, delivered=True), host(4), host(5, ready=True, remote=useful))
    for number, failures in ((1, 1), (2, 2), (3, 1), (4, 2), (5, 1)):
        hosts.lose(hosts.by_number[number], now=5.0)
        assert hosts.failures_in_a_row == failures
    assert hosts.request(1, now=5.01) == Request(1, 1, frozenset({f"node {number}" for number in range(1, 6)}))
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
    ray_nodes = pytest.importorskip("nowait.fleet.sources.ray_nodes")
    killed = []
    monkeypatch.setattr(ray_nodes, "_kill", killed.append)
    stuck = [host(1), host(2)]
    ray_nodes._cancel(stuck, instead=0)
    assert killed == []
    ray_nodes._cancel(stuck, instead=1)
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


def test_a_host_whose_connection_broke_is_given_up_if_ray_does_not_say_why():
    hosts = table(host(1, ready=True, remote=Remote()))
    hosts.by_number[1].disconnected = (1.0, "it was cut")
    assert hosts.overdue(2.0) == []
    assert [(found.number, cause) for found, cause in hosts.overdue(4.5)] == [(1, "its connection is gone: it was cut")]


# The source


class FakeMachine:
    """In the place of the processes of this machine."""

    def __init__(self):
        self.pools, self.removed, self.drained = {}, [], []

    def add(self, zygote, emit, *, seats, host=HOME, name="", log=None):
        self.pools[host] = SimpleNamespace(zygote=zygote, emit=emit, seats=seats, name=name)

    def remove(self, host):
        self.removed.append(host)
        self.pools.pop(host, None)

    def drain(self):
        self.drained.append(True)


class FakeNodes:
    """In the place of Ray."""

    asking = False

    def __init__(self):
        self.requests, self.released, self.dismissed, self.refused, self.new = [], [], [], [], []
        self.drains, self.problem = {}, None
        self.ask, self.release, self.dismiss = self.requests.append, self.released.append, self.dismissed.append
        self.failed = self.refused.append

    def started(self):
        new, self.new = self.new, []
        return new

    def draining(self, now):
        return self.drains

    def error(self):
        problem, self.problem = self.problem, None
        return problem

    def why(self, host):
        return host.ended.result(), False

    def nodes(self):
        return "the cluster has no nodes"


class FakeRemote:
    """In the place of the connection of a host on another node."""

    def __init__(self, identity=b"1", last_message=0.0):
        self.identity, self.last_message, self.number, self.delivered = identity, last_message, -1, False
        self.processes, self.ended, self.closed, self.rest = {}, [], False, lambda: None

    def end(self, reason=""):
        self.ended.append(reason)

    def close(self):
        self.closed = True

    def read_all(self):
        self.rest()


class Setting:
    """A source without Ray, with one host on another node that is ready, and one on this node that is not."""

    def __init__(self, stack, cluster=None):
        slots = stack.enter_context(contextlib.closing(SharedSlots(5, "<f8")))
        mailbox = stack.enter_context(contextlib.closing(Mailbox.open()))
        resources = Resources(slots, slots, mailbox, None)
        self.source = RaySource(cluster or nw.RayCluster(), resources, Hub(), minimum=1, max_failures=5, log=None)
        self.events, self.taken, self.decide = [], [], lambda event: None
        self.source._emit, self.source._take = self._emit, lambda records, gradients: self.taken.append(records)
        self.machine = self.source._machine = FakeMachine()
        self.nodes = self.source._provisioner = FakeNodes()
        self.source._gateway = SimpleNamespace(
            tick=lambda now: None, expect=lambda hosts: None, close=lambda: None, traffic=(3, 4)
        )
        self.remote = FakeRemote()
        self.far, self.near = host(1, since=monotonic()), host(2, since=monotonic())
        self.nodes.new = [self.far, self.near]
        assert self.source.connected(self.remote)
        self.source.ready(self.remote)
        assert self.taken_events() == [HostReady(1, 2, distance=1, name="node 1", label="node 1")]

    def _emit(self, event):
        self.events.append(event)
        self.decide(event)

    def taken_events(self):
        events, self.events = self.events, []
        return events

    def connect_here(self):
        self.source.connected_here(b"2", SimpleNamespace())
        self.machine.pools[2].emit(HostReady(2, 2, 0, "node 2"))
        assert self.taken_events() == [HostReady(2, 2, distance=0, name="node 2", label="node 2")]


@pytest.fixture
def setting():
    with contextlib.ExitStack() as stack:
        yield Setting(stack)


def test_a_host_that_sends_something_wrong_is_given_up_at_once(setting, caplog):
    setting.source.lost(setting.remote, "a record of 8 bytes has 3", wrong=True, lasting=False)
    assert setting.taken_events() == [HostGone(1, "the host on node 1 is lost (a record of 8 bytes has 3)")]
    assert setting.source._hosts.of(b"1") is None
    assert setting.nodes.dismissed == [setting.far]


def test_a_host_that_cannot_load_the_problem_makes_others_hopeless(setting, caplog):
    setting.far.ready = False
    setting.source.lost(setting.remote, "no module", wrong=False, lasting=True)
    assert setting.taken_events() == []
    assert "a host on node 1 could not start: no module" in caplog.text
    with pytest.raises(nw.WorkerFailedError, match="hosts cannot start: no module"):
        setting.source.tick(1, 0)


def leaving(content):
    return Message(MessageKind.LEAVING, content, ())


def test_a_host_that_says_nonsense_about_leaving_is_wrong(setting):
    with pytest.raises(ProtocolError, match="a record of 8 bytes has 0"):
        setting.source.on_message(setting.remote, leaving(b""))


def test_a_host_that_uses_a_message_of_another_engine_is_wrong(setting):
    with pytest.raises(ProtocolError, match="it sent the kind 99"):
        setting.source.on_message(setting.remote, Message(99, b"", ()))


def test_a_host_that_leaves_is_ended_in_order_and_its_resources_return(setting):
    setting.source.on_message(setting.remote, leaving(GRACE.pack(30.0)))
    assert setting.taken_events() == [HostLeaves(1, 30.0)]
    assert setting.far.leaving
    for _ in range(2):
        setting.source.end_host(1, "")
    assert (setting.nodes.released, setting.remote.ended) == ([setting.far], [""])
    assert list(setting.source._hosts.by_number) == [2]
    assert setting.taken_events() == []


def test_a_host_that_is_given_up_counts_against_its_node(setting):
    setting.source.end_host(1, "worker 0 sent NaN")
    assert setting.nodes.refused == [setting.far]
    setting.source.end_host(2, "")
    assert setting.nodes.dismissed == [setting.near], "it was not ready: its actor may not run yet"


def test_a_host_whose_connection_broke_has_time_to_say_why(setting, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    setting.far.since = setting.near.since = setting.remote.last_message = 100.0
    setting.source.lost(setting.remote, "it was cut", wrong=False, lasting=False)
    setting.source.tick(0, 1)
    assert setting.taken_events() == []
    now[0] = 104.0
    setting.source.tick(0, 1)
    assert setting.taken_events() == [HostGone(1, "the host on node 1 is lost (its connection is gone: it was cut)")]


def test_a_host_cannot_connect_a_second_time(setting):
    """It would be opened twice, which ended the run."""
    setting.source.lost(setting.remote, "the other end closed the connection", wrong=False, lasting=False)
    assert not setting.source.connected(FakeRemote())
    closed = []
    setting.source.connected_here(b"1", SimpleNamespace(close=lambda: closed.append(True)))
    assert (closed, list(setting.machine.pools)) == ([True], [])
    assert setting.far.remote is setting.remote


def test_events_of_hosts_that_were_given_up_are_ignored(setting):
    stranger = FakeRemote(b"7")
    assert not setting.source.connected(stranger)
    setting.source.lost(stranger, "it was cut", wrong=True, lasting=False)
    closed = []
    setting.source.connected_here(b"7", SimpleNamespace(close=lambda: closed.append(True)))
    assert closed == [True]
    assert setting.taken_events() == []


def test_the_last_reports_of_a_host_that_exited_are_read_before_it_is_given_up(setting):
    """Race 11."""
    setting.remote.rest = lambda: setting.events.append(ProcessDied(7, 1))
    setting.far.ended.set_result("the run is over")
    setting.remote.last_message = math.inf
    setting.source.tick(0, 1)
    assert setting.taken_events() == [
        ProcessDied(7, 1),
        HostGone(1, "the host on node 1 is lost (the run is over)"),
    ]
    assert setting.remote.closed
    setting.connect_here()
    setting.near.ended.set_result("the process that starts workers ended with status 0")
    setting.source.tick(0, 1)
    assert setting.machine.drained == [True]
    assert setting.machine.removed[-1] == 2
    assert len(setting.taken_events()) == 1


def test_a_host_on_the_drivers_node_is_reached_directly(setting):
    setting.connect_here()
    assert setting.source.port(1) is setting.remote
    assert setting.source.port(2) is setting.machine.pools[2]
    assert (setting.machine.pools[2].seats, setting.machine.pools[2].name) == (2, "node 2")
    emit = setting.machine.pools[2].emit
    emit(ProcessDied(7, 1))
    emit(HostLeaves(2, 120.0))
    assert setting.taken_events() == [ProcessDied(7, 1), HostLeaves(2, 120.0)]
    emit(HostGone(2, "the process that starts workers was killed"))
    cause = "the host on node 2 is lost (the process that starts workers was killed)"
    assert setting.taken_events() == [HostGone(2, cause)]
    assert setting.nodes.dismissed == [setting.near]


def test_what_happens_to_home_is_passed_on(setting):
    for event in (HostReady(HOME, 0), HostGone(HOME, "it was killed")):
        setting.source._on_local_event(event)
        assert setting.taken_events() == [event]


def test_a_gradient_from_this_node_says_that_its_hosts_deliver(setting):
    """The evaluator reports through the same pipe."""
    setting.connect_here()
    for kind, delivered in ((ReportKind.LOSS, False), (ReportKind.GRADIENT, True)):
        setting.source._on_local_reports(REPORT.pack(0, 0.0, 0.0, 0, kind), [])
        assert setting.near.delivered is delivered
    assert len(setting.taken) == 2
    assert not setting.far.delivered


def test_a_node_that_is_drained_lets_its_hosts_leave_once(setting):
    setting.remote.last_message = math.inf
    setting.nodes.drains = {"node 1": 17.0}
    for _ in range(2):
        setting.source.tick(0, 1)
    assert setting.taken_events() == [HostLeaves(1, 17.0)]


def test_hosts_are_asked_for_workers_without_a_seat(setting, monkeypatch):
    monkeypatch.setattr(module, "monotonic", lambda: 1.0)
    setting.far.since = setting.near.since = 1.0
    setting.source.tick(5, 2)
    assert setting.nodes.requests == [Request(3, 7)], "host 1 is full, and two of five will be on host 2"


def test_a_call_that_fails_at_the_start_ends_the_run_and_later_it_is_made_again(setting, caplog):
    setting.remote.last_message = math.inf
    setting.source._starting = False
    setting.nodes.problem = ValueError("no such node")
    setting.source.tick(5, 2)
    assert "requesting hosts from Ray failed: no such node" in caplog.text
    assert setting.nodes.requests == []
    setting.source._starting, setting.far.ready = True, False
    setting.nodes.problem = ValueError("no such node")
    with pytest.raises(nw.WorkerFailedError, match="hosts cannot start: Ray said: no such node"):
        setting.source.tick(5, 0)


def test_a_run_without_room_warns_and_then_fails(setting, caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    setting.far.since = setting.near.since = setting.remote.last_message = math.inf
    setting.far.ready = False
    setting.source._starting = False
    needs = "each needs {'CPU': 1.0}; the cluster has no nodes"
    for now[0] in (10.0, 11.0, 12.0):
        setting.source.tick(3, 0)
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning == f"waiting for workers: there is room for 0 of 3 workers: {needs}"
    now[0] = 301.0
    with pytest.raises(nw.WorkerFailedError, match="after 301 s there is room for 0 of 3 workers: each needs"):
        setting.source.tick(3, 0)


def test_closing_tells_all_hosts_and_may_be_done_twice(setting):
    setting.connect_here()
    for _ in range(2):
        setting.source.close()
    assert setting.remote.ended == [""]
    assert setting.machine.removed == [2, 1]
