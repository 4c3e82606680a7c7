"""The server's side of hosts that connect: who may join, what they get, and that wrong ones do no harm."""

import base64
import contextlib
import json
import logging
import select
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from time import monotonic

import pytest

pytest.importorskip("cryptography")

import nowait as nw
import nowait.engines.listen.client as client_module
import nowait.engines.listen.transport as transport_module
from nowait.engines.fingerprint import Fingerprint
from nowait.engines.listen.client import Client, ClientSettings, RefusedByServerError, ask_to_drain
from nowait.engines.listen.table import SECONDS_TO_DELIVER, SECONDS_TO_EXIT
from nowait.engines.listen.transport import SECONDS_BETWEEN_WARNINGS, SPARE_MESSAGES, ListenTransport
from nowait.engines.network.relay import DRAINED
from nowait.engines.processes.local import LocalPools
from nowait.engines.processes.mailbox import Mailbox
from nowait.engines.processes.resources import SharedResources
from nowait.engines.workers.transport import Gone, Leaving, Opened
from nowait.fleet.wire.connection import Address, DisconnectedError, HostSocket, NotAcceptedError
from nowait.fleet.wire.messages import (
    AHEAD,
    PIECE_REQUEST,
    PIECES_IN_TRANSIT,
    Format,
    Joining,
    MessageKind,
    Welcome,
    drain_request,
    library_version,
    python_version,
)
from nowait.fleet.wire.records import GRACE_SECONDS
from nowait.fleet.wire.secure import ProtocolError, ServerKey
from nowait.fleet.wire.shared import Payload, SharedSlots

NOWHERE = Address("127.0.0.1", 1, ServerKey.new().for_hosts(), encrypt=True)
KEY, DRAIN_KEY = ServerKey.new(), bytes(range(32, 64))
JOINING = Joining(library_version(), python_version(), "process", "machine", 3)
OWN = Fingerprint(5, "float64", 1.0, (1.0,) + 7 * (0.0,))
OTHER = replace(OWN, direction=(-1.0,) + 7 * (0.0,))
ALIKE = replace(OWN, gradient_norm=1.01)


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def transport(stack, monkeypatch):
    """A transport without the process of the evaluator."""
    monkeypatch.setattr(ListenTransport, "reopen", lambda self: None)
    monkeypatch.setattr(LocalPools, "close", lambda self: None)
    points, gradients = (stack.enter_context(contextlib.closing(SharedSlots(5, "<f8"))) for _ in range(2))
    mailbox = stack.enter_context(contextlib.closing(Mailbox.open()))
    payload = stack.enter_context(contextlib.closing(Payload([memoryview(b"a pickle")])))
    resources = SharedResources(points, gradients, mailbox, payload)
    listen = nw.Listen(port=0, host="127.0.0.1", key_file="key")
    transport = ListenTransport(
        listen, KEY, DRAIN_KEY, resources, lambda ticket: 0, memoryview(b"settings"), deterministic=True, log=None
    )
    transport.open()
    stack.callback(transport.close)
    return transport


def a_host(stack, transport, identity=b"1"):
    host = HostSocket.connect(transport._gateway.address, identity, Format(5, "<f8"), lambda *_: [])
    stack.callback(host.close, linger_seconds=0.0)
    return host


def readable(fds):
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(30_000)]


def exchange(transport, hosts, done):
    """Let all ends read until ``done(events, messages)``; None in place of a message: the connection is gone."""
    events, messages, hosts = [], [], list(hosts)
    while not done(events, messages):
        ready = readable([*transport.fds, *(host.fd for host in hosts)])
        assert ready, "nothing moves"
        events += transport.receive([fd for fd in ready if fd in transport.fds])
        for host in list(hosts):
            try:
                while (message := host.receive()) is not None:
                    messages.append(message)
            except DisconnectedError:
                messages.append(None)
                hosts.remove(host)
    return events, messages


def answer(transport, host):
    """Return the next message to a host; None if it is disconnected."""
    return exchange(transport, [host], lambda _, messages: messages)[1][0]


def joined(stack, transport, identity=b"1", joining=JOINING):
    host = a_host(stack, transport, identity)
    host.send(MessageKind.JOIN, joining.to_bytes())
    message = answer(transport, host)
    assert message.kind == MessageKind.WELCOME
    return host, Welcome.read(message.content)


def test_a_host_joins_gets_the_job_and_offers_workers(stack, transport):
    host, welcome = joined(stack, transport)
    assert (welcome.shapes, len(welcome.parts)) == (((5, "<f8"), (5, "<f8"), False), 3)
    host.send(MessageKind.SEND_JOB, PIECE_REQUEST.pack(1, 0))
    piece = answer(transport, host)
    assert piece.kind == MessageKind.JOB_PART
    assert piece.content[PIECE_REQUEST.size :].startswith(b"a pickle")
    host.send(MessageKind.READY, AHEAD.pack(0.0))
    events, _ = exchange(transport, [host], lambda events, _: events)
    assert events == [Opened(1, 3, distance=1, name="machine", label="machine")]


def test_a_host_that_connects_again_takes_the_place_of_its_earlier_connection(stack, transport):
    first, _ = joined(stack, transport, b"1")
    first.send(MessageKind.READY, AHEAD.pack(0.0))
    exchange(transport, [first], lambda events, _: events)
    second = a_host(stack, transport, b"2")
    second.send(MessageKind.JOIN, JOINING.to_bytes())
    events, messages = exchange(transport, [first, second], lambda _, messages: len(messages) == 2)
    assert events == [Gone(1, "the host machine is lost (it connected again)")]
    assert sorted(message.kind if message else 0 for message in messages) == [0, MessageKind.WELCOME]


def test_a_host_that_joins_twice_is_given_up_whenever_it_does(stack, transport):
    """The second time it waits for a comparison of problems, which is made later."""
    host, _ = joined(stack, transport)
    host.send(MessageKind.JOIN, replace(JOINING, problem=OWN).to_bytes())
    assert answer(transport, host) is None
    waiting = a_host(stack, transport, b"2")
    for problem in (OWN, OTHER):
        waiting.send(MessageKind.JOIN, replace(JOINING, problem=problem).to_bytes())
    assert answer(transport, waiting) is None
    transport._comparison.answered(astuple(OWN))
    assert list(transport.tick(1, 1)) == []


def test_what_a_comparison_finds_wrong_ends_a_host_and_not_the_run(stack, transport, monkeypatch):
    host = a_host(stack, transport)
    host.send(MessageKind.JOIN, replace(JOINING, problem=OWN).to_bytes())
    exchange(transport, [host], lambda *_: any(one.waits_for for one in transport._hosts.by_identity.values()))
    transport._comparison.answered(astuple(OWN))

    def joins(*_):
        raise ProtocolError("it is wrong")

    monkeypatch.setattr(transport._hosts, "joins", joins, raising=False)
    assert list(transport.tick(1, 1)) == []
    assert transport._hosts.by_identity == {}


def test_a_host_cannot_ask_for_the_whole_job_at_once(stack, transport, monkeypatch):
    host, _ = joined(stack, transport)
    monkeypatch.setattr(transport._gateway._socket, "queued", lambda _: PIECES_IN_TRANSIT + SPARE_MESSAGES + 1)
    host.send(MessageKind.SEND_JOB, PIECE_REQUEST.pack(1, 0))
    assert answer(transport, host) is None


def test_a_host_that_was_told_to_exit_has_some_seconds(stack, transport, monkeypatch):
    host, _ = joined(stack, transport)
    host.send(MessageKind.READY, AHEAD.pack(0.0))
    exchange(transport, [host], lambda events, _: events)
    transport.dismiss(1)
    assert transport._hosts.take_lingering(monotonic()) == []
    assert list(transport._hosts.dismissed) == [b"1"]
    monkeypatch.setattr(transport_module, "monotonic", lambda: monotonic() + SECONDS_TO_EXIT + 1)
    list(transport.tick(0, 1))
    assert transport._hosts.dismissed == {}
    assert b"1" not in transport._gateway._socket._links


def test_a_host_that_was_given_up_learns_why_and_may_not_join_again(stack, transport, caplog):
    host, _ = joined(stack, transport)
    host.send(MessageKind.READY, AHEAD.pack(0.0))
    exchange(transport, [host], lambda events, _: events)
    transport.dismiss(1, "worker 0 sent NaN")
    reason = "this host was given up: worker 0 sent NaN"
    message = answer(transport, host)
    assert (message.kind, message.content.decode()) == (MessageKind.END, reason)
    again = a_host(stack, transport, b"2")
    again.send(MessageKind.JOIN, JOINING.to_bytes())
    message = answer(transport, again)
    assert (message.kind, message.content.decode()) == (MessageKind.REFUSED, reason)


def test_a_worker_command_whose_host_was_given_up_ends_with_an_error():
    client = Client(ClientSettings(NOWHERE, workers=1, threads=1, retry_seconds=0.0))
    with pytest.raises(nw.WorkerFailedError, match="this host was given up: worker 0 sent NaN"):
        client._is_over("this host was given up: worker 0 sent NaN")


def test_a_transport_may_be_closed_twice(stack, transport):
    joined(stack, transport)
    transport.close()
    transport.close()


@pytest.mark.parametrize(
    ("other", "words"),
    [({"nowait": "0.0.1"}, ["0.0.1", library_version()]), ({"python": "2.7"}, ["2.7", python_version()])],
    ids=["nowait", "python"],
)
def test_a_host_with_another_version_is_told_both(stack, transport, other, words):
    host = a_host(stack, transport)
    host.send(MessageKind.JOIN, replace(JOINING, **other).to_bytes())
    message = answer(transport, host)
    assert message.kind == MessageKind.REFUSED
    for word in words:
        assert word in message.content.decode()


def test_a_host_that_is_refused_again_and_again_is_disconnected_each_time_and_logged_once(
    stack, transport, caplog, monkeypatch
):
    now = [monotonic()]
    monkeypatch.setattr(transport_module, "monotonic", lambda: now[0])
    for number in range(5):
        host = a_host(stack, transport, str(number).encode())
        for _ in range(2):
            host.send(MessageKind.JOIN, replace(JOINING, nowait="0.0.1", name=f"node{number}").to_bytes())
        _, messages = exchange(transport, [host], lambda _, messages: None in messages)
        assert [message and message.kind for message in messages] == [MessageKind.REFUSED, MessageKind.END, None]
    assert transport._hosts.by_identity == {}
    assert "the host node0 was refused" in caplog.text
    now[0] += SECONDS_BETWEEN_WARNINGS
    list(transport.tick(0, 1))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert warnings[1].startswith("the host node4 was refused")
    assert warnings[1].endswith("(and 3 more before it)")


def test_a_host_that_takes_workers_and_delivers_nothing_is_named(stack, transport, caplog, monkeypatch):
    now = [monotonic()]
    monkeypatch.setattr(transport_module, "monotonic", lambda: now[0])
    host, _ = joined(stack, transport, joining=replace(JOINING, workers=65_536))
    host.send(MessageKind.READY, AHEAD.pack(0.0))
    exchange(transport, [host], lambda events, _: events)
    record = transport._hosts.by_identity[b"1"]
    assert transport._hosts._longest_silence(record) == pytest.approx(15.0), "not longer because it offers many"
    for worker in range(2):
        transport.start(worker, worker + 1, 1, 0.0)
    for _ in range(2):
        now[0] += SECONDS_TO_DELIVER + 1
        transport._gateway.pools[b"1"].last_message = now[0]  # it sends heartbeats
        list(transport.tick(0, 2))
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("the host machine has run 2 workers for 31 s and has not delivered a gradient")
    assert warning.endswith("nowait drain machine")


WRONG = {
    "joining with nonsense": [(MessageKind.JOIN, b"\xff")],
    "joining with wrong types": [(MessageKind.JOIN, json.dumps({"nowait": 1}).encode())],
    "joining twice": [(MessageKind.JOIN, JOINING.to_bytes())] * 2,
    "workers before joining": [(MessageKind.READY, AHEAD.pack(0.0))],
    "the job before joining": [(MessageKind.SEND_JOB, PIECE_REQUEST.pack(0, 0))],
    "a job that there is not": [(MessageKind.JOIN, JOINING.to_bytes()), (MessageKind.SEND_JOB, b"\xff" * 16)],
    "half a request": [(MessageKind.JOIN, JOINING.to_bytes()), (MessageKind.SEND_JOB, b"1")],
    "an unknown message": [(99, b"")],
    "draining nonsense": [(MessageKind.DRAIN, b"[]")],
    "leaving before it is ready": [(MessageKind.JOIN, JOINING.to_bytes()), (MessageKind.LEAVING, bytes(8))],
    "a welcome": [(MessageKind.WELCOME, b"{}")],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_host_that_does_something_wrong_only_loses_its_connection(stack, transport, wrong):
    good, _ = joined(stack, transport, b"good", replace(JOINING, process="good"))
    bad = a_host(stack, transport, b"bad")
    for kind, content in WRONG[wrong]:
        bad.send(kind, content)
    events, _ = exchange(transport, [bad], lambda _, messages: None in messages)
    assert events == []
    good.send(MessageKind.READY, AHEAD.pack(0.0))
    events, _ = exchange(transport, [good], lambda events, _: events)
    assert events == [Opened(1, 3, distance=1, name="machine", label="machine")]


def test_a_host_that_leaves_before_it_is_ready_is_no_event(stack, transport, caplog):
    host, _ = joined(stack, transport)
    host.close(linger_seconds=0.0)
    exchange(transport, [], lambda *_: not transport._hosts.by_identity)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("found", "theirs", "refused"),
    [
        (astuple(OWN), OWN, False),
        (astuple(OWN), OTHER, True),
        ((6, *astuple(OWN)[1:]), OWN, True),
        (("ValueError", "no gradient"), OTHER, False),
        (None, OTHER, False),
    ],
    ids=["same", "another sign", "another size", "no fingerprint", "no answer"],
)
def test_a_host_with_a_problem_of_its_own_waits_until_it_was_compared(stack, transport, found, theirs, refused):
    host = a_host(stack, transport)
    host.send(MessageKind.JOIN, replace(JOINING, problem=theirs).to_bytes())
    waiting = lambda *_: any(record.waits_for for record in transport._hosts.by_identity.values())  # noqa: E731
    assert exchange(transport, [host], waiting) == ([], [])
    assert list(transport.tick(1, 1)) == [], "there is no HOME to compute it"
    transport._comparison.answered(found)
    assert list(transport.tick(1, 1)) == []
    message = answer(transport, host)
    assert message.kind == (MessageKind.REFUSED if refused else MessageKind.WELCOME)
    if refused:
        assert str(theirs) in message.content.decode()
        assert f"{found[0]}, 'float64'] and a first gradient of norm 1" in message.content.decode()


def test_a_host_with_a_slightly_different_gradient_joins_and_the_log_says_so(stack, transport, caplog):
    """Another precision does that, but it might also be another model: Tanh for ReLU, with small weights."""
    host = a_host(stack, transport)
    host.send(MessageKind.JOIN, replace(JOINING, problem=ALIKE).to_bytes())
    exchange(transport, [host], lambda *_: any(each.waits_for for each in transport._hosts.by_identity.values()))
    transport._comparison.answered(astuple(OWN))
    assert list(transport.tick(1, 1)) == []
    assert answer(transport, host).kind == MessageKind.WELCOME
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    text = "the host machine may have another problem than the server: the first gradients differ by 0.0099 of their"
    assert text in record.getMessage()


def an_asker(stack, transport, identity=b"other"):
    """Somebody with the key, whose handshake is over."""
    asker = a_host(stack, transport, identity)
    exchange(transport, [asker], lambda *_: asker.binding)
    return asker


def test_the_key_alone_drains_nobody_and_a_proof_is_good_for_one_connection_and_one_name(stack, transport, caplog):
    host, _ = joined(stack, transport)
    host.send(MessageKind.READY, AHEAD.pack(0.0))
    exchange(transport, [host], lambda events, _: events)
    asker = an_asker(stack, transport)
    passed_on = drain_request("machine", DRAIN_KEY, asker.binding)
    of_another_name = json.dumps(json.loads(drain_request("other", DRAIN_KEY, asker.binding)) | {"name": "machine"})
    without_drain_key = drain_request("machine", KEY.secret, bytes(32))
    for number, content in enumerate(
        [
            b'{"name": "machine"}',
            b"{}",
            without_drain_key,
            passed_on,
            of_another_name.encode(),
        ]
    ):
        sender = asker if number == 4 else an_asker(stack, transport, f"attacker {number}".encode())
        sender.send(MessageKind.DRAIN, content)
        events, messages = exchange(transport, [sender], lambda _, messages: None in messages)
        assert events == []
        assert messages[0].kind == MessageKind.REFUSED
        assert b"draining needs the drain key of this run" in messages[0].content
    assert host.receive() is None, "it stays"
    assert [host.reason_to_leave for host in transport._hosts.by_identity.values()] == [""]
    assert "a request to drain hosts was refused" in caplog.text


def test_without_a_drain_key_nobody_drains(stack, transport):
    transport._drain_key = None
    asker = an_asker(stack, transport)
    asker.send(MessageKind.DRAIN, drain_request(None, b"", asker.binding))
    assert answer(transport, asker).kind == MessageKind.REFUSED


def test_a_machine_is_drained_by_somebody_with_both_keys(stack, transport):
    host, _ = joined(stack, transport)
    host.send(MessageKind.READY, AHEAD.pack(0.0))
    exchange(transport, [host], lambda events, _: events)
    other = an_asker(stack, transport)
    for name, kind, words in [
        (None, MessageKind.DRAIN, "the hosts are machine (3 workers)"),
        ("elsewhere", MessageKind.REFUSED, "there is no host 'elsewhere': the hosts are machine (3 workers)"),
    ]:
        other.send(MessageKind.DRAIN, drain_request(name, DRAIN_KEY, other.binding))
        message = answer(transport, other)
        assert (message.kind, message.content.decode()) == (kind, words)
    other.send(MessageKind.DRAIN, drain_request("machine", DRAIN_KEY, other.binding))
    events, [message] = exchange(transport, [other], lambda _, messages: messages)
    assert events == [Leaving(1, GRACE_SECONDS)]
    again = a_host(stack, transport, b"again")
    again.send(MessageKind.JOIN, JOINING.to_bytes())
    message = answer(transport, again)
    assert (message.kind, message.content.decode()) == (MessageKind.REFUSED, DRAINED), "its connection broke before"
    transport.dismiss(1)
    message = answer(transport, host)
    assert (message.kind, message.content.decode()) == (MessageKind.END, DRAINED)
    host.send(MessageKind.ASK_TIME, bytes(16))
    assert answer(transport, host) is None, "it is not known any longer"


@pytest.mark.parametrize(
    ("name", "words"), [(None, "the hosts are machine (3 workers)"), ("x", "there is no host 'x'")]
)
def test_the_command_that_drains_prints_the_answer(stack, transport, name, words):
    joined(stack, transport)[0].send(MessageKind.READY, AHEAD.pack(0.0))
    exchange(transport, [], lambda events, _: events)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask_to_drain, transport._gateway.address, DRAIN_KEY, name)
        asked.add_done_callback(lambda _: a_host(stack, transport))  # wakes the server up
        exchange(transport, [], lambda *_: asked.done())
    text = asked.result() if name is None else str(asked.exception())
    assert text.startswith(words)


def test_the_key_is_not_in_messages_or_descriptions(stack, transport, caplog):
    assert "nowait worker --connect 127.0.0.1:" in transport.instructions
    for text in (transport.instructions, repr(transport._gateway.address), caplog.text):
        for key in (KEY.secret, KEY.private.private_bytes_raw()):
            assert repr(key)[2:-1] not in text
            assert key.hex() not in text
            assert base64.b64encode(key).decode() not in text


def test_a_worker_with_another_key_says_that_the_server_does_not_accept_it(stack, transport, monkeypatch):
    """The server answers while the worker waits for that."""
    address = replace(transport._gateway.address, key=ServerKey.new().for_hosts())
    client = stack.enter_context(Client(ClientSettings(address, workers=1, threads=1)))
    monkeypatch.setattr(client, "_prepare", lambda: None)
    tries, finish = [], HostSocket.finish_handshake

    def serve_and_finish(self, seconds):
        tries.append(seconds)
        list(transport.receive(readable(transport.fds)))  # accepts the connection
        list(transport.receive(readable(transport.fds)))  # reads the greeting
        finish(self, seconds)

    monkeypatch.setattr(HostSocket, "finish_handshake", serve_and_finish)
    monkeypatch.setattr(client_module, "sleep", lambda seconds: None)
    monkeypatch.setattr(client_module, "REJECTED_SECONDS", 0.0)
    with pytest.raises(RefusedByServerError, match="the server does not accept this key"):
        client.run()
    assert len(tries) == 3, "a broken connection looks the same"


def test_a_worker_that_meets_a_server_without_its_private_key_does_not_try_again(stack, monkeypatch):
    cause, tries = "the other end does not have the private key of the server that made this key file", []

    def meet_another(*_):
        tries.append(1)
        raise NotAcceptedError(cause)

    client = stack.enter_context(Client(ClientSettings(NOWHERE, workers=1, threads=1)))
    monkeypatch.setattr(client, "_prepare", lambda: None)
    monkeypatch.setattr(HostSocket, "connect", meet_another)
    with pytest.raises(RefusedByServerError, match=f"this worker and the server do not agree: {cause}"):
        client.run()
    assert tries == [1]


def test_a_worker_gives_up_when_nobody_listens(stack, monkeypatch):
    client = stack.enter_context(Client(ClientSettings(NOWHERE, workers=1, threads=1, retry_seconds=0.0)))
    monkeypatch.setattr(client, "_prepare", lambda: None)
    with pytest.raises(DisconnectedError, match="cannot be reached"):
        client.run()
