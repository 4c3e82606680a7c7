"""``nw.Listen``: the settings of a run whose workers connect to it."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from nowait.core import checks
from nowait.engines.network.wire_options import check_wires

SHORTEST_SILENCE = 3.0
DEFAULT_WORKERS = (1, 64)
"""The fewest and the most workers if nothing else is said."""


@final
@dataclass(frozen=True, kw_only=True)
class Listen:
    """Workers that connect to this machine, started with ``nowait worker --connect HOST:PORT --key-file FILE``.

    The server listens at ``port`` of the address ``host`` (port 0: any free port, which is logged). ``key_file`` has
    the key that workers need; it is created if it does not exist, and has to be copied to the machines of the workers.
    Beside it are two files that workers must not get: the server's private key, in a file whose name ends in
    ``.server``, and the drain key, in one that ends in ``.drain`` and that only ``nowait drain`` needs.
    ``workers`` is a number, or the minimum and the maximum, as in ``nw.train``: the run starts when the minimum can be
    placed, and workers can join and leave at any time.

    Connections are authenticated with the key, and encrypted unless ``encrypt=False``, which saves time only
    on processors without instructions for AES.

    ``wire`` and ``points_wire`` send gradients and params in fewer bytes, as in ``nw.RayCluster``.

    A run without workers waits ``start_seconds`` for them, without a limit if that is None. A machine that sends
    nothing for ``heartbeat_seconds`` counts as lost.
    """

    port: int
    key_file: str | Path
    host: str = "0.0.0.0"
    workers: int | tuple[int, int] | None = None
    encrypt: bool = True
    start_seconds: float | None = None
    heartbeat_seconds: float = 15.0
    wire: str | None = None
    points_wire: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host:
            raise TypeError(f"host must be an address of this machine, as in '0.0.0.0', got {self.host!r}")
        if checks.at_least(0, self.port, "port", "workers connect to it") > 65_535:
            raise ValueError(f"port must be below 65536, got {self.port}")
        if not isinstance(self.key_file, (str, os.PathLike)):
            raise TypeError(f"key_file must be the path of a file, got a {type(self.key_file).__name__}")
        if not isinstance(self.encrypt, bool):
            raise TypeError(f"encrypt must be True or False, got {self.encrypt!r}")
        check_wires(self)
        if self.start_seconds is not None:
            checks.positive(self.start_seconds, "start_seconds", "it is how long to wait for workers")
        checks.positive(self.heartbeat_seconds, "heartbeat_seconds", "it is how long a machine may be silent")
        if self.heartbeat_seconds < SHORTEST_SILENCE:
            raise ValueError(
                f"heartbeat_seconds must be at least {SHORTEST_SILENCE:g}, got {self.heartbeat_seconds}: machines send "
                f"a heartbeat every second"
            )

    def described(self) -> dict[str, Any]:
        """Return the entry in ``config.json``: all fields but ``key_file``; ``workers`` has an entry of its own."""
        left_out = ("key_file", "workers")
        return {"type": "Listen"} | {
            item.name: getattr(self, item.name) for item in fields(self) if item.name not in left_out
        }
