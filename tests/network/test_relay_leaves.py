"""A host that leaves tells the server once, and exits when its time is over."""

import contextlib
import select
import socket
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography")

from nowait.engines.network import relay as module
from nowait.engines.network.relay import LEFT, RUN_IS_OVER, Relay
from nowait.engines.processes.mailbox import Mailbox
from nowait.engines.processes.pool import Leaves
from nowait.engines.processes.resources import SharedResources
from nowait.fleet.wire.messages import GRACE, Message, MessageKind
from nowait.fleet.wire.records import GRACE_SECONDS


class Pool:
    """In the place of a worker pool: returns the events of a test."""

    def __init__(self, control):
        self.control, self.events, self.ready = control, [], True

    has_messages = property(lambda self: bool(self.events))

    def receive(self):
        events, self.events = self.events, []
        return events


@pytest.fixture
def setting(monkeypatch):
    """A relay without workers, what it sends, and its clock."""
    clock, sent = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.closing(Mailbox.open()) as mailbox, contextlib.ExitStack() as stack:
        server = SimpleNamespace(
            fd=theirs.fileno(),
            events=select.POLLIN,
            pending=lambda: False,
            receive=lambda: None,
            send=lambda kind, content, vectors: sent.append((kind, content)),
        )
        pool = Pool(ours)
        relay = Relay(server, pool, SharedResources(None, None, mailbox, None))
        stack.callback(relay.close)
        yield SimpleNamespace(relay=relay, pool=pool, sent=sent, clock=clock)


def test_it_says_once_that_it_leaves_and_exits_when_its_time_is_over(setting):
    assert not setting.relay.leaves
    setting.relay.leave(30.0)
    setting.relay.leave(1.0)
    assert setting.relay.leaves
    assert setting.relay._receive() == "", "it does not wait for a heartbeat"
    assert setting.sent == [(MessageKind.LEAVING, GRACE.pack(30.0))]
    setting.pool.events.append(Leaves())
    assert setting.relay._receive() == ""
    assert len(setting.sent) == 1
    setting.clock.now += 31.0
    setting.pool.events.append(Leaves())
    assert setting.relay._receive() == LEFT


def test_a_signal_to_its_zygote_is_one_to_the_host(setting):
    setting.pool.events.append(Leaves())
    assert setting.relay._receive() == ""
    assert setting.sent == [(MessageKind.LEAVING, GRACE.pack(GRACE_SECONDS))]


def test_a_host_that_is_to_leave_while_it_loads_the_problem_exits_at_once(setting):
    setting.pool.ready = False
    setting.relay.leave(30.0)
    assert setting.relay.run() == LEFT


def test_a_run_that_is_over_while_a_host_loads_the_problem_is_no_failure(setting):
    setting.pool.ready = False
    setting.relay._server.receive = lambda: Message(MessageKind.END, b"", ())
    assert setting.relay.run() == RUN_IS_OVER
    assert setting.sent == []
