"""The server's side of hosts that connect: who may join, what they get, and that wrong ones do no harm."""

import base64
import contextlib
import json
import logging
import select
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from time import monotonic
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography")

import nowait as nw
import nowait.fleet.host.client as client_module
import nowait.fleet.sources.listen as module
from nowait.engines.fingerprint import Fingerprint
from nowait.fleet.host.client import Client, ClientSettings, RefusedByServerError, ask_to_drain
from nowait.fleet.host.host import Mailbox, Resources
from nowait.fleet.server.events import FingerprintAsked, HostGone, HostLeaves, HostReady, ProcessDied
from nowait.fleet.server.patience import SECONDS_BETWEEN_WARNINGS
from nowait.fleet.server.remote import SECONDS_TO_EXIT
from nowait.fleet.sources.listen import SECONDS_TO_DELIVER, SPARE_MESSAGES, ListenSource
from nowait.fleet.wire.connection import Address, DisconnectedError, HostSocket, NotAcceptedError
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.messages import (
    AHEAD,
    DRAINED,
    EXIT,
    PIECE_REQUEST,
    PIECES_IN_TRANSIT,
    RUNNING,
    START,
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


def ready(number, **processes):
    return HostReady(number, 3, distance=1, name="machine", label="machine", **processes)


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


class Setting:
    """A source without the process of the evaluator, and the events that it has emitted."""

    def __init__(self, stack):
        points, gradients = (stack.enter_context(contextlib.closing(SharedSlots(5, "<f8"))) for _ in range(2))
        mailbox = stack.enter_context(contextlib.closing(Mailbox.open()))
        payload = stack.enter_context(contextlib.closing(Payload([memoryview(b"a pickle")])))
        listen = nw.Listen(port=0, host="127.0.0.1", key_file="key")
        self.hub, self.events, self.decide = Hub(), [], lambda event: None
        resources = Resources(points, gradients, mailbox, payload)
        self.source = ListenSource(
            listen, KEY, DRAIN_KEY, resources, self.hub, memoryview(b"settings"), deterministic=True, log=None
        )
        self.source.open(self._emit, lambda records, gradients: None)
        stack.callback(self.source.close)
        self.hosts, self.gateway = self.source._hosts, self.source._gateway

    def _emit(self, event):
        self.events.append(event)
        self.decide(event)

    def taken(self):
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    def tick(self, missing=1, working=1):
        """Do the periodic work; returns the events."""
        self.source.tick(missing, working)
        return self.taken()

    def waiting(self, *_):
        """Whether a host waits for the fingerprint of our problem."""
        return any(host.waits_for for host in self.hosts.by_number.values())


@pytest.fixture
def setting(stack, monkeypatch):
    monkeypatch.setattr(ListenSource, "open_home", lambda self: None)
    return Setting(stack)


def a_host(stack, setting, identity=b"1"):
    host = HostSocket.connect(setting.gateway.address, identity, Format(5, "<f8"), lambda *_: [])
    stack.callback(host.close, linger_seconds=0.0)
    return host


def wait(setting, hosts=()):
    poller = select.poll()
    for fd in [*setting.hub.handlers, *(host.fd for host in hosts)]:
        poller.register(fd, select.POLLIN)
    assert setting.hub.unfinished or poller.poll(30_000), "nothing moves"


def exchange(setting, hosts, done):
    """Let all ends read until ``done(messages)``, which returns them; None among them: the connection is gone."""
    messages, hosts = [], list(hosts)
    while not done(messages):
        wait(setting, hosts)
        setting.hub.wait(0.0)
        for host in list(hosts):
            try:
                while (message := host.receive()) is not None:
                    messages.append(message)
            except DisconnectedError:
                messages.append(None)
                hosts.remove(host)
    return messages


def events_of(setting, hosts, number=1):
    """Return the next events."""
    exchange(setting, hosts, lambda _: len(setting.events) >= number)
    return setting.taken()


def answer(setting, host):
    """Return the next message to a host; None if it is disconnected."""
    return exchange(setting, [host], lambda messages: messages)[0]


def joined(stack, setting, identity=b"1", joining=JOINING):
    host = a_host(stack, setting, identity)
    host.send(MessageKind.JOIN, joining.to_bytes())
    message = answer(setting, host)
    assert message.kind == MessageKind.WELCOME
    return host, Welcome.read(message.content)


def with_seats(stack, setting, identity=b"1", joining=JOINING):
    """A host that can run workers."""
    host, _ = joined(stack, setting, identity, joining)
    host.send(MessageKind.READY, AHEAD.pack(0.0))
    events_of(setting, [host])
    return host


def test_a_host_joins_gets_the_job_and_offers_workers(stack, setting):
    host, welcome = joined(stack, setting)
    assert (welcome.shapes, len(welcome.parts)) == (((5, "<f8"), (5, "<f8"), False), 3)
    host.send(MessageKind.SEND_JOB, PIECE_REQUEST.pack(1, 0))
    piece = answer(setting, host)
    assert piece.kind == MessageKind.JOB_PART
    assert piece.content[PIECE_REQUEST.size :].startswith(b"a pickle")
    host.send(MessageKind.READY, AHEAD.pack(0.0))
    assert events_of(setting, [host]) == [ready(1)]


def test_a_host_that_connects_again_takes_the_place_of_its_earlier_connection(stack, setting):
    first = with_seats(stack, setting)
    second = a_host(stack, setting, b"2")
    second.send(MessageKind.JOIN, JOINING.to_bytes())
    messages = exchange(setting, [first, second], lambda messages: len(messages) == 2)
    assert setting.taken() == [HostGone(1, "the host machine is lost (it connected again)")]
    assert sorted(message.kind if message else 0 for message in messages) == [0, MessageKind.WELCOME]


def running(*processes):
    return AHEAD.pack(0.0) + b"".join(RUNNING.pack(*process) for process in processes)


@pytest.mark.parametrize("when", ["noticed", "not yet noticed"])
def test_a_host_comes_back_with_the_processes_that_it_had(stack, setting, when):
    """They keep their serial numbers, and the fleet decides which of them go on."""
    first = with_seats(stack, setting)
    port = setting.source.port(1)
    for number in range(3):
        port.start(number, 10 + number, 0.0)
    first.send(MessageKind.DIED, EXIT.pack(11, 1))
    assert events_of(setting, [first]) == [ProcessDied(11, 1)]
    if when == "noticed":
        first._link.close()
        assert events_of(setting, []) == [HostGone(1, "the host machine is lost (the connection broke)")]
    second, _ = joined(stack, setting, b"2")
    setting.taken()
    second.send(MessageKind.READY, running((10, 0), (12, 2)))
    setting.decide = lambda event: setting.source.port(2).adopt(2, 12, 5.0) if isinstance(event, HostReady) else None
    message = answer(setting, second)
    assert setting.taken() == [ready(2, processes={10: 0, 12: 2})]
    assert (message.kind, START.unpack(message.content)) == (MessageKind.ADOPT, (2, 12, 5.0))
    second._link.close()
    events_of(setting, [])
    third, _ = joined(stack, setting, b"3")
    third.send(MessageKind.READY, running((12, 2)))
    setting.decide = lambda event: None
    assert events_of(setting, [third]) == [ready(3, processes={12: 2})]


def test_another_host_cannot_have_the_processes_of_one_that_is_gone(stack, setting):
    first = with_seats(stack, setting)
    setting.source.port(1).start(0, 10, 0.0)
    first._link.close()
    events_of(setting, [])
    other, _ = joined(stack, setting, b"2", replace(JOINING, process="other"))
    other.send(MessageKind.READY, running((10, 0)))
    assert answer(setting, other) is None
    assert setting.taken() == []


def test_a_host_that_joins_twice_is_given_up_whenever_it_does(stack, setting):
    """The second time it waits for a comparison of problems, which is made later."""
    host, _ = joined(stack, setting)
    host.send(MessageKind.JOIN, replace(JOINING, problem=OWN).to_bytes())
    assert answer(setting, host) is None
    waiting = a_host(stack, setting, b"2")
    for problem in (OWN, OTHER):
        waiting.send(MessageKind.JOIN, replace(JOINING, problem=problem).to_bytes())
    assert answer(setting, waiting) is None
    assert setting.taken() == [FingerprintAsked()]
    setting.source.identified(astuple(OWN))
    assert setting.tick() == []


def test_what_a_comparison_finds_wrong_ends_a_host_and_not_the_run(stack, setting, monkeypatch):
    host = a_host(stack, setting)
    host.send(MessageKind.JOIN, replace(JOINING, problem=OWN).to_bytes())
    exchange(setting, [host], setting.waiting)

    def joins(*_):
        raise ProtocolError("it is wrong")

    monkeypatch.setattr(setting.hosts, "joins", joins, raising=False)
    setting.source.identified(astuple(OWN))
    assert setting.taken() == [FingerprintAsked()]
    assert setting.hosts.by_number == {}


def test_a_host_cannot_ask_for_the_whole_job_at_once(stack, setting):
    host, _ = joined(stack, setting)
    setting.gateway.hosts[b"1"].link.connection.queued = range(PIECES_IN_TRANSIT + SPARE_MESSAGES + 1)
    host.send(MessageKind.SEND_JOB, PIECE_REQUEST.pack(1, 0))
    assert answer(setting, host) is None


def test_a_host_that_was_told_to_exit_has_some_seconds(stack, setting, monkeypatch):
    with_seats(stack, setting)
    setting.source.end_host(1, "")
    setting.source.end_host(1, "")
    assert setting.tick(0) == []
    assert list(setting.gateway.hosts) == [b"1"]
    monkeypatch.setattr(module, "monotonic", lambda: monotonic() + SECONDS_TO_EXIT + 1)
    assert setting.tick(0) == []
    assert setting.gateway.hosts == {}


def test_a_host_that_was_given_up_learns_why_and_may_not_join_again(stack, setting, caplog):
    host = with_seats(stack, setting)
    setting.source.end_host(1, "worker 0 sent NaN")
    reason = "this host was given up: worker 0 sent NaN"
    message = answer(setting, host)
    assert (message.kind, message.content.decode()) == (MessageKind.END, reason)
    again = a_host(stack, setting, b"2")
    again.send(MessageKind.JOIN, JOINING.to_bytes())
    message = answer(setting, again)
    assert (message.kind, message.content.decode()) == (MessageKind.REFUSED, reason)


def test_a_worker_command_whose_host_was_given_up_ends_with_an_error():
    client = Client(ClientSettings(NOWHERE, workers=1, threads=1, retry_seconds=0.0))
    with pytest.raises(nw.WorkerFailedError, match="this host was given up: worker 0 sent NaN"):
        client._is_over("this host was given up: worker 0 sent NaN")


def test_a_source_may_be_closed_twice(stack, setting):
    host, _ = joined(stack, setting)
    setting.source.close()
    setting.source.close()
    while (message := host.receive()) is None:
        select.select([host.fd], [], [], 30)
    assert message.kind == MessageKind.END


@pytest.mark.parametrize(
    ("other", "words"),
    [({"nowait": "0.0.1"}, ["0.0.1", library_version()]), ({"python": "2.7"}, ["2.7", python_version()])],
    ids=["nowait", "python"],
)
def test_a_host_with_another_version_is_told_both(stack, setting, other, words):
    host = a_host(stack, setting)
    host.send(MessageKind.JOIN, replace(JOINING, **other).to_bytes())
    message = answer(setting, host)
    assert message.kind == MessageKind.REFUSED
    for word in words:
        assert word in message.content.decode()


def test_a_host_that_is_refused_again_and_again_is_told_so_each_time_and_logged_once(
    stack, setting, caplog, monkeypatch
):
    now = [monotonic()]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    for number in range(5):
        host = a_host(stack, setting, str(number).encode())
        for _ in range(2):
            host.send(MessageKind.JOIN, replace(JOINING, nowait="0.0.1", name=f"node{number}").to_bytes())
        messages = exchange(setting, [host], lambda messages: len(messages) == 2)
        assert [message.kind for message in messages] == [MessageKind.REFUSED, MessageKind.END]
        host.close(linger_seconds=0.0)
        exchange(setting, [], lambda _: not setting.gateway.hosts)
    assert setting.hosts.by_number == {}
    assert "the host node0 was refused" in caplog.text
    now[0] += SECONDS_BETWEEN_WARNINGS
    setting.tick(0)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert warnings[1].startswith("the host node4 was refused")
    assert warnings[1].endswith("(and 3 more before it)")


def test_a_host_that_takes_workers_and_delivers_nothing_is_named(stack, setting, caplog, monkeypatch):
    now = [monotonic()]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    with_seats(stack, setting, joining=replace(JOINING, workers=65_536))
    record = setting.hosts.by_number[1]
    for worker in range(2):
        setting.source.port(1).start(worker, worker + 1, 0.0)
    for _ in range(2):
        now[0] += SECONDS_TO_DELIVER + 1
        record.remote.last_message = now[0]  # it sends heartbeats
        setting.tick(0, 2)
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
def test_a_host_that_does_something_wrong_only_loses_its_connection(stack, setting, wrong):
    good, _ = joined(stack, setting, b"good", replace(JOINING, process="good"))
    bad = a_host(stack, setting, b"bad")
    for kind, content in WRONG[wrong]:
        bad.send(kind, content)
    exchange(setting, [bad], lambda messages: None in messages)
    assert setting.taken() == []
    good.send(MessageKind.READY, AHEAD.pack(0.0))
    assert events_of(setting, [good]) == [ready(1)]


def test_a_host_that_leaves_before_it_is_ready_is_no_event(stack, setting, caplog):
    host, _ = joined(stack, setting)
    host.close(linger_seconds=0.0)
    exchange(setting, [], lambda _: not setting.hosts.by_number)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert setting.taken() == []


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_host_that_has_ended_its_connection_has_left(stack, setting, busy):
    """If no worker computes there, the fleet ends it when it hears that."""
    host = with_seats(stack, setting)
    if not busy:
        setting.decide = lambda event: setting.source.end_host(1, "")
    host.close(linger_seconds=0.0)
    exchange(setting, [], lambda _: not setting.hosts.by_number)
    gone = [HostGone(1, "the host machine has left")] if busy else []
    assert setting.taken() == [HostLeaves(1, 0.0), *gone]


@pytest.mark.parametrize(
    ("details", "theirs", "refused"),
    [
        (astuple(OWN), OWN, False),
        (astuple(OWN), OTHER, True),
        ((6, *astuple(OWN)[1:]), OWN, True),
        (("ValueError", "no gradient"), OTHER, False),
        (None, OTHER, False),
    ],
    ids=["same", "another sign", "another size", "no fingerprint", "no answer"],
)
def test_a_host_with_a_problem_of_its_own_waits_until_it_was_compared(stack, setting, details, theirs, refused):
    host = a_host(stack, setting)
    host.send(MessageKind.JOIN, replace(JOINING, problem=theirs).to_bytes())
    assert exchange(setting, [host], setting.waiting) == []
    assert setting.taken() == [FingerprintAsked()]
    assert setting.tick() == [], "it is asked for once"
    setting.source.identified(details)
    message = answer(setting, host)
    assert setting.taken() == []
    assert message.kind == (MessageKind.REFUSED if refused else MessageKind.WELCOME)
    if refused:
        assert str(theirs) in message.content.decode()
        assert f"{details[0]}, 'float64'] and a first gradient of norm 1" in message.content.decode()


def test_a_fingerprint_that_is_known_already_is_not_asked_for(stack, setting):
    setting.source.identified(astuple(OWN))
    host = a_host(stack, setting)
    host.send(MessageKind.JOIN, replace(JOINING, problem=OWN).to_bytes())
    assert answer(setting, host).kind == MessageKind.WELCOME
    assert setting.taken() == []


def test_a_host_with_a_slightly_different_gradient_joins_and_the_log_says_so(stack, setting, caplog):
    """Another precision does that, but it might also be another model: Tanh for ReLU, with small weights."""
    host = a_host(stack, setting)
    host.send(MessageKind.JOIN, replace(JOINING, problem=ALIKE).to_bytes())
    exchange(setting, [host], setting.waiting)
    setting.source.identified(astuple(OWN))
    assert answer(setting, host).kind == MessageKind.WELCOME
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    text = "the host machine may have another problem than the server: the first gradients differ by 0.0099 of their"
    assert text in record.getMessage()


def an_asker(stack, setting, identity=b"other"):
    """Somebody with the key, whose handshake is over."""
    asker = a_host(stack, setting, identity)
    exchange(setting, [asker], lambda _: asker.binding)
    return asker


def test_the_key_alone_drains_nobody_and_a_proof_is_good_for_one_connection_and_one_name(stack, setting, caplog):
    host = with_seats(stack, setting)
    asker = an_asker(stack, setting)
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
        sender = asker if number == 4 else an_asker(stack, setting, f"attacker {number}".encode())
        sender.send(MessageKind.DRAIN, content)
        refused, end = exchange(setting, [sender], lambda messages: len(messages) == 2)
        assert setting.taken() == []
        assert (refused.kind, end.kind) == (MessageKind.REFUSED, MessageKind.END)
        assert b"draining needs the drain key of this run" in refused.content
    assert host.receive() is None, "it stays"
    assert [host.reason_to_leave for host in setting.hosts.by_number.values()] == [""]
    assert "a request to drain hosts was refused" in caplog.text


def test_without_a_drain_key_nobody_drains(stack, setting):
    setting.source._admission._drain_key = None
    asker = an_asker(stack, setting)
    asker.send(MessageKind.DRAIN, drain_request(None, b"", asker.binding))
    assert answer(setting, asker).kind == MessageKind.REFUSED


def test_a_machine_is_drained_by_somebody_with_both_keys(stack, setting, monkeypatch):
    host = with_seats(stack, setting)
    other = an_asker(stack, setting)
    for name, kind, words in [
        (None, MessageKind.DRAIN, "the hosts are machine (3 workers)"),
        ("elsewhere", MessageKind.REFUSED, "there is no host 'elsewhere': the hosts are machine (3 workers)"),
    ]:
        other.send(MessageKind.DRAIN, drain_request(name, DRAIN_KEY, other.binding))
        message = answer(setting, other)
        assert (message.kind, message.content.decode()) == (kind, words)
    other.send(MessageKind.DRAIN, drain_request("machine", DRAIN_KEY, other.binding))
    answer(setting, other)
    assert setting.taken() == [HostLeaves(1, GRACE_SECONDS)]
    again = a_host(stack, setting, b"again")
    again.send(MessageKind.JOIN, JOINING.to_bytes())
    message = answer(setting, again)
    assert (message.kind, message.content.decode()) == (MessageKind.REFUSED, DRAINED), "its connection broke before"
    setting.source.end_host(1, "")
    message = answer(setting, host)
    assert (message.kind, message.content.decode()) == (MessageKind.END, DRAINED)
    host.send(MessageKind.ASK_TIME, bytes(16))
    monkeypatch.setattr(module, "monotonic", lambda: monotonic() + SECONDS_TO_EXIT + 1)
    exchange(setting, [], lambda _: setting.tick(0) == [] and b"1" not in setting.gateway.hosts)
    assert answer(setting, host) is None, "it is not known any longer"


@pytest.mark.parametrize(
    ("name", "words"), [(None, "the hosts are machine (3 workers)"), ("x", "there is no host 'x'")]
)
def test_the_command_that_drains_prints_the_answer(stack, setting, name, words):
    with_seats(stack, setting)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask_to_drain, setting.gateway.address, DRAIN_KEY, name)
        asked.add_done_callback(lambda _: a_host(stack, setting))  # wakes the server up
        exchange(setting, [], lambda _: asked.done())
    text = asked.result() if name is None else str(asked.exception())
    assert text.startswith(words)


def test_the_key_is_not_in_messages_or_descriptions(stack, setting, caplog):
    instructions = setting.source.instructions
    assert "nowait worker --connect 127.0.0.1:" in instructions
    for text in (instructions, repr(setting.gateway.address), caplog.text):
        for key in (KEY.secret, KEY.private.private_bytes_raw()):
            assert repr(key)[2:-1] not in text
            assert key.hex() not in text
            assert base64.b64encode(key).decode() not in text


def test_a_connection_of_ray_is_closed(setting):
    closed = []
    setting.source.connected_here(b"1", SimpleNamespace(close=lambda: closed.append(True)))
    assert closed == [True]


def test_a_worker_with_another_key_says_that_the_server_does_not_accept_it(stack, setting, monkeypatch):
    """The server answers while the worker waits for that."""
    address = replace(setting.gateway.address, key=ServerKey.new().for_hosts())
    client = stack.enter_context(Client(ClientSettings(address, workers=1, threads=1)))
    monkeypatch.setattr(client, "_prepare", lambda: None)
    tries, finish = [], HostSocket.finish_handshake

    def serve_and_finish(self, seconds):
        tries.append(seconds)
        for _ in range(2):  # accepts the connection, and reads the greeting
            wait(setting)
            setting.hub.wait(0.0)
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
