"""The settings of real workers: where they are (``nw.RayCluster`` and ``nw.Listen``), and how they behave."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Any, final

from nowait.core import checks
from nowait.core.audit import Audit
from nowait.problems import Encoded
from nowait.problems.encodings import checked_encoding
from nowait.speeds import Speeds

RESOURCES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
"""Ray's options for actors, and the names of the same resources on a node."""
ENOUGH = 1e-6
"""Tolerance in comparisons of resources, which Ray counts in ten-thousandths."""
SHORTEST_SILENCE = 3.0
DEFAULT_WORKERS = (1, 64)
"""The fewest and the most workers of ``nw.Listen`` if nothing else is said."""
NAMES = ("processes", "ray")
"""The engines that have a name."""


@final
@dataclass(frozen=True)
class RayCluster:
    """Workers on a Ray cluster.

    ``address`` None starts a Ray on this machine for the run and stops it afterwards; ``"auto"`` or ``"host:port"``
    joins a cluster and leaves it running. If this process is connected to a Ray already, that one is used.

    ``resources_per_worker`` are Ray's ``num_cpus``, ``num_gpus`` (also 0.5, to share one), ``memory`` and
    ``resources`` for each worker. ``runtime_env`` is Ray's, for the hosts. Set ``port`` if there is a firewall: hosts
    on other nodes connect to this port of the driver's machine, where the server runs.

    Params and gradients use shared memory on the driver's node (``shared_memory=False``: the network there too). To
    other nodes they use authenticated connections, encrypted unless ``encrypt=False``, which saves
    time only on processors without instructions for AES.

    A run waits ``start_seconds`` for room for its workers, at the start and when all are lost. A host that sends
    nothing for ``heartbeat_seconds`` is replaced. One that has had no workers for ``idle_seconds`` is given back to the
    cluster (None: never).

    ``wire`` sends gradients in fewer bytes: as "float32", "float16", "bfloat16" or "int8", or only the largest
    entries ("topk:0.01" is a share of them, "topk:1000" their number). What a worker did not send is added to its next
    gradient. ``points_wire`` rounds params on their way to workers to one of the first three. Both apply to all workers
    of the run, wherever they are, and to its replay: see ``nw.problems.Encoded``.
    """

    address: str | None = None
    resources_per_worker: Mapping[str, Any] = field(default_factory=lambda: {"num_cpus": 1})
    runtime_env: Mapping[str, Any] | None = None
    shared_memory: bool = True
    encrypt: bool = True
    port: int | None = None
    start_seconds: float = 300.0
    heartbeat_seconds: float = 15.0
    idle_seconds: float | None = 60.0
    wire: str | None = None
    points_wire: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None and not (isinstance(self.address, str) and self.address):
            raise TypeError(f"address must be None, 'auto' or 'host:port', got {self.address!r}")
        if self.runtime_env is not None and not isinstance(self.runtime_env, Mapping):
            raise TypeError(f"runtime_env must be like {{'pip': ['mine']}}, got {self.runtime_env!r}")
        _check_true_or_false(self.shared_memory, "shared_memory")
        if self.address is not None and self.address.startswith("ray://"):
            raise ValueError(
                f"address={self.address!r} is for Ray's client, behind which the hosts cannot reach the server: run "
                f"your script on a machine of the cluster (for example with `ray job submit`) and give address='auto'"
            )
        _check_connections(self, "host")
        checks.positive(self.start_seconds, "start_seconds", "it is how long to wait for room")
        if self.idle_seconds is not None:
            checks.positive(self.idle_seconds, "idle_seconds", "it is how long a host may be without workers")
        if self.port is not None and not 0 < checks.at_least(1, self.port, "port", "hosts connect to it") < 65_536:
            raise ValueError(f"port must be below 65536, got {self.port}")
        _ = self.need

    def described(self) -> dict[str, Any]:
        """Return the entry in ``config.json``: all fields but ``runtime_env``, which may contain secrets."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "runtime_env"}
        values["resources_per_worker"] = dict(self.resources_per_worker)
        return {"type": "RayCluster", "has_runtime_env": self.runtime_env is not None} | values

    @property
    def need(self) -> dict[str, float]:
        """The resources that one worker needs, by the names that nodes have for them."""
        wanted = self.resources_per_worker
        if not isinstance(wanted, Mapping):
            raise TypeError(f"resources_per_worker must be like {{'num_cpus': 1, 'num_gpus': 0.5}}, got {wanted!r}")
        unknown = sorted(set(wanted) - {*RESOURCES, "resources"})
        if unknown:
            known = ", ".join([*RESOURCES, "resources"])
            raise ValueError(f"resources_per_worker has no {', '.join(map(repr, unknown))}; it has {known}")
        amounts = {"CPU": 1.0} | {name: wanted[option] for option, name in RESOURCES.items() if option in wanted}
        if not isinstance(wanted.get("resources", {}), Mapping):
            raise TypeError(f"resources must be like {{'fast': 1}}, got {wanted['resources']!r}")
        amounts |= dict(wanted.get("resources", {}))
        need = {name: float(amount) for name, amount in amounts.items() if _checked_amount(name, amount) > 0}
        if not need:
            raise ValueError("resources_per_worker must ask for something: num_cpus=0.1 fits ten workers on a core")
        return need

    @property
    def largest_host(self) -> float:
        """The most workers of one host: those that share a GPU, so that each worker sees one GPU only."""
        gpus = self.need.get("GPU", 0.0)
        return max(1, math.floor(1 / gpus + ENOUGH)) if gpus > 0 else math.inf

    @property
    def threads(self) -> int:
        """The number of threads that a worker's libraries may use."""
        return max(1, math.floor(self.need.get("CPU", 1.0) + ENOUGH))

    def room(self, available: Mapping[str, float]) -> int:
        """Return how many workers fit into the available resources. A part of a GPU comes from one GPU only."""
        fits = [available.get(name, 0.0) / amount for name, amount in self.need.items()]
        gpus, needed = available.get("GPU", 0.0), self.need.get("GPU", 0.0)
        if 0 < needed < 1:
            whole = math.floor(gpus + ENOUGH)
            fits.append(whole * self.largest_host + math.floor((gpus - whole) / needed + ENOUGH))
        return math.floor(min(fits) + ENOUGH)

    def actor_options(self, workers: int) -> dict[str, Any]:
        """Return the options of the Ray actor that hosts this many workers."""
        total = {name: round(amount * workers, 4) for name, amount in self.need.items()}
        options: dict[str, Any] = {"num_cpus": total.pop("CPU", 0), "num_gpus": total.pop("GPU", 0)}
        if "memory" in total:
            options["memory"] = total.pop("memory")
        options["resources"] = total
        options["runtime_env"] = None if self.runtime_env is None else dict(self.runtime_env)
        return options


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
        _check_connections(self, "machine")
        if self.start_seconds is not None:
            checks.positive(self.start_seconds, "start_seconds", "it is how long to wait for workers")

    def described(self) -> dict[str, Any]:
        """Return the entry in ``config.json``: all fields but ``key_file``; ``workers`` has an entry of its own."""
        left_out = ("key_file", "workers")
        return {"type": "Listen"} | {
            item.name: getattr(self, item.name) for item in fields(self) if item.name not in left_out
        }


Elsewhere = RayCluster | Listen
"""Where workers are: on a Ray cluster, or on machines that connect."""


def checked_engine(engine: Any) -> Elsewhere | None:
    """Return where the workers of an ``engine`` argument are; None for worker processes on this machine."""
    if isinstance(engine, (RayCluster, Listen)):
        return engine
    if isinstance(engine, str) and engine in NAMES:
        return RayCluster() if engine == "ray" else None
    nearest = checks.did_you_mean(engine, NAMES)
    raise ValueError(
        f"engine must be 'processes', 'ray', nw.RayCluster(...) or nw.Listen(...), got {checks.shown(engine)}{nearest}"
    )


def sent_through(problem: Any, wire: str | None, points_wire: str | None) -> Any:
    """Return the problem whose gradients and points are rounded to what is sent; the problem itself if nothing is."""
    return problem if wire is None and points_wire is None else Encoded(problem, wire, points_wire)


@final
@dataclass(frozen=True)
class WorkerOptions:
    """How the workers of a run behave, and what is done when they fail."""

    slowdown: dict[int, float] = field(default_factory=dict)
    speeds: Speeds | None = None
    replace_hung: bool = False
    max_failures: int = 5
    log: Path | None = None
    most_workers: int = 0
    """If this is more than the run starts with, the others join when there is room."""
    idle_seconds: float = math.inf
    """A place that has had no workers for this long is dismissed."""
    audit: Audit | None = None
    """Which gradients are computed twice; None: none."""
    together: bool = False
    """True if the clock starts, and the first tickets are sent, when every worker is ready."""


# Checks


def _check_connections(settings: Elsewhere, host: str) -> None:
    """Check what both engines need for connections to other machines, which messages call ``host``."""
    _check_true_or_false(settings.encrypt, "encrypt")
    checked_encoding(settings.wire, "wire", points=False)
    checked_encoding(settings.points_wire, "points_wire", points=True)
    checks.positive(settings.heartbeat_seconds, "heartbeat_seconds", f"it is how long a {host} may be silent")
    if settings.heartbeat_seconds < SHORTEST_SILENCE:
        raise ValueError(
            f"heartbeat_seconds must be at least {SHORTEST_SILENCE:g}, got {settings.heartbeat_seconds}: {host}s send "
            f"a heartbeat every second"
        )


def _check_true_or_false(value: Any, name: str) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def _checked_amount(name: str, amount: Any) -> float:
    if isinstance(amount, bool) or not isinstance(amount, Real) or not 0 <= float(amount) < math.inf:
        raise ValueError(f"a worker needs a number of {name} that is not negative, got {amount!r}")
    return float(amount)
