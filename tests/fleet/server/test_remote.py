"""What hosts send: what belongs to their workers is accepted, anything else ends their connection, not the run."""

import contextlib
import json
import math
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from nowait.core import Ticket
from nowait.fleet.host.host import Mailbox
from nowait.fleet.server.events import ProcessDied
from nowait.fleet.server.remote import MESSAGES_AT_ONCE, MOST_QUEUED, Exchange, RemoteHost
from nowait.fleet.server.vectors import ServerVectors
from nowait.fleet.wire.connection import DisconnectedError
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.messages import (
    AHEAD,
    CLOCK,
    EXIT,
    GRACE,
    POINT_ORDER,
    RUNNING,
    START,
    Message,
    MessageKind,
    grace_seconds,
)
from nowait.fleet.wire.records import REPORT, Instruction, ReportKind
from nowait.fleet.wire.secure import ProtocolError
from nowait.fleet.wire.shared import SharedSlots
from nowait.problems.encodings import AS_THEY_ARE

WRONG_KIND = 99


class RecordingLink:
    """In the place of a connection: keeps what is sent, and returns the messages of a test."""

    fd = -1

    def __init__(self):
        self.sent, self.arrived, self.waiting = [], deque(), 0
        self.closed, self.detached, self.breaks = False, 0, False
        self.connection = self

    queued = property(lambda self: range(self.waiting))
    has_input = property(lambda self: bool(self.arrived))

    def receive(self):
        return self.arrived.popleft() if self.arrived else None

    def detach(self):
        self.detached += 1

    def send(self, kind, content=b"", vectors=()):
        self.sent.append((kind, content, len(vectors)))

    def write(self):
        if self.breaks:
            raise DisconnectedError("it was cut")
        return True

    def end(self):
        return True

    def close(self):
        self.closed = True


class Setting:
    """A host that is ready, with the workers 0 and 1; and what it makes the server hear."""

    def __init__(self, points, gradients, mailbox, *, ready=True):
        self.gradients, self.mailbox, self.events, self.hub = gradients, mailbox, [], Hub()
        self.link, self.during = RecordingLink(), lambda: None
        owner = SimpleNamespace(ready=lambda host: self.events.append("ready"), on_message=self._other, lost=self._lost)
        vectors = ServerVectors(points, gradients, AS_THEY_ARE)
        exchange = Exchange(self.hub, vectors, mailbox.add_details, self.events.append, self._take, owner)
        self.forgotten = []
        self.host = RemoteHost(exchange, self.link, b"1", self.forgotten.append)
        if ready:
            self.receives(MessageKind.READY, AHEAD.pack(0.0))
            self.sends = [self.host.start(number, 10 + number, 0.0) for number in range(2)]
        self.link.sent.clear()
        self.events.clear()

    def _take(self, records, gradients):
        self.events.append((records, dict(gradients)))
        self.during()

    def _other(self, host, message):
        self.events.append(message)
        if message.kind == WRONG_KIND:
            raise ProtocolError("an unknown kind")

    def _lost(self, host, cause, *, wrong, lasting):
        self.events.append(("lost", cause, wrong, lasting))

    def receives(self, kind, content=b"", vectors=()):
        """Let a message arrive; returns what the server hears because of it."""
        self.events.clear()
        self.link.arrived.append(Message(kind, content, vectors))
        self.host.read()
        return list(self.events)

    def orders(self):
        """The number of orders and of points in each batch that was sent."""
        return [(len(content) // POINT_ORDER.size, points) for _, content, points in self.link.sent]

    def kinds(self):
        return [kind for kind, *_ in self.link.sent]


@pytest.fixture
def parts():
    points, gradients = SharedSlots(5, "<f8"), SharedSlots(5, "<f8")
    with contextlib.closing(points), contextlib.closing(gradients), contextlib.closing(Mailbox.open()) as mailbox:
        for _ in range(2):
            points.allocate()
        yield points, gradients, mailbox


@pytest.fixture
def setting(parts):
    return Setting(*parts)


def report(ticket, worker, kind=ReportKind.GRADIENT, started=0.0, seconds=0.0):
    return REPORT.pack(ticket, started, seconds, worker, kind)


def send(setting, worker, ticket, version, instruction=Instruction.KEEP, slot=0):
    setting.sends[worker](Ticket(ticket, worker, version, ticket), slot, instruction)


# Reports and orders


def test_every_message_of_reports_gets_its_own_reply(setting):
    """A relay that misses replies stops reading its workers' reports."""
    for ticket in range(4):
        worker = ticket % 2
        setting.during = lambda worker=worker, ticket=ticket: (
            send(setting, worker, ticket + 9, ticket, slot=worker) if ticket < 3 else None
        )
        [(_, gradients)] = setting.receives(MessageKind.REPORTS, report(ticket, worker), [np.ones(5)])
        assert list(gradients) == [worker]
    assert setting.kinds() == [MessageKind.REPLY] * 4
    assert setting.orders() == [(1, 1)] * 3 + [(0, 0)]


def test_orders_that_nobody_asked_for_are_no_reply(setting):
    """The relay counts replies, so that it does not send more than the server can take (race 12)."""
    send(setting, 0, 5, 0)
    send(setting, 1, 6, 0)
    assert setting.link.sent == []
    setting.hub.wait(0.0)
    assert setting.kinds() == [MessageKind.ORDERS]
    assert setting.orders() == [(2, 1)]
    setting.receives(MessageKind.REPORTS, report(5, 0), [np.ones(5)])
    assert setting.kinds() == [MessageKind.ORDERS, MessageKind.REPLY]
    setting.hub.wait(0.0)
    assert len(setting.link.sent) == 2


def test_a_process_that_starts_while_reports_are_handled_does_not_make_two_replies(setting):
    setting.during = lambda: setting.host.start(7, 17, 0.0)
    setting.receives(MessageKind.REPORTS, report(5, 0), [np.ones(5)])
    assert setting.kinds() == [MessageKind.REPLY, MessageKind.START]


def test_a_host_that_is_given_up_because_of_its_reports_gets_no_reply_to_them(setting):
    """After the last frame nothing can be sent: the connection would raise, and end the run."""
    setting.during = lambda: setting.host.end("this host was given up: worker 0 sent NaN")
    setting.receives(MessageKind.REPORTS, report(0, 0), [np.ones(5)])
    assert setting.kinds() == [MessageKind.END]


def test_a_point_that_the_host_has_is_not_sent_again(setting):
    """Both workers get version 7, then worker 0 gets it again, then version 8, then both do."""
    for ticket, (worker, version) in enumerate([(0, 7), (1, 7), (0, 7), (0, 8), (0, 8), (1, 8)]):
        setting.during = lambda worker=worker, ticket=ticket, version=version: send(setting, worker, ticket, version)
        setting.receives(MessageKind.REPORTS, report(ticket, worker), [np.ones(5)])
    assert setting.orders() == [(1, 1), (1, 0), (1, 0), (1, 1), (1, 0), (1, 0)]


def test_orders_are_sent_before_the_start_of_another_process(setting):
    """The order is for a process that the host has: it must not reach the one that is started after it."""
    send(setting, 0, 0, 0)
    setting.host.start(0, 12, 0.0)
    assert setting.kinds() == [MessageKind.ORDERS, MessageKind.START]


def test_a_version_is_placed_where_a_dead_worker_had_its_point(setting):
    """A host with workers that come and go needs no more slots than it has workers at a time."""
    slots = []
    for ticket in range(6):
        send(setting, 0, ticket, ticket)
        setting.host.flush()
        slots.append(POINT_ORDER.unpack(setting.link.sent[-1][1])[4])
        serial = 10 + 10 * ticket
        assert setting.receives(MessageKind.DIED, EXIT.pack(serial, 1)) == [ProcessDied(serial, 1)]
        worker = ticket + 2
        setting.sends[0] = setting.host.start(worker, serial + 10, 0.0)
    assert set(slots) == {0}


def test_a_worker_that_was_started_again_keeps_its_point_when_its_first_process_dies(setting):
    """A host came back with a process that nobody wanted: it is killed, and another one is started for its worker."""
    setting.host.kill(10)
    setting.sends[0] = setting.host.start(0, 12, 0.0)
    send(setting, 0, 0, 0)
    setting.receives(MessageKind.DIED, EXIT.pack(10, -9))
    send(setting, 1, 1, 1)
    setting.host.flush()
    orders = POINT_ORDER.iter_unpack(setting.link.sent[-1][1])
    assert [slot for *_, slot, _ in orders] == [0, 1]


def test_the_orders_of_a_message_that_cannot_be_sent_are_dropped_and_the_loss_is_told_later(setting):
    """Whoever sends executes what the fleet has decided, and must not be interrupted by an event."""
    setting.link.breaks = True
    send(setting, 0, 5, 0)
    setting.host.flush()
    assert setting.events == []
    setting.hub.wait(0.0)
    assert setting.events == [("lost", "it was cut", False, False)]
    assert setting.forgotten == [setting.host]
    send(setting, 0, 6, 0)
    setting.host.kill(10)
    setting.hub.wait(0.0)
    assert setting.kinds() == [MessageKind.ORDERS]


def test_a_host_that_sends_much_lets_others_have_their_turn(setting):
    for number in range(150):
        setting.link.arrived.append(Message(MessageKind.LEAVING, str(number).encode(), ()))
    setting.host.read()
    assert len(setting.events) == MESSAGES_AT_ONCE
    setting.hub.wait(0.0)
    assert len(setting.events) == 2 * MESSAGES_AT_ONCE
    setting.hub.wait(0.0)
    assert [int(message.content) for message in setting.events] == list(range(150))


# Where gradients are received


def test_gradients_are_received_into_the_slots_of_their_workers(setting):
    content = (
        report(0, 1)
        + report(0, 1, ReportKind.TRAINING_LOSS, math.nan)
        + report(0, 1, ReportKind.LOADING)
        + report(0, 0)
    )
    slots = setting.host.destinations(MessageKind.REPORTS, content, 2)
    assert [slot is setting.gradients[worker] for slot, worker in zip(slots, [1, 0], strict=True)] == [True, True]
    [(records, gradients)] = setting.receives(MessageKind.REPORTS, content, slots)
    assert records == content
    assert {worker: gradient is setting.gradients[worker] for worker, gradient in gradients.items()} == {
        0: True,
        1: True,
    }


def test_the_gradients_of_a_host_that_was_ended_are_received_elsewhere(setting):
    """Its workers may have been started on another machine, which delivers into their slots."""
    setting.host.end("given up")
    late, other = setting.host.destinations(MessageKind.REPORTS, report(0, 0) + report(0, 1), 2)
    for gradient in (late, other):
        assert not any(gradient is setting.gradients[worker] for worker in range(2))
        assert gradient.shape == (5,)


def test_an_order_to_compute_a_gradient_of_another_worker_has_a_point_and_its_answer_a_vector(setting):
    """The ticket of such an order has a number below 0, the other worker, and its version."""
    send(setting, 0, 5, 4)
    setting.sends[1](Ticket(-1, 0, 4, 3), 0, Instruction.AUDIT + 0)
    setting.host.flush()
    assert setting.orders() == [(2, 1)], "both are at one version, which is sent once"
    first, second = POINT_ORDER.iter_unpack(setting.link.sent[-1][1])
    assert (first[2], second[:4]) == (0, (-1, 3, 1, Instruction.AUDIT))
    [(_, gradients)] = setting.receives(MessageKind.REPORTS, report(-1, 1, ReportKind.AUDITED), [np.ones(5)])
    assert gradients[1].tolist() == [1.0] * 5


@pytest.mark.parametrize(
    ("kind", "content", "count"),
    [
        (MessageKind.REPORTS, report(0, 5), 1),
        (MessageKind.REPORTS, report(0, 1), 2),
        (MessageKind.REPORTS, b"odd", 1),
        (MessageKind.DETAILS, report(0, 1), 1),
    ],
)
def test_other_gradients_are_not_received(setting, kind, content, count):
    with pytest.raises(ProtocolError):
        setting.host.destinations(kind, content, count)


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
    "a checksum that is no number": (MessageKind.REPORTS, report(0, 1, ReportKind.CHECKSUM, started=math.nan), []),
    "a checksum without an end": (MessageKind.REPORTS, report(0, 1, ReportKind.CHECKSUM, started=math.inf), []),
    "half a death": (MessageKind.DIED, EXIT.pack(10, 0)[:-1], []),
    "the death of another host's process": (MessageKind.DIED, EXIT.pack(99, 0), []),
    "a death with a vector": (MessageKind.DIED, EXIT.pack(10, 0), [np.ones(5)]),
    "a clock that is ahead of all": (MessageKind.READY, AHEAD.pack(math.inf), []),
    "half a clock": (MessageKind.READY, b"x", []),
    "half a process": (MessageKind.READY, AHEAD.pack(0.0) + b"x", []),
    "two processes for one worker": (MessageKind.READY, AHEAD.pack(0.0) + RUNNING.pack(1, 3) + RUNNING.pack(2, 3), []),
    "one process for two workers": (MessageKind.READY, AHEAD.pack(0.0) + RUNNING.pack(1, 3) + RUNNING.pack(1, 4), []),
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
    "what its owner does not accept": (WRONG_KIND, b"", []),
}


@pytest.mark.parametrize(("kind", "content", "vectors"), WRONG.values(), ids=WRONG)
def test_a_host_that_sends_something_wrong_is_disconnected(setting, kind, content, vectors):
    event = setting.receives(kind, content, vectors)[-1]
    assert (event[0], event[2:]) == ("lost", (True, False))
    assert setting.link.closed
    assert setting.forgotten == [setting.host]


def test_a_host_that_asks_for_more_than_it_reads_is_disconnected(setting):
    setting.link.waiting = MOST_QUEUED
    assert setting.receives(MessageKind.ASK_TIME, CLOCK.pack(4.0, 0.0)) == []
    setting.link.waiting += 1
    event = ("lost", "it asks for more than it reads", True, False)
    assert setting.receives(MessageKind.ASK_TIME, CLOCK.pack(4.0, 0.0)) == [event]


def test_after_a_host_was_closed_nothing_more_comes_from_it(setting):
    """Its second message was read together with the first one."""
    setting.during = setting.host.close
    for ticket in (1, 2):
        setting.link.arrived.append(Message(MessageKind.REPORTS, report(ticket, 0, ReportKind.READY), ()))
    setting.host.read()
    assert setting.events == [(report(1, 0, ReportKind.READY), {})]


def test_a_message_in_transit_of_an_ended_host_is_received_elsewhere(setting):
    setting.host.kill(10)
    assert setting.link.detached == 0, "its worker starts elsewhere only after its death was reported"
    setting.host.end()
    setting.host.end()
    assert setting.link.detached == 1
    assert setting.kinds().count(MessageKind.END) == 1


def test_an_ended_host_may_go_on_sending_until_it_has_read_that_and_nothing_of_it_is_used(setting):
    """Closing its connection at once would lose the message that tells it to exit (race 8)."""
    setting.host.end("this host was drained")
    for message in ((MessageKind.REPORTS, report(0, 0), [np.ones(5)]), (WRONG_KIND, b"", [])):
        assert setting.receives(*message) == []
    assert not setting.link.closed
    setting.host.close()
    assert setting.events == []


# What is right


def test_details_are_kept_for_the_report_that_announces_them(setting):
    assert setting.receives(MessageKind.DETAILS, details(0, 7, ["KeyError", "text"])) == []
    assert setting.receives(MessageKind.DETAILS, details(1, 8, ["float32", [3, 2]])) == []
    assert setting.mailbox.details(0, 7) == ("KeyError", "    text")
    assert setting.mailbox.details(1, 8) == ("float32", (3, 2))
    record = report(7, 0, ReportKind.ERROR)
    assert setting.receives(MessageKind.REPORTS, record) == [(record, {})]


def test_a_text_of_a_host_cannot_change_the_terminal_or_look_like_a_line_of_ours(setting):
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e\u2028\nnowait: the run is over\n\tdone é ß 中"
    shown = "\ufffd]0;owned\ufffd\ufffd[2J\ufffd31m\ufffd\ufffd\ufffd\n    nowait: the run is over\n        done é ß 中"
    setting.receives(MessageKind.DETAILS, details(0, 7, [evil, evil]))
    assert setting.mailbox.details(0, 7) == (shown, f"    {shown}")
    event = ("lost", f"{shown}\ufffd", False, True)
    assert setting.receives(MessageKind.FAILED, evil.encode() + b"\xff") == [event]


def test_a_host_becomes_ready_once(parts):
    setting = Setting(*parts, ready=False)
    assert setting.receives(MessageKind.READY, AHEAD.pack(2.5)) == ["ready"]
    assert setting.receives(MessageKind.READY, AHEAD.pack(9.0)) == []
    setting.host.start(3, 13, 1.0)
    assert START.unpack(setting.link.sent[-1][1]) == (3, 13, 3.5), "the run began then on the host's clock"


def test_other_messages_are_answered_or_passed_on(setting):
    assert setting.receives(MessageKind.HEARTBEAT) == []
    assert setting.receives(MessageKind.ASK_TIME, CLOCK.pack(4.0, 0.0)) == []
    kind, content, _ = setting.link.sent[-1]
    assert (kind, CLOCK.unpack(content)[0]) == (MessageKind.TIME, 4.0)
    assert setting.receives(MessageKind.DRAIN, b"x") == [Message(MessageKind.DRAIN, b"x", ())]
    assert setting.receives(MessageKind.FAILED, b"no module \xff") == [("lost", "no module \ufffd", False, True)]


def test_a_worker_process_says_that_it_leaves(setting):
    record = report(11, 1, ReportKind.LEAVING)
    assert setting.receives(MessageKind.REPORTS, record) == [(record, {})]


@pytest.mark.parametrize("content", [b"", GRACE.pack(-1.0), GRACE.pack(math.nan), GRACE.pack(math.inf)])
def test_a_time_to_leave_is_a_number_of_seconds(content):
    with pytest.raises(ProtocolError):
        grace_seconds(content)


# A host that comes back with its processes


def ready(*running):
    return AHEAD.pack(2.5) + b"".join(RUNNING.pack(serial, number) for serial, number in running)


def test_a_host_that_comes_back_has_the_processes_that_still_run_under_their_serial_numbers(parts):
    setting = Setting(*parts, ready=False)
    setting.host.processes = {7: 0, 8: 1, 9: 2}
    assert setting.receives(MessageKind.READY, ready((7, 0), (9, 2))) == ["ready"]
    assert setting.host.processes == {7: 0, 9: 2}
    order = setting.host.adopt(2, 9, 1.0)
    assert [(kind, START.unpack(content)) for kind, content, _ in setting.link.sent] == [
        (MessageKind.ADOPT, (2, 9, 3.5))
    ]
    order(Ticket(30, 2, 4, 5), 0, Instruction.FORGET)
    setting.host.flush()
    assert POINT_ORDER.unpack(setting.link.sent[-1][1])[:3] == (30, 5, 2)
    [(_, gradients)] = setting.receives(MessageKind.REPORTS, report(30, 2), [np.ones(5)])
    assert list(gradients) == [2]
    assert setting.receives(MessageKind.DIED, EXIT.pack(7, -9)) == [ProcessDied(7, -9)]


@pytest.mark.parametrize("running", [(7, 1), (8, 0), (99, 5)], ids=str)
def test_a_host_cannot_come_back_with_processes_that_it_did_not_have(parts, running):
    """They may be those of workers on other hosts."""
    setting = Setting(*parts, ready=False)
    setting.host.processes = {7: 0}
    [event] = setting.receives(MessageKind.READY, ready(running))
    assert (event[0], event[2:]) == ("lost", (True, False))


def test_nothing_is_reported_by_a_host_that_is_not_ready(parts):
    for message in (
        (MessageKind.REPORTS, report(0, 0), [np.ones(5)]),
        (MessageKind.DIED, EXIT.pack(7, 0), []),
        (MessageKind.DETAILS, details(0, 7, ["KeyError", "text"]), []),
    ):
        setting = Setting(*parts, ready=False)
        setting.host.processes = {7: 0}
        [event] = setting.receives(*message)
        assert (event[0], event[2:]) == ("lost", (True, False))
