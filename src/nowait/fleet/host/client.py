"""The side of ``nowait worker``: connects to the server, gets the problem, runs workers, and connects again."""

from __future__ import annotations

import contextlib
import logging
import math
import pickle
import random
import secrets
import select
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any, NamedTuple, final

from nowait.core.errors import WorkerFailedError
from nowait.core.types import Vector
from nowait.engines.fingerprint import Fingerprint
from nowait.engines.signals import first_signals
from nowait.fleet.host.host import Mailbox, Resources
from nowait.fleet.host.launch import Prepared
from nowait.fleet.host.relay import SECONDS_FOR_A_REPLY, Relay, point_slots
from nowait.fleet.options import sent_through
from nowait.fleet.server.patience import STEADY_SECONDS, Pauses
from nowait.fleet.wire.connection import (
    CLOSED_DURING_HANDSHAKE,
    ENDED,
    Address,
    DisconnectedError,
    HostSocket,
    NotAcceptedError,
)
from nowait.fleet.wire.job import Download, to_bytes, write_sources
from nowait.fleet.wire.messages import (
    DRAINED,
    GIVEN_UP,
    RUN_IS_OVER,
    Format,
    Joining,
    Message,
    MessageKind,
    Part,
    Shapes,
    Welcome,
    drain_request,
    library_version,
    number_of_workers,
    python_version,
    text_of,
)
from nowait.fleet.wire.records import GRACE_SECONDS, Job
from nowait.fleet.wire.secure import ProtocolError
from nowait.fleet.wire.shared import Payload, SharedSlots
from nowait.problems.encodings import Encodings
from nowait.recording import Interrupted

logger = logging.getLogger("nowait.listen")

CODE, JOB, SETTINGS = 0, 1, 2
"""The numbers of the parts."""
REJECTIONS, REJECTED_SECONDS = 3, 20.0
"""How often, and for how long, the server closes connections during the handshake until that means that it does not
accept the key: once may be the network, and a tunnel does so as long as there is no server behind it."""
MOST_RESTARTS = 5
"""How often in a row the process that starts workers may be killed before this host gives up."""


class _EndedByServerError(Exception):
    """The server told this host to end while it was getting the job; the text says why."""


class RefusedByServerError(WorkerFailedError):
    """The server refused this worker; the text says why. Another attempt would be refused too."""


@final
@dataclass(frozen=True)
class ClientSettings:
    """The options of ``nowait worker``."""

    address: Address
    workers: int
    threads: int
    """How many threads the libraries of each worker may use."""
    retry_seconds: float = 600.0
    """How long to try to connect, at the start and after the connection broke."""
    stay: bool = False
    """True: after the end of a run wait for the next one."""
    problem: Any = None
    """The problem, if this host makes it itself; None: the one of the server."""


@final
class LocalRun:
    """What this host has for one run: its processes, and the memory that they share. It survives its connection."""

    def __init__(self, welcome: Welcome, prepared: Prepared, code: Payload, job: Payload) -> None:
        """Give the job to a zygote, which is closed with this object, or if this fails."""
        self.welcome = welcome
        with contextlib.ExitStack() as stack:
            stack.callback(prepared.close)
            write_sources(bytes(code.parts()[0]), prepared.folder)
            shapes = welcome.shapes
            self.points = stack.enter_context(contextlib.closing(SharedSlots(*shapes.points)))
            gradients = stack.enter_context(contextlib.closing(SharedSlots(*shapes.gradients)))
            mailbox = stack.enter_context(contextlib.closing(Mailbox.open()))
            self.relay = Relay(Resources(self.points, gradients, mailbox, job, shapes.encoded), prepared.zygote)
            self.relay.open()
            stack.callback(self.relay.close)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Kill all processes and release everything."""
        self._stack.close()


class _Joined(NamedTuple):
    server: HostSocket
    welcome: Welcome


@final
class Client:
    """One ``nowait worker``. A context manager, which ends all processes."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._process = secrets.token_hex(16)
        self._connections = 0
        self._pauses = Pauses()
        self._accepted = False
        """True if the server has accepted the key before."""
        self._rejections = 0
        self._local_run: LocalRun | None = None
        self._prepared: Prepared | None = None
        self._kept: dict[str, Payload] = {}
        """The parts of the latest job, by digest."""
        self._own_payloads: list[Payload] = []
        """Source code and job with the problem of this host."""
        self._fingerprint = None if settings.problem is None else Fingerprint.of(settings.problem)
        self._restarts = 0
        self._stay = settings.stay
        self._signal = ""
        """The signal that told this host to leave."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self._end_run()
        for payload in self._kept.values():
            payload.close()

    def run(self) -> None:
        """Work until the run is over, and with ``stay`` for the next one too.

        Raises ``WorkerFailedError`` if the server refuses this host or the problem cannot be loaded, and
        ``DisconnectedError`` if the server cannot be reached for too long.
        """
        forever = False
        while True:
            self._prepare()
            server, welcome = self._join(forever=forever)
            began = monotonic()
            try:
                over = self._work(server, welcome)
            except (DisconnectedError, ProtocolError) as error:
                over = str(error) == ENDED  # the server ended the run while this host was still preparing
                logger.info("%s", RUN_IS_OVER if over else f"connection lost: {error}")
            finally:
                server.close()
                if self._signal:
                    raise Interrupted(self._signal)
            if monotonic() - began > STEADY_SECONDS:
                self._restarts = 0
                self._pauses.reset()
            if over:
                self._pauses.reset()
                self._end_run()
                if not self._stay:
                    return
                forever = True

    def _prepare(self) -> None:
        """Start a zygote, which imports libraries while this host connects."""
        if self._local_run is None and self._prepared is None:
            self._prepared = Prepared(self._settings.threads)

    def _end_run(self) -> None:
        """End all processes."""
        for part in (self._local_run, self._prepared):
            if part is not None:
                part.close()
        self._local_run = self._prepared = None
        while self._own_payloads:
            self._own_payloads.pop().close()

    # Connecting

    def _join(self, *, forever: bool) -> _Joined:
        """Connect to the server, again and again for some time, and join its run."""
        deadline, rejected = monotonic() + self._settings.retry_seconds, math.inf
        while True:
            try:
                return self._try_to_join()
            except NotAcceptedError as error:
                self._rejections += 1
                rejected = min(rejected, monotonic())
                if not self._accepted and self._is_final(error, rejected):
                    raise RefusedByServerError(_not_accepted(error)) from None
                cause = _not_accepted(error)
            except (DisconnectedError, ProtocolError) as error:
                cause = str(error)
            if monotonic() > deadline and not forever:
                raise DisconnectedError(f"no connection for {self._settings.retry_seconds:g} s: {cause}")
            pause = self._pauses.next(random.random())
            logger.info("no connection (%s): trying again in %.1f s", cause, pause)
            sleep(pause)

    def _is_final(self, error: NotAcceptedError, first: float) -> bool:
        """Return True if the server will not accept this host later either; ``first`` is when it did not before."""
        if str(error) != CLOSED_DURING_HANDSHAKE:
            return True
        seconds = min(REJECTED_SECONDS, self._settings.retry_seconds)
        return self._rejections >= REJECTIONS and monotonic() - first >= seconds

    def _try_to_join(self) -> _Joined:
        self._connections += 1
        identity = f"{self._process}-{self._connections}".encode()
        form = Format(1, "<f8", received=Format(1, "<f8"))
        server = HostSocket.connect(self._settings.address, identity, form, self._point_slots)
        try:
            server.finish_handshake(SECONDS_FOR_A_REPLY)
            self._accepted = True
            server.send(MessageKind.JOIN, self._joining().to_bytes())
            welcome = self._welcomed(server)
        except BaseException:
            server.close()
            raise
        form.set(*welcome.shapes.gradients)
        form.received.set(*welcome.shapes.points)
        address = self._settings.address
        logger.info("connected to %s:%d, run %s", address.host, address.port, welcome.run[:8])
        return _Joined(server, welcome)

    def _point_slots(self, kind: int, content: bytes, count: int) -> list[Vector]:
        return point_slots(None if self._local_run is None else self._local_run.points, kind, content, count)

    def _joining(self) -> Joining:
        return Joining(
            nowait=library_version(),
            python=python_version(),
            process=self._process,
            name=socket.gethostname(),
            workers=self._settings.workers,
            problem=self._fingerprint,
        )

    def _welcomed(self, server: HostSocket) -> Welcome:
        message = _next_message(server)
        if message.kind == MessageKind.REFUSED:
            raise RefusedByServerError(f"the server refused this worker: {text_of(message.content)}")
        if message.kind != MessageKind.WELCOME:
            raise ProtocolError(f"the server answered with a message of the kind {message.kind}")
        return Welcome.read(message.content)

    # Working

    def _work(self, server: HostSocket, welcome: Welcome) -> bool:
        """Run workers until the connection ends. Returns True if the run is over."""
        if self._local_run is not None and self._local_run.welcome == welcome:
            logger.info("the earlier processes continue")
        else:
            try:
                self._load(server, welcome)
            except _EndedByServerError as end:
                return self._is_over(str(end))
        assert self._local_run is not None
        relay = self._local_run.relay
        with first_signals(lambda name: self._leave(relay, name)):
            reason = relay.run(server)
        if self._is_over(reason):
            return True
        self._restarts += 1
        if not relay.loaded or self._restarts > MOST_RESTARTS:
            raise WorkerFailedError(reason)
        logger.info("%s: it is started again", reason)
        self._end_run()
        return False

    def _is_over(self, reason: str) -> bool:
        """Return True if a reason to end is that the server said so. A host that was drained does not stay.

        Raises ``WorkerFailedError`` if the server gave this host up.
        """
        if reason.startswith(GIVEN_UP):
            raise WorkerFailedError(reason)
        if reason not in (RUN_IS_OVER, DRAINED):
            return False
        logger.info("%s", reason)
        self._stay = self._stay and reason == RUN_IS_OVER
        return True

    def _leave(self, relay: Relay, name: str) -> None:
        """Let workers deliver what they compute, then leave. Called by a signal handler."""
        self._signal = name
        relay.leave(GRACE_SECONDS)

    def _load(self, server: HostSocket, welcome: Welcome) -> None:
        """Get the job if this host does not have it, and give it to the zygote."""
        if self._local_run is not None:
            logger.info("this is another run: ending the earlier processes")
            self._end_run()
            self._prepare()
        code, job = self._payloads(server, welcome)
        prepared, self._prepared = self._prepared, None
        assert prepared is not None
        self._local_run = LocalRun(welcome, prepared, code, job)
        logger.info("the problem is loaded: ready for %s", number_of_workers(self._settings.workers))

    def _payloads(self, server: HostSocket, welcome: Welcome) -> tuple[Payload, Payload]:
        """Return source code and job; what this host has already is not sent again.

        With a problem of its own this host takes only the settings from the server, and no source code.
        """
        if len(welcome.parts) <= SETTINGS:
            raise ProtocolError("the server offers no job")
        own = self._settings.problem
        parts = {number: welcome.parts[number] for number in ((CODE, JOB) if own is None else (SETTINGS,))}
        missing = {number: part for number, part in parts.items() if part.sha256 not in self._kept}
        self._forget_payloads(part.sha256 for part in parts.values())
        received = _received(server, missing)
        self._kept |= {parts[number].sha256: payload for number, payload in received.items()}
        if own is None:
            return self._kept[parts[CODE].sha256], self._kept[parts[JOB].sha256]
        return self._with_own_problem(self._kept[parts[SETTINGS].sha256], welcome)

    def _with_own_problem(self, payload: Payload, welcome: Welcome) -> tuple[Payload, Payload]:
        """Return no source code, and a job with the server's settings and the problem of this host."""
        settings: Job = pickle.loads(payload.parts()[0])
        job = replace(settings, problem=sent_through(self._settings.problem, *settings.wires))
        if Shapes.of(Encodings.of(job.problem).codecs(job.length, job.dtype), job.length, job.dtype) != welcome.shapes:
            raise WorkerFailedError("the problem of this machine sends its vectors in another way than the server's")
        self._own_payloads = [Payload([memoryview(to_bytes({}))]), Payload.of(job)]
        return self._own_payloads[0], self._own_payloads[1]

    def _forget_payloads(self, wanted: Iterable[str]) -> None:
        kept = set(wanted)
        for digest in [digest for digest in self._kept if digest not in kept]:
            self._kept.pop(digest).close()


def ask_to_drain(address: Address, drain_key: bytes, name: str | None) -> str:
    """Ask the server that the hosts of a machine leave, or which there are; returns its answer.

    Raises ``RefusedByServerError`` and ``DisconnectedError``.
    """
    identity = f"drain-{secrets.token_hex(16)}".encode()
    server = HostSocket.connect(address, identity, Format(1, "<f8"), lambda *_: [])
    try:
        server.finish_handshake(SECONDS_FOR_A_REPLY)
        server.send(MessageKind.DRAIN, drain_request(name, drain_key, server.binding))
        message = _next_message(server)
    except NotAcceptedError as error:
        raise RefusedByServerError(_not_accepted(error)) from None
    finally:
        server.close()
    if message.kind != MessageKind.DRAIN:
        raise RefusedByServerError(text_of(message.content))
    return text_of(message.content)


def _received(server: HostSocket, missing: Mapping[int, Part]) -> dict[int, Payload]:
    """Ask for parts of the job, and return them when they have arrived and were checked."""
    with contextlib.ExitStack() as on_error:
        download = Download(missing.items(), lambda content: server.send(MessageKind.SEND_JOB, content))
        on_error.callback(download.close)
        download.begin()
        while not download.complete:
            message = _next_message(server)
            if message.kind == MessageKind.END:
                raise _EndedByServerError(text_of(message.content) or RUN_IS_OVER)
            if message.kind != MessageKind.JOB_PART:
                raise ProtocolError(f"a message of the kind {message.kind} came instead of the job")
            download.received(message.content)
        on_error.pop_all()
    if missing:
        logger.info("received the problem, %.1f MB", sum(part.total for part in missing.values()) / 1e6)
    return download.payloads


def _not_accepted(error: NotAcceptedError) -> str:
    """Return what to do if the handshake failed. A server closes connections of peers with another key silently."""
    if str(error) == CLOSED_DURING_HANDSHAKE:
        return (
            "the server does not accept this key (if it has made a new one, copy the key file again), or there is no "
            "nowait at this address"
        )
    return f"this worker and the server do not agree: {error}"


def _next_message(server: HostSocket) -> Message:
    """Wait for the next message. Raises ``DisconnectedError`` if none comes."""
    deadline = monotonic() + SECONDS_FOR_A_REPLY
    poller = select.poll()
    while (message := server.receive()) is None:
        if monotonic() > deadline:
            raise DisconnectedError(f"the server did not reply within {SECONDS_FOR_A_REPLY:.0f} s")
        poller.register(server.fd, server.events)
        poller.poll(1000)
    return message
