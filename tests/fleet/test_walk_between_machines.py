"""How many functions a gradient meets between two machines, at both ends together, besides those of one machine."""

import contextlib
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import nowait
from nowait.core import Ticket
from nowait.fleet.host import relay as relay_module
from nowait.fleet.host.relay import Relay, connect
from nowait.fleet.server.events import HostReady
from nowait.fleet.server.gateway import Gateway
from nowait.fleet.server.remote import Exchange
from nowait.fleet.server.vectors import ServerVectors
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.records import GRADIENT, KEEP, REPORT
from nowait.fleet.wire.shared import SharedSlots
from nowait.problems.encodings import AS_THEY_ARE

SOURCE = str(Path(nowait.__file__).parent)


class Workers:
    """In the place of the processes of a machine, whose functions are those of a run on one machine."""

    def __init__(self, resources, hub, take):
        self.take, self.gradients, self.ordered = take, resources.gradients, 0

    def add(self, zygote, emit, **_):
        return self

    def start(self, number, serial, began):
        return self.order

    def order(self, ticket, slot, instruction):
        self.ordered += 1

    def report(self, ticket):
        self.take(REPORT.pack(ticket, 0.0, 0.0, 0, GRADIENT), self.gradients)

    open = pause = close = lambda self: None


class Run:
    """A server and a host in one process, with one worker."""

    def __init__(self, stack, length, monkeypatch):
        def slots():
            return stack.enter_context(contextlib.closing(SharedSlots(length, "<f8")))

        monkeypatch.setattr(relay_module, "Machine", Workers)
        self.points, self.hub, self.taken, self.version = slots(), Hub(), 0, 0
        self.points.allocate()
        vectors = ServerVectors(self.points, slots(), AS_THEY_ARE)
        owner = SimpleNamespace(connected=lambda host: True, ready=self.start)
        gateway = Gateway(Exchange(self.hub, vectors, None, None, self.take, owner), 15.0)
        gateway.open("127.0.0.1", None, encrypt=True)
        stack.callback(gateway.close, linger_seconds=0.0)
        host_points, gradients = slots(), slots()
        _ = gradients[0]
        self.relay = Relay(SimpleNamespace(points=host_points, gradients=gradients), None)
        monkeypatch.setattr("nowait.fleet.wire.connection.HostSocket.finish_handshake", lambda *_: None)
        server = connect(gateway.address, b"1", host_points, vectors.shapes.host_format())
        stack.callback(server.close, linger_seconds=0.0)
        self.relay.open()
        stack.callback(self.relay.close)
        self.relay._begin(server)
        self.relay._on_event(HostReady(1, math.inf))
        while not self.relay._sends:
            self.wait()

    def start(self, host):
        self.order = host.start(0, 7, 0.0)

    def take(self, records, gradients):
        self.taken += 1
        self.version += 1
        self.order(Ticket(self.version, 0, self.version, self.version), 0, KEEP)

    def wait(self):
        self.hub.wait(0.0)
        self.relay._hub.wait(0.0)

    def exchange(self):
        """Let one gradient arrive, and the next order."""
        machine = self.relay._machine
        before = machine.ordered
        machine.report(self.version)
        while machine.ordered == before:
            self.wait()


def functions_of(run):
    """Return the functions of this library that one gradient meets."""
    seen = set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<"):
            seen.add((Path(code.co_filename).relative_to(SOURCE).as_posix(), code.co_name))

    sys.setprofile(note)
    try:
        run.exchange()
    finally:
        sys.setprofile(None)
    return {(file, name) for file, name in seen if file not in ("fleet/wire/hub.py", "fleet/wire/shared.py")}


@pytest.mark.parametrize(
    ("length", "most_functions", "most_files"), [(400, 31, 6), (100_000, 42, 7)], ids=["small", "large"]
)
def test_a_gradient_meets_few_functions_between_machines(length, most_functions, most_files, monkeypatch):
    with contextlib.ExitStack() as stack:
        run = Run(stack, length, monkeypatch)
        for _ in range(3):
            run.exchange()
        functions = functions_of(run)
        assert np.isfinite(run.points[0]).all()
    assert len(functions) <= most_functions, sorted(functions)
    assert len({file for file, _ in functions}) <= most_files
