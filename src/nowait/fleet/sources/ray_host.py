"""The host: a Ray actor that runs some workers of a run on its node.

On the driver's own node it starts a zygote that is connected directly to the server, and waits for its exit. On other
nodes it passes messages between the server and its workers, with which it shares memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from dataclasses import dataclass
from typing import Any, final

from nowait.engines.signals import first_signals
from nowait.fleet.host.host import Mailbox, Resources
from nowait.fleet.host.launch import Zygote, start_zygote
from nowait.fleet.host.relay import Relay, connect
from nowait.fleet.wire.connection import Address, DisconnectedError
from nowait.fleet.wire.messages import Shapes
from nowait.fleet.wire.records import GRACE_SECONDS
from nowait.fleet.wire.shared import Payload, SharedSlots


@final
@dataclass(frozen=True)
class HostSettings:
    """The settings that a host receives at its start."""

    identity: bytes
    local_address: tuple[str, bytes] | None
    """On the driver's own node: the server's Unix socket and the password."""
    address: Address | None
    """On other nodes: where to connect."""
    payload: list[Any]
    """On other nodes: Ray's references to the parts of the payload."""
    shapes: Shapes
    """How vectors are sent."""
    threads: int
    path: list[str]
    """Where the driver looks for modules."""
    ray_threads: str
    """The value that Ray gives OMP_NUM_THREADS for the whole host if it is not set."""


@final
class Host:
    """The actor."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings

    def serve(self) -> str:
        """Run until the run is over; returns the reason for the end."""
        settings = self._settings
        if settings.local_address is not None:
            return _serve_locally(settings, *settings.local_address)
        if settings.address is None:
            raise ValueError("a relay needs the server's address")
        try:
            with contextlib.ExitStack() as stack:
                return _relay_messages(settings, settings.address, stack)
        except DisconnectedError as error:
            return f"the connection to the server broke: {error}"


def _relay_messages(settings: HostSettings, address: Address, stack: contextlib.ExitStack) -> str:
    """Connect to the server, start the workers' zygote with the job from Ray's object store, and pass messages."""
    import ray

    points, gradients = (
        stack.enter_context(contextlib.closing(SharedSlots(*shape)))
        for shape in (settings.shapes.points, settings.shapes.gradients)
    )
    server = connect(address, settings.identity, points, settings.shapes.host_format())
    stack.callback(server.close)
    mailbox = stack.enter_context(contextlib.closing(Mailbox.open()))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.closing(Payload([memoryview(part) for part in ray.get(settings.payload)])) as payload:
        with theirs:
            zygote = Zygote(ours, _start_zygote(settings, theirs))
        relay = Relay(Resources(points, gradients, mailbox, payload, settings.shapes.encoded), zygote)
        relay.open()
    stack.callback(relay.close)
    stack.enter_context(first_signals(lambda _: relay.leave(GRACE_SECONDS), [signal.SIGTERM]))
    return relay.run(server)


def _serve_locally(settings: HostSettings, name: str, password: bytes) -> str:
    """Start a zygote that is connected to the server, and wait for its exit."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.connect(name)
        control.send(password + settings.identity)
        zygote = _start_zygote(settings, control)
    with first_signals(lambda _: zygote.terminate(), [signal.SIGTERM]):  # the zygote tells the server
        status = zygote.wait()
    return f"the process that starts workers ended with status {status}"


def _start_zygote(settings: HostSettings, control: socket.socket) -> subprocess.Popen[bytes]:
    if os.environ.get("OMP_NUM_THREADS") == settings.ray_threads:
        del os.environ["OMP_NUM_THREADS"]
    path = [entry for entry in settings.path if os.path.isdir(entry)]
    return start_zygote(control, settings.threads, limit_output=True, path=path)
