"""What hosts send: what belongs to their workers is accepted, anything else ends their connection, not the run."""

import contextlib
import json
import math

import numpy as np
import pytest

pytest.importorskip("cryptography")

from nowait.engines.network.gateway import MOST_QUEUED, Disconnected, Failed, Gateway, Other, Ready
from nowait.engines.processes.mailbox import Mailbox
from nowait.engines.processes.resources import SharedResources
from nowait.engines.workers.transport import Died, Reports
from nowait.fleet.wire.messages import (
    AHEAD,
    CLOCK,
    EXIT,
    GRACE,
    POINT_ORDER,
    START,
    Message,
    MessageKind,
    grace_seconds,
)
from nowait.fleet.wire.records import REPORT, Instruction, ReportKind
from nowait.fleet.wire.secure import ProtocolError
from nowait.fleet.wire.shared import SharedSlots

HOST, STRANGER = b"1", b"2"


class RecordingSocket:
    """In the place of the server's socket: keeps what is sent."""

    def __init__(self):
        self.sent, self.disconnected, self.detached, self.waiting = [], [], [], 0

    def disconnect(self, identity):
        self.disconnected.append(identity)

    def queued(self, receiver):
        return self.waiting

    def detach(self, sender):
        self.detached.append(sender)

    def end(self, receiver):
        pass

    def send(self, receiver, kind, content=b"", vectors=()):
        self.sent.append((kind, content, len(vectors)))


class Setting:
    """A gateway with one host that has the workers 0 and 1, and the versions of tickets."""

    def __init__(self, resources):
        self.versions = {}
        self.gradients, self.mailbox = resources.gradients, resources.mailbox
        self.gateway = Gateway(resources, self.versions.__getitem__, lambda identity: identity == HOST)
        self.socket = self.gateway._socket = RecordingSocket()
        assert self.events(MessageKind.HELLO, HOST) == []
        self.pool = self.gateway.pools[HOST]
        self.channels = [self.pool.start(worker, 10 + worker, 0.0) for worker in range(2)]
        self.socket.sent.clear()

    def events(self, kind, content=b"", vectors=(), identity=HOST):
        return list(self.gateway.handle(identity, Message(kind, content, vectors)))

    def orders(self):
        """The number of orders and of points in each batch that was sent."""
        return [(len(content) // POINT_ORDER.size, points) for _, content, points in self.socket.sent]


@pytest.fixture
def setting():
    points, gradients = SharedSlots(5, "<f8"), SharedSlots(5, "<f8")
    with contextlib.closing(points), contextlib.closing(gradients), contextlib.closing(Mailbox.open()) as mailbox:
        for _ in range(2):
            points.allocate()
        yield Setting(SharedResources(points, gradients, mailbox, payload=None))


def report(ticket, worker, kind=ReportKind.GRADIENT, started=0.0, seconds=0.0):
    return REPORT.pack(ticket, started, seconds, worker, kind)


# Reports and orders


def test_every_message_of_reports_gets_its_own_reply(setting):
    """A relay that misses replies stops reading its workers' reports."""
    for ticket in range(4):
        worker = ticket % 2
        for event in setting.gateway.handle(HOST, Message(MessageKind.REPORTS, report(ticket, worker), [np.ones(5)])):
            assert list(event.gradients) == [worker]
            if ticket < 3:
                setting.versions[ticket + 9] = ticket
                setting.channels[worker].send(ticket + 9, 0, worker, Instruction.KEEP)
    assert [kind for kind, *_ in setting.socket.sent] == [MessageKind.ORDERS] * 4
    assert setting.orders() == [(1, 1)] * 3 + [(0, 0)]


def test_a_host_that_is_given_up_because_of_its_reports_gets_no_reply_to_them(setting):
    """After the last frame nothing can be sent: the connection would raise, and end the run."""
    for _ in setting.gateway.handle(HOST, Message(MessageKind.REPORTS, report(0, 0), [np.ones(5)])):
        setting.gateway.pools.pop(HOST).end("this host was given up: worker 0 sent NaN")
    assert [kind for kind, *_ in setting.socket.sent] == [MessageKind.END]


def test_a_point_that_the_host_has_is_not_sent_again(setting):
    """Both workers get version 7, then worker 0 gets it again, then version 8, then both do."""
    for ticket, (worker, version) in enumerate([(0, 7), (1, 7), (0, 7), (0, 8), (0, 8), (1, 8)]):
        for _ in setting.gateway.handle(HOST, Message(MessageKind.REPORTS, report(ticket, worker), [np.ones(5)])):
            setting.versions[ticket] = version
            setting.channels[worker].send(ticket, 0, 0, Instruction.KEEP)
    assert setting.orders() == [(1, 1), (1, 0), (1, 0), (1, 1), (1, 0), (1, 0)]


def test_orders_are_sent_before_the_start_of_another_process(setting):
    """The order is for a process that the host has: it must not reach the one that is started after it."""
    setting.versions[0] = 0
    setting.channels[0].send(0, 0, 0, Instruction.KEEP)
    setting.pool.start(0, 12, 0.0)
    assert [kind for kind, *_ in setting.socket.sent] == [MessageKind.ORDERS, MessageKind.START]


def test_a_version_is_placed_where_a_dead_worker_had_its_point(setting):
    """A host with workers that come and go needs no more slots than it has workers at a time."""
    slots = []
    for ticket in range(6):
        setting.versions[ticket] = ticket
        setting.channels[0].send(ticket, 0, 0, Instruction.KEEP)
        setting.pool.flush()
        slots.append(POINT_ORDER.unpack(setting.socket.sent[-1][1])[4])
        assert setting.events(MessageKind.DIED, EXIT.pack(10 + 10 * ticket, 1)) == [Died(10 + 10 * ticket, 1)]
        worker = ticket + 2
        setting.channels[0] = setting.pool.start(worker, 20 + 10 * ticket, 0.0)
    assert set(slots) == {0}


def test_a_worker_that_was_started_again_keeps_its_point_when_its_first_process_dies(setting):
    setting.pool.kill(10)
    again = setting.pool.start(0, 12, 0.0)
    setting.versions |= {0: 0, 1: 1}
    again.send(0, 0, 0, Instruction.KEEP)
    setting.events(MessageKind.DIED, EXIT.pack(10, -9))
    setting.channels[1].send(1, 0, 0, Instruction.KEEP)
    setting.pool.flush()
    orders = POINT_ORDER.iter_unpack(setting.socket.sent[-1][1])
    assert [slot for *_, slot, _ in orders] == [0, 1]


# Where gradients are received


def test_gradients_are_received_into_the_slots_of_their_workers(setting):
    content = (
        report(0, 1)
        + report(0, 1, ReportKind.TRAINING_LOSS, math.nan)
        + report(0, 1, ReportKind.LOADING)
        + report(0, 0)
    )
    slots = setting.gateway.gradient_slots(HOST, MessageKind.REPORTS, content, 2)
    assert [slot is setting.gradients[worker] for slot, worker in zip(slots, [1, 0], strict=True)] == [True, True]


def test_gradients_of_a_killed_process_are_received_elsewhere(setting):
    """The worker may have been started on another machine, which delivers into the worker's slot."""
    setting.pool.kill(10)
    late, other = setting.gateway.gradient_slots(HOST, MessageKind.REPORTS, report(0, 0) + report(0, 1), 2)
    assert late is not setting.gradients[0]
    assert late.shape == (5,)
    assert other is setting.gradients[1]
    setting.pool.start(0, 12, 0.0)
    [slot] = setting.gateway.gradient_slots(HOST, MessageKind.REPORTS, report(0, 0), 1)
    assert slot is setting.gradients[0]


def test_an_order_to_compute_a_gradient_of_another_worker_has_a_point_and_its_answer_a_vector(setting):
    """The version of such an order is known by a number below 0."""
    setting.versions |= {5: 0, -1: 0}
    setting.channels[0].send(5, 0, 0, Instruction.KEEP)
    setting.channels[1].send(-1, 3, 0, Instruction.AUDIT + 0)
    setting.pool.flush()
    assert setting.orders() == [(2, 1)], "both are at one version, which is sent once"
    [reports] = setting.events(MessageKind.REPORTS, report(-1, 1, ReportKind.AUDITED), [np.ones(5)])
    assert reports.gradients[1].tolist() == [1.0] * 5


def test_a_host_cannot_report_for_a_worker_whose_process_was_killed_there(setting):
    """The worker may run on another host by now; its tickets can be guessed."""
    setting.pool.kill(10)
    content = report(7, 0) + report(8, 1)
    [reports] = setting.events(MessageKind.REPORTS, content, [np.zeros(5), np.ones(5)])
    assert reports.records == report(8, 1)
    setting.events(MessageKind.DETAILS, details(0, 7, ["KeyError", "text"]))
    assert setting.mailbox.details(0, 7) is None
    setting.pool.start(0, 12, 0.0)
    [reports] = setting.events(MessageKind.REPORTS, content, [np.zeros(5), np.ones(5)])
    assert reports.records == content


@pytest.mark.parametrize(
    ("identity", "kind", "content", "count"),
    [
        (HOST, MessageKind.REPORTS, report(0, 5), 1),
        (HOST, MessageKind.REPORTS, report(0, 1), 2),
        (HOST, MessageKind.REPORTS, b"odd", 1),
        (HOST, MessageKind.DETAILS, report(0, 1), 1),
        (STRANGER, MessageKind.REPORTS, report(0, 1), 1),
    ],
)
def test_other_gradients_are_not_received(setting, identity, kind, content, count):
    with pytest.raises(ProtocolError):
        setting.gateway.gradient_slots(identity, kind, content, count)


# What is wrong


def details(*values):
    return json.dumps(values).encode()


WRONG = {
    "a worker of another host": (MessageKind.REPORTS, report(0, 5), [np.ones(5)]),
    "another host's process leaves": (MessageKind.REPORTS, report(12, 1, ReportKind.LEAVING), []),
    "another worker's process leaves": (MessageKind.REPORTS, report(10, 1, ReportKind.LEAVING), []),
    "a gradient is missing": (MessageKind.REPORTS, report(0, 1), []),
    "half a report": (MessageKind.REPORTS, report(0, 1)[:-1], [np.ones(5)]),
    "a loss": (MessageKind.REPORTS, report(0, 1, ReportKind.LOSS), []),
    "an unknown kind of report": (MessageKind.REPORTS, report(0, 1, 77), []),
    "it began at no time": (MessageKind.REPORTS, report(0, 1, started=math.nan), [np.ones(5)]),
    "it took forever": (MessageKind.REPORTS, report(0, 1, seconds=math.inf), [np.ones(5)]),
    "it took less than nothing": (MessageKind.REPORTS, report(0, 1, seconds=-1.0), [np.ones(5)]),
    "half a death": (MessageKind.DIED, EXIT.pack(10, 0)[:-1], []),
    "the death of another host's process": (MessageKind.DIED, EXIT.pack(99, 0), []),
    "a death with a vector": (MessageKind.DIED, EXIT.pack(10, 0), [np.ones(5)]),
    "a clock that is ahead of all": (MessageKind.READY, AHEAD.pack(math.inf), []),
    "half a clock": (MessageKind.READY, b"x", []),
    "half a request for the time": (MessageKind.ASK_TIME, b"x", []),
    "details that are not JSON": (MessageKind.DETAILS, b"{", []),
    "details that are not UTF-8": (MessageKind.DETAILS, b"\xff", []),
    "details that are nested": (MessageKind.DETAILS, b"[" * 100_000, []),
    "a number instead of details": (MessageKind.DETAILS, b"3", []),
    "details of another host's worker": (MessageKind.DETAILS, details(5, 0, ["KeyError", "text"]), []),
    "details of the evaluator": (MessageKind.DETAILS, details(-1, 0, ["KeyError", "text"]), []),
    "details of no worker": (MessageKind.DETAILS, details(None, 0, ["KeyError", "text"]), []),
    "an unhashable worker": (MessageKind.DETAILS, details([], 0, ["KeyError", "text"]), []),
    "three details": (MessageKind.DETAILS, details(1, 0, ["KeyError", "text", 0]), []),
    "an error without a kind": (MessageKind.DETAILS, details(1, 0, [0, "text"]), []),
    "an unknown dtype": (MessageKind.DETAILS, details(1, 0, ["float99", [3]]), []),
    "a dtype that is not a name": (MessageKind.DETAILS, details(1, 0, ["(", [3]]), []),
    "a large dtype": (MessageKind.DETAILS, details(1, 0, ["V1000000", [3]]), []),
    "a negative shape": (MessageKind.DETAILS, details(1, 0, ["float64", [-3]]), []),
    "a huge shape": (MessageKind.DETAILS, details(1, 0, ["float64", [2**62, 2**62]]), []),
    "a shape that is a number": (MessageKind.DETAILS, details(1, 0, ["float64", 3]), []),
    "a shape of texts": (MessageKind.DETAILS, details(1, 0, ["float64", ["3"]]), []),
    "a shape with many axes": (MessageKind.DETAILS, details(1, 0, ["float64", [1] * 100]), []),
}


@pytest.mark.parametrize(("kind", "content", "vectors"), WRONG.values(), ids=WRONG)
def test_a_host_that_sends_something_wrong_is_disconnected(setting, kind, content, vectors):
    [event] = setting.events(kind, content, vectors)
    assert isinstance(event, Disconnected)
    assert event.wrong
    assert setting.socket.disconnected == [HOST]
    assert HOST not in setting.gateway.pools


def test_a_host_that_asks_for_more_than_it_reads_is_disconnected(setting):
    setting.socket.waiting = MOST_QUEUED
    assert setting.events(MessageKind.ASK_TIME, CLOCK.pack(4.0, 0.0)) == []
    setting.socket.waiting += 1
    [event] = setting.events(MessageKind.ASK_TIME, CLOCK.pack(4.0, 0.0))
    assert event == Disconnected(HOST, "it asks for more than it reads", wrong=True)


def test_a_message_in_transit_of_a_killed_process_or_an_ended_host_is_received_elsewhere(setting):
    setting.pool.kill(99)
    assert setting.socket.detached == []
    setting.pool.kill(10)
    assert setting.socket.detached == [HOST]
    setting.pool.end()
    setting.pool.end()
    assert setting.socket.detached == [HOST, HOST]
    assert [kind for kind, *_ in setting.socket.sent].count(MessageKind.END) == 1


def test_a_host_that_was_given_up_is_disconnected(setting):
    assert setting.events(MessageKind.HEARTBEAT, identity=STRANGER) == []
    assert setting.socket.disconnected == [STRANGER]


# What is right


def test_details_are_kept_for_the_report_that_announces_them(setting):
    assert setting.events(MessageKind.DETAILS, details(0, 7, ["KeyError", "text"])) == []
    assert setting.events(MessageKind.DETAILS, details(1, 8, ["float32", [3, 2]])) == []
    assert setting.mailbox.details(0, 7) == ("KeyError", "    text")
    assert setting.mailbox.details(1, 8) == ("float32", (3, 2))
    [event] = setting.events(MessageKind.REPORTS, report(7, 0, ReportKind.ERROR))
    assert event == Reports(report(7, 0, ReportKind.ERROR), {})


def test_a_text_of_a_host_cannot_change_the_terminal_or_look_like_a_line_of_ours(setting):
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e\u2028\nnowait: the run is over\n\tdone é ß 中"
    shown = "\ufffd]0;owned\ufffd\ufffd[2J\ufffd31m\ufffd\ufffd\ufffd\n    nowait: the run is over\n        done é ß 中"
    setting.events(MessageKind.DETAILS, details(0, 7, [evil, evil]))
    assert setting.mailbox.details(0, 7) == (shown, f"    {shown}")
    assert setting.events(MessageKind.FAILED, evil.encode() + b"\xff") == [Failed(HOST, f"{shown}\ufffd")]


def test_a_host_becomes_ready_once(setting):
    assert setting.events(MessageKind.READY, AHEAD.pack(2.5)) == [Ready(HOST)]
    assert setting.events(MessageKind.READY, AHEAD.pack(9.0)) == []
    setting.pool.start(3, 13, 1.0)
    assert START.unpack(setting.socket.sent[-1][1]) == (3, 13, 3.5), "the run began then on the host's clock"


def test_other_messages_are_answered_or_passed_on(setting):
    assert setting.events(MessageKind.HEARTBEAT) == []
    assert setting.events(MessageKind.ASK_TIME, CLOCK.pack(4.0, 0.0)) == []
    kind, content, _ = setting.socket.sent[-1]
    assert (kind, CLOCK.unpack(content)[0]) == (MessageKind.TIME, 4.0)
    assert setting.events(MessageKind.FAILED, b"no module \xff") == [Failed(HOST, "no module \ufffd")]
    assert setting.events(99, b"x") == [Other(HOST, Message(99, b"x", ()))]


def test_a_worker_process_says_that_it_leaves(setting):
    record = report(11, 1, ReportKind.LEAVING)
    assert setting.events(MessageKind.REPORTS, record) == [Reports(record, {})]


def test_a_host_says_when_it_leaves(setting):
    [event] = setting.events(MessageKind.LEAVING, GRACE.pack(30.0))
    assert (event.identity, grace_seconds(event.message.content)) == (HOST, 30.0)


@pytest.mark.parametrize("content", [b"", GRACE.pack(-1.0), GRACE.pack(math.nan), GRACE.pack(math.inf)])
def test_a_time_to_leave_is_a_number_of_seconds(content):
    with pytest.raises(ProtocolError):
        grace_seconds(content)
