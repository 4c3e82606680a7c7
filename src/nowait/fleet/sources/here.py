"""All workers on this machine: one host, with seats for any number of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, final

from nowait.fleet.host.host import Machine, Pool, Resources
from nowait.fleet.host.launch import Zygote, ZygoteCopy
from nowait.fleet.server.events import Emit, TakeReports
from nowait.fleet.wire.hub import Hub


@final
class Here:
    """The processes of one zygote. If it is killed, another is launched with ``threads`` threads for each worker."""

    engine, traffic = "processes", None

    def __init__(
        self, resources: Resources, hub: Hub, zygote: Zygote | ZygoteCopy, threads: int, log: Path | None
    ) -> None:
        self._resources, self._hub, self._zygote = resources, hub, zygote
        self._threads, self._log = threads, log
        self.details = resources.mailbox.details

    def open(self, emit: Emit, take: TakeReports) -> None:
        """Send the job to the zygote."""
        self._emit, self._machine = emit, Machine(self._resources, self._hub, take)
        self._machine.open()
        self._open_with(self._zygote)

    def open_home(self) -> None:
        """Launch another zygote."""
        self._open_with(Zygote.launch(self._threads))

    def _open_with(self, zygote: Zygote | ZygoteCopy) -> None:
        self._machine.add(zygote, self._emit, seats=math.inf, log=self._log)

    def port(self, host: int) -> Pool:
        """Return the pool of the zygote."""
        return self._machine.pools[host]

    def end_host(self, host: int, reason: str) -> None:
        """Do nothing: the only host is HOME, which ends with the run."""

    def identified(self, fingerprint: tuple[Any, ...] | None) -> None:
        """Do nothing: nobody has another problem."""

    def tick(self, missing: int, working: int) -> None:
        """Do nothing: all events come through file descriptors."""

    def close(self) -> None:
        """Kill all processes."""
        self._machine.close()
