"""The host's side of a run: what it passes on, when it leaves, and how its processes outlive a connection."""

import contextlib
import math
import socket
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from nowait.fleet.host import relay as module
from nowait.fleet.host.relay import (
    CLOCK_REQUESTS,
    LEFT,
    MESSAGES_IN_TRANSIT,
    SECONDS_FOR_A_REPLY,
    Relay,
    clock_difference,
    point_slots,
)
from nowait.fleet.server.events import HostGone, HostLeaves, HostReady, ProcessDied
from nowait.fleet.wire.connection import DisconnectedError
from nowait.fleet.wire.messages import (
    AHEAD,
    CLOCK,
    EXIT,
    GRACE,
    POINT_ORDER,
    RUN_IS_OVER,
    RUNNING,
    START,
    Message,
    MessageKind,
)
from nowait.fleet.wire.records import GRACE_SECONDS, REPORT, Instruction, ReportKind
from nowait.fleet.wire.secure import ProtocolError

READY = HostReady(1, math.inf)
NEW, OLD = 21, 20


class FakeMachine:
    """In the place of the processes of this machine: keeps what it is told, and reports what a test says."""

    def __init__(self, resources, hub, take):
        self.take, self.reading, self.said, self.closed, self.known = take, False, [], False, {}

    def add(self, zygote, emit, *, seats, host):
        self.emit = emit
        return self

    def start(self, number, serial, began):
        self.said.append(("start", number, serial, began))
        return self.order

    def order(self, ticket, slot, instruction):
        self.said.append((tuple(ticket[:4]), slot, instruction))

    def kill(self, serial):
        self.said.append(("kill", serial))

    def details(self, number, ticket):
        return self.known.pop((number, ticket), None)

    def open(self):
        self.reading = True

    def pause(self):
        self.reading = False

    def close(self):
        self.closed = True


class FakeServer:
    """In the place of the connection: returns the messages of a test, and answers requests for the time."""

    def __init__(self, clock):
        self._ours, self._theirs = socket.socketpair()
        self._clock = clock
        self.fd, self.blocked, self.sent, self.arrived = self._ours.fileno(), False, [], deque()
        self.breaks = self.is_silent = False

    def receive(self):
        return self.arrived.popleft() if self.arrived else None

    def send(self, kind, content=b"", vectors=()):
        if self.breaks:
            raise DisconnectedError("it was cut")
        if kind == MessageKind.ASK_TIME and not self.is_silent:
            self.arrived.append(Message(MessageKind.TIME, CLOCK.pack(*CLOCK.unpack(content)[:1], self._clock.now), ()))
        if kind != MessageKind.ASK_TIME:
            self.sent.append((kind, content, [np.array(vector) for vector in vectors]))

    def close(self):
        self._ours.close()
        self._theirs.close()


class Setting:
    """A relay, its processes, its clock, and the connection that it has."""

    def __init__(self, stack):
        self._stack, self.clock = stack, SimpleNamespace(now=100.0)
        self.points = [np.zeros(3) for _ in range(4)]
        self.gradients = [np.full(3, float(number)) for number in range(4)]
        resources = SimpleNamespace(points=self.points)
        self.relay = Relay(resources, SimpleNamespace(close=lambda: None))
        self.relay.open()
        stack.callback(self.relay.close)
        self.machine = self.relay._pool
        self.connect()

    def connect(self):
        """Use another connection from now on."""
        self.server = FakeServer(self.clock)
        self._stack.callback(self.server.close)
        self.relay._hub.handlers.clear()
        self.relay._hub._poller = module.Hub()._poller
        self.relay._begin(self.server)
        self.step()
        return self.server

    def step(self):
        """Handle what has arrived, and do what is due; returns the reason for the end, if it ends."""
        self.relay._read()
        self.relay._look(self.clock.now)
        return self.relay._reason

    def receives(self, kind, content=b"", vectors=()):
        """Let a message of the server arrive; returns what the workers are told because of it."""
        self.machine.said.clear()
        self.server.arrived.append(Message(kind, content, vectors))
        self.step()
        return list(self.machine.said)

    def reports(self, *records):
        """Let workers report; returns what is sent to the server."""
        self.server.sent.clear()
        self.machine.take(b"".join(records), self.gradients)
        return list(self.server.sent)

    def loaded(self):
        self.machine.emit(READY)
        self.step()
        self.server.sent.clear()
        return self


@pytest.fixture
def setting(monkeypatch):
    monkeypatch.setattr(module, "Machine", FakeMachine)
    with contextlib.ExitStack() as stack:
        made = Setting(stack)
        monkeypatch.setattr(module, "monotonic", lambda: made.clock.now)
        made.relay._last_sent = made.clock.now
        yield made


def report(ticket, number, kind=ReportKind.GRADIENT):
    return REPORT.pack(ticket, 0.0, 0.0, number, kind)


def order(ticket, number, instruction=Instruction.KEEP, slot=0, is_new=False):
    return POINT_ORDER.pack(ticket, ticket + 50, number, instruction, slot, is_new)


def start(number, serial, began=5.0):
    return MessageKind.START, START.pack(number, serial, began)


# Passing messages on


def test_the_server_learns_the_difference_between_the_clocks_once_the_problem_is_loaded(setting):
    setting.clock.now = 101.0
    setting.machine.emit(READY)
    assert setting.server.sent == []
    assert not setting.machine.reading
    setting.step()
    assert setting.server.sent == [(MessageKind.READY, AHEAD.pack(0.0), [])]
    assert setting.machine.reading


def test_the_quickest_of_several_replies_says_how_far_a_clock_is_ahead():
    assert clock_difference([(10.0, 5.0, 14.0), (20.0, 14.0, 21.0), (30.0, 5.0, 39.0)]) == 6.5


def test_orders_reach_the_workers_with_their_points(setting):
    setting.loaded()
    assert setting.receives(*start(2, 7)) == [("start", 2, 7, 5.0)]
    large = setting.points[1]
    said = setting.receives(
        MessageKind.ORDERS,
        order(9, 2, slot=1, is_new=True) + order(10, 3) + order(11, 2, Instruction.FORGET, slot=2, is_new=True),
        [large, np.arange(3.0)],
    )
    assert said == [((9, 2, 0, 59), 1, Instruction.KEEP), ((11, 2, 0, 61), 2, Instruction.FORGET)]
    assert setting.points[2].tolist() == [0.0, 1.0, 2.0], "a small point came in the message"


def test_reports_are_sent_with_the_gradients_and_details_that_they_announce(setting):
    setting.loaded()
    setting.machine.known[1, 8] = ("KeyError", "text")
    records = [report(7, 2), report(8, 1, ReportKind.ERROR), report(-9, 3, ReportKind.AUDITED)]
    (kind, content, _), (second, sent, vectors) = setting.reports(*records)
    assert (kind, content) == (MessageKind.DETAILS, b'[1, 8, ["KeyError", "text"]]')
    assert (second, sent) == (MessageKind.REPORTS, b"".join(records))
    assert [vector.tolist() for vector in vectors] == [[2.0] * 3, [3.0] * 3]


@pytest.mark.parametrize("kind", [MessageKind.ORDERS, MessageKind.REPLY])
def test_points_belong_to_orders_that_announce_them(kind):
    points = [np.zeros(3) for _ in range(3)]
    content = order(1, 0, slot=2, is_new=True) + order(2, 0) + order(3, 0, slot=1, is_new=True)
    assert [slot is points[number] for slot, number in zip(point_slots(points, kind, content, 2), (2, 1), strict=True)]
    for wrong in ((points, kind, content, 1), (points, kind, content[:-1], 2), (None, kind, content, 2)):
        with pytest.raises(ProtocolError):
            point_slots(*wrong)
    with pytest.raises(ProtocolError):
        point_slots(points, MessageKind.TIME, content, 2)


def test_only_a_reply_makes_room_for_more_reports(setting):
    """Race 12: orders that come on their own are no replies, however many there are."""
    setting.loaded()
    for ticket in range(MESSAGES_IN_TRANSIT):
        assert setting.machine.reading
        setting.reports(report(ticket, 0))
    assert not setting.machine.reading, "they collect into a larger message"
    for _ in range(5):
        setting.receives(MessageKind.ORDERS, order(9, 0))
    assert not setting.machine.reading
    setting.receives(MessageKind.REPLY, order(9, 0))
    assert setting.machine.reading
    setting.reports(report(9, 0))
    assert not setting.machine.reading


def test_what_comes_while_the_clock_is_measured_is_executed(setting):
    """Race 11: it was dropped, also the end of the run."""
    setting.server.is_silent = True
    setting.machine.emit(READY)
    setting.step()
    assert setting.receives(MessageKind.KILL, EXIT.pack(7, 0)) == [("kill", 7)]
    setting.receives(MessageKind.TIME, CLOCK.pack(100.0, 3.0))
    assert setting.server.sent == []
    setting.server.arrived.append(Message(MessageKind.END, b"", ()))
    assert setting.step() == RUN_IS_OVER


def test_a_server_that_does_not_say_the_time_is_given_up(setting):
    setting.server.is_silent = True
    setting.machine.emit(READY)
    setting.step()
    setting.clock.now += SECONDS_FOR_A_REPLY
    setting.step()
    setting.clock.now += 1.0
    with pytest.raises(DisconnectedError, match="did not reply within 120 s"):
        setting.step()


def test_the_clock_is_asked_for_several_times(setting):
    asked = []
    setting.server.is_silent = True
    send = setting.server.send
    setting.server.send = lambda kind, content=b"", vectors=(): (asked.append(kind), send(kind, content, vectors))
    setting.machine.emit(READY)
    for _ in range(CLOCK_REQUESTS):
        setting.receives(MessageKind.TIME, CLOCK.pack(100.0, 3.0))
    assert asked == [MessageKind.ASK_TIME] * CLOCK_REQUESTS + [MessageKind.READY]


def test_a_heartbeat_is_sent_after_a_second_of_silence(setting):
    setting.loaded()
    setting.clock.now += 0.5
    setting.step()
    assert setting.server.sent == []
    setting.clock.now += 0.6
    setting.step()
    assert setting.server.sent == [(MessageKind.HEARTBEAT, b"", [])]


def test_deaths_are_reported(setting):
    setting.loaded()
    setting.receives(*start(2, 7))
    setting.machine.emit(ProcessDied(7, -9))
    assert setting.server.sent == [(MessageKind.DIED, EXIT.pack(7, -9), [])]
    assert setting.receives(MessageKind.ORDERS, order(9, 2)) == [], "the server will know"


def test_a_problem_that_cannot_be_loaded_ends_the_host_and_the_server_learns_why(setting):
    setting.machine.emit(HostGone(1, "KeyError: 3", lasting=True))
    cause = "workers could not load the problem:\nKeyError: 3"
    assert setting.server.sent == [(MessageKind.FAILED, cause.encode(), [])]
    assert setting.step() == cause


def test_a_zygote_that_is_killed_later_ends_the_host(setting):
    setting.loaded()
    setting.machine.emit(HostGone(1, "the process that starts workers was killed"))
    assert setting.step() == "the process that starts workers was killed"
    assert setting.server.sent == []


# Leaving


def test_it_says_once_that_it_leaves_and_exits_when_its_time_is_over(setting):
    setting.loaded()
    setting.relay.leave(30.0)
    setting.relay.leave(1.0)
    setting.relay._hub.wait(0.0)
    assert setting.step() == ""
    assert setting.server.sent == [(MessageKind.LEAVING, GRACE.pack(30.0), [])]
    setting.machine.emit(HostLeaves(1, 3.0))
    assert setting.step() == ""
    assert len(setting.server.sent) == 1
    setting.clock.now += 31.0
    setting.machine.emit(HostLeaves(1, 3.0))
    assert setting.step() == LEFT


def test_a_signal_to_its_zygote_is_one_to_the_host(setting):
    setting.loaded()
    setting.machine.emit(HostLeaves(1, 3.0))
    assert setting.step() == ""
    assert setting.server.sent == [(MessageKind.LEAVING, GRACE.pack(GRACE_SECONDS), [])]


def test_a_host_that_is_to_leave_while_it_loads_the_problem_exits_at_once(setting):
    setting.relay.leave(30.0)
    assert setting.step() == LEFT
    assert setting.server.sent == []


def test_a_run_that_is_over_while_a_host_loads_the_problem_is_no_failure(setting):
    setting.receives(MessageKind.END)
    assert setting.step() == RUN_IS_OVER
    assert setting.server.sent == []


def test_messages_are_passed_until_the_end_and_the_connection_is_left_alone_then(setting):
    server = FakeServer(setting.clock)
    server.arrived.append(Message(MessageKind.END, b"this host was drained", ()))
    assert setting.relay.run(server) == "this host was drained"
    assert server.fd not in setting.relay._hub.handlers
    server.close()


# Another connection


def with_processes(setting):
    """A host with the workers 0 and 1, whose connection breaks; worker 1 has the order ``OLD``."""
    setting.loaded()
    for number in range(2):
        setting.receives(*start(number, 7 + number))
    setting.receives(MessageKind.ORDERS, order(OLD, 1))
    setting.server.breaks = True
    return setting


def test_processes_that_run_on_keep_their_serial_numbers(setting):
    with_processes(setting)
    server = setting.connect()
    running = b"".join(RUNNING.pack(7 + number, number) for number in range(2))
    assert server.sent == [(MessageKind.READY, AHEAD.pack(0.0) + running, [])]
    assert setting.receives(MessageKind.KILL, EXIT.pack(7, 0)) == [("kill", 7)]
    setting.machine.emit(ProcessDied(7, -9))
    assert server.sent[1:] == [(MessageKind.DIED, EXIT.pack(7, -9), [])]
    assert setting.receives(MessageKind.ADOPT, START.pack(1, 8, 5.0)) == [], "nothing is started, or renumbered"
    assert setting.receives(MessageKind.ORDERS, order(NEW, 1)) == [((NEW, 1, 0, NEW + 50), 0, Instruction.KEEP)]


def test_a_process_that_died_meanwhile_is_not_offered_and_its_death_is_news_to_nobody(setting):
    """Race 11: the other events of the zygote are not lost if the connection breaks with the first one."""
    with_processes(setting)
    setting.machine.emit(ProcessDied(7, 1))
    server = setting.connect()
    assert server.sent == [(MessageKind.READY, AHEAD.pack(0.0) + RUNNING.pack(8, 1), [])]
    assert setting.receives(MessageKind.ADOPT, START.pack(0, 7, 5.0)) == [], "it died"


def test_the_clock_of_an_adopted_process_is_corrected_if_the_run_began_after_it_was_started(setting):
    with_processes(setting)
    setting.connect()
    assert setting.receives(MessageKind.ADOPT, START.pack(0, 7, 5.05)) == [], "two measurements differ by that much"
    assert setting.receives(MessageKind.ADOPT, START.pack(0, 7, 7.5)) == [
        ((0, 0, 0, 2_500_000_000), 0, Instruction.BEGIN)
    ]


def test_reports_on_orders_of_the_earlier_connection_are_dropped(setting):
    """The server has lost these tickets, and the gradient may be overwritten while it is sent."""
    with_processes(setting)
    setting.connect()
    assert setting.reports(report(OLD, 1)) == []
    setting.receives(MessageKind.ADOPT, START.pack(1, 8, 5.0))
    assert setting.reports(report(OLD, 1)) == []
    setting.receives(MessageKind.ORDERS, order(NEW, 1) + order(NEW + 1, 1))
    assert setting.reports(report(OLD, 1)) == []
    kept = report(NEW, 1)
    assert [content for _, content, _ in setting.reports(report(OLD, 1), kept)] == [kept]
    assert [content for _, content, _ in setting.reports(kept)] == [kept], "from now on nothing is uncertain"
    assert list(setting.relay._uncertain) == [0]


def test_reports_that_are_on_no_order_are_passed_on_after_a_break(setting):
    """The numbers of checks are below 0, and are used once; a process may say that it leaves, or is ready."""
    with_processes(setting)
    setting.connect()
    for record in (
        report(-3, 1, ReportKind.AUDITED),
        report(8, 1, ReportKind.LEAVING),
        report(0, 1, ReportKind.READY),
    ):
        assert [content for _, content, _ in setting.reports(record)] == [record]


def test_a_check_or_hurry_is_not_the_first_order_of_a_connection(setting):
    with_processes(setting)
    setting.connect()
    for instruction in (Instruction.HURRY, Instruction.BEGIN, Instruction.AUDIT):
        setting.receives(MessageKind.ORDERS, order(1, 1, instruction))
    assert setting.reports(report(OLD, 1)) == []


def test_a_worker_whose_process_ended_is_not_uncertain_any_more(setting):
    """Race 14: such entries made each later batch of reports slow."""
    with_processes(setting)
    setting.connect()
    for serial in (7, 8):
        setting.machine.emit(ProcessDied(serial, -9))
    assert setting.relay._uncertain == {}
    setting.receives(*start(1, 9))
    assert len(setting.reports(report(NEW, 1))) == 1


def test_nothing_is_reported_before_the_server_knows_which_processes_run(setting):
    with_processes(setting)
    setting.server = FakeServer(setting.clock)
    setting.server.is_silent = True
    setting.relay._begin(setting.server)
    assert not setting.machine.reading
    assert setting.reports(report(8, 1, ReportKind.LEAVING)) == [], "they were read because a process died"
    setting.machine.emit(ProcessDied(7, 1))
    assert setting.server.sent == []
    setting.server.close()


def test_a_process_that_was_being_replaced_when_the_connection_broke_is_not_offered(setting):
    """The server had killed it: only the second process of its worker goes on."""
    with_processes(setting)
    setting.server.breaks = False
    setting.receives(*start(1, 9))
    server = setting.connect()
    running = RUNNING.pack(7, 0) + RUNNING.pack(9, 1)
    assert server.sent == [(MessageKind.READY, AHEAD.pack(0.0) + running, [])]
    setting.machine.emit(ProcessDied(8, -9))
    assert len(server.sent) == 1
    assert len(setting.receives(MessageKind.ORDERS, order(NEW, 1))) == 1


def test_a_connection_that_breaks_while_something_is_sent_ends_the_passing_on_afterwards(setting):
    setting.server.breaks = True
    setting.loaded()
    setting.machine.emit(ProcessDied(99, 1))
    server = FakeServer(setting.clock)
    server.breaks = True
    with pytest.raises(DisconnectedError, match="it was cut"):
        setting.relay.run(server)
    server.close()
