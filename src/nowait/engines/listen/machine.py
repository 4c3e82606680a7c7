"""What a host has for one run: the problem, its zygote with the worker processes, and the memory they share."""

from __future__ import annotations

import contextlib
from typing import final

from nowait.engines.network.relay import Relay
from nowait.engines.processes.mailbox import Mailbox
from nowait.engines.processes.pool import WorkerPool
from nowait.engines.processes.resources import SharedResources
from nowait.fleet.host.launch import Prepared
from nowait.fleet.wire.connection import HostSocket
from nowait.fleet.wire.job import write_sources
from nowait.fleet.wire.messages import Welcome
from nowait.fleet.wire.shared import Payload, SharedSlots


@final
class Machine:
    """A run on this host. It survives its connection to the server."""

    def __init__(self, welcome: Welcome, prepared: Prepared, code: Payload, job: Payload, server: HostSocket) -> None:
        """Give the job to a zygote, which is closed with this object, or if this fails."""
        self.welcome = welcome
        with contextlib.ExitStack() as stack:
            stack.callback(prepared.close)
            write_sources(bytes(code.parts()[0]), prepared.folder)
            shapes = welcome.shapes
            self.points = stack.enter_context(contextlib.closing(SharedSlots(*shapes.points)))
            gradients = stack.enter_context(contextlib.closing(SharedSlots(*shapes.gradients)))
            mailbox = stack.enter_context(contextlib.closing(Mailbox.open()))
            resources = SharedResources(self.points, gradients, mailbox, job, shapes.encoded)
            pool = WorkerPool.of(prepared.zygote, resources)
            stack.callback(pool.close)
            self.relay = Relay(server, pool, resources)
            stack.callback(self.relay.close)
            self._pool = pool
            self._stack = stack.pop_all()

    @property
    def loaded(self) -> bool:
        """True once the zygote has loaded the problem."""
        return self._pool.ready

    def is_of(self, welcome: Welcome) -> bool:
        """Return True if this is the same run."""
        return self.welcome == welcome

    def close(self) -> None:
        """Kill all processes and release everything."""
        self._stack.close()
