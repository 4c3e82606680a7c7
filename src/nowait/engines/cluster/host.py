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

from nowait.engines.network.relay import Relay, connect
from nowait.engines.signals import first_signals
from nowait.fleet.host.launch import start_zygote
from nowait.fleet.wire.connection import Address, DisconnectedError
from nowait.fleet.wire.messages import Shapes
from nowait.fleet.wire.records import GRACE_SECONDS
from nowait.fleet.wire.shared import SharedSlots


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
        if self._settings.local_address is not None:
            return _serve_locally(self._settings, self._settings.local_address)
        try:
            with contextlib.ExitStack() as stack:
                relay = _relay(self._settings, stack)
                stack.enter_context(first_signals(lambda _: relay.leave(GRACE_SECONDS), [signal.SIGTERM]))
                return relay.run()
        except DisconnectedError as error:
            return f"the connection to the server broke: {error}"


def _relay(settings: HostSettings, stack: contextlib.ExitStack) -> Relay:
    """Connect to the server, and start the workers' zygote with the job from Ray's object store."""
    import ray

    if settings.address is None:
        raise ValueError("a relay needs the server's address")
    points = stack.enter_context(contextlib.closing(SharedSlots(*settings.shapes.points)))
    server = connect(settings.address, settings.identity, points, settings.shapes.host_format())
    stack.callback(server.close)
    return Relay.open(
        server,
        points,
        settings.shapes,
        lambda: [memoryview(part) for part in ray.get(settings.payload)],
        lambda theirs: _start_zygote(settings, theirs),
        stack,
    )


def _serve_locally(settings: HostSettings, local_address: tuple[str, bytes]) -> str:
    """Start a zygote that is connected to the server, and wait for its exit."""
    name, password = local_address
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
