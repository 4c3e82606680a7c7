"""The arguments of ``nw.train`` that say who computes and how slowly, and their checks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nowait.api.rebuild import rebuild
from nowait.core import Audit, checks
from nowait.core.audit import checked_audit
from nowait.core.capabilities import Capabilities
from nowait.fleet.options import DEFAULT_WORKERS, Elsewhere, Listen
from nowait.speeds import Adversary, Speeds

IMMEDIATELY, TOGETHER = "immediately", "together"
LAST_PORT = 65_535
MOST_WORKERS = 2**22
"""The largest number of process ids that Linux allows."""


def check_started_once(environment: Mapping[str, str] = os.environ) -> None:
    """Raise a ValueError in a process of ``torchrun`` and the like: each of them would start the whole run.

    The variables of Slurm and MPI say nothing: this process may be the only one of its job that calls ``nw.train``.
    """
    size, rank = environment.get("WORLD_SIZE", ""), environment.get("RANK", "")
    if rank and size.isdecimal() and int(size) > 1:
        raise ValueError(
            f"this process is rank {rank} of {size} (variables RANK and WORLD_SIZE, as torchrun sets them), and each "
            f"would start the whole run: start the script once, with python instead of torchrun, because nowait starts "
            f"the workers itself (workers={size}). If every process shall train on its own, or only this one does, "
            f'unset WORLD_SIZE before, in Python with os.environ.pop("WORLD_SIZE")'
        )


def checked_workers(workers: Any, speeds: Speeds | None, cluster: Elsewhere | None) -> int | tuple[int, int] | None:
    """Return the number of workers, or (minimum, maximum), or None for as many as the cluster has room for."""
    if isinstance(cluster, Listen) and cluster.workers is not None:
        if workers is not None and _comparable(workers) != _comparable(cluster.workers):
            raise ValueError(
                f"workers={workers!r} differs from nw.Listen(workers={cluster.workers!r}): give one of them"
            )
        workers = cluster.workers
    if workers is None:
        if isinstance(speeds, Speeds):
            return speeds.num_workers
        if isinstance(cluster, Listen):
            return DEFAULT_WORKERS
        return None if cluster is not None else os.cpu_count() or 1
    if not isinstance(workers, (tuple, list)):
        return _checked_number(1, workers, "workers", "a run needs at least one")
    if cluster is None:
        raise ValueError(
            f"workers={workers!r}: a minimum and a maximum are for engine='ray' or nw.Listen; on one machine, give a "
            "number"
        )
    if len(workers) != 2:
        raise ValueError(f"workers must be a number, or a minimum and a maximum, as in (2, 16), got {workers!r}")
    fewest = _checked_number(1, workers[0], "the minimum number of workers", "a run needs at least one")
    return fewest, _checked_number(fewest, workers[1], "the maximum", "workers=(minimum, maximum)")


def _comparable(workers: Any) -> Any:
    return tuple(workers) if isinstance(workers, list) else workers


def _checked_number(least: int, workers: Any, name: str, why: str) -> int:
    number = checks.at_least(least, workers, name, why)
    if number > MOST_WORKERS:
        raise ValueError(
            f"{name} must be at most {MOST_WORKERS:,}, got {number:,}: no machine runs that many processes"
        )
    return number


def workers_of(description: Any, cluster: Elsewhere | None) -> int | tuple[int, int] | None:
    """Return the workers of a ``config.json``; on this machine, the maximum if the run had a minimum and a maximum."""
    if cluster is None and isinstance(description, list):
        description = description[-1]
    return checked_workers(description, None, cluster)


def speeds_of(description: Any) -> Speeds | None:
    """Return the speeds described in a ``config.json``."""
    return checked_speeds(rebuild(description, "speeds"))


def checked_speeds(speeds: Speeds | None) -> Speeds | None:
    """Return speeds that real workers can follow, or raise."""
    if speeds is None:
        return None
    checks.instance(speeds, Speeds, "speeds", "nw.speeds.Fixed([0.01, 0.01, 0.1])")
    if isinstance(speeds, Adversary):
        raise TypeError("real workers cannot follow Adversary, which decides the order of arrivals itself")
    return speeds


def checked_slowdown(slowdown: Mapping[int, float] | None) -> dict[int, float]:
    """Return the factor by which each slowed worker takes longer, by worker number."""
    if slowdown is None:
        return {}
    if not isinstance(slowdown, Mapping):
        raise TypeError(
            f"slowdown must map worker numbers to factors, as in {{0: 100.0}}, got {checks.shown(slowdown)}"
        )
    checked = {}
    for worker, factor in slowdown.items():
        number = checks.at_least(0, worker, "a worker in slowdown", "workers are numbered from 0")
        checked[number] = checks.positive(factor, f"slowdown[{number}]", "it multiplies compute times")
        if checked[number] < 1:
            raise ValueError(f"slowdown[{number}] must be at least 1, got {factor!r}: no worker can be made faster")
    return checked


def suitable_audit(audit: Any, problem: Any) -> Audit | None:
    """Return the audit for an argument; raise if a share is asked for and gradients cannot be computed again."""
    checked, can = checked_audit(audit), Capabilities.of(problem)
    if checked is not None and checked.share > 0 and not can.auditable:
        why = "the data of each process"
        if can.gradient_with_memory is not None:
            why = "a memory of the worker"
        elif can.repeatable:
            why = "more than the point and the sample, as replayable = False says"
        raise ValueError(
            f"audit={audit!r}: gradients of this {type(problem).__name__} depend on {why}, so another worker cannot "
            f"compute them again: leave audit out"
        )
    return checked


def checked_start(start: Any) -> str:
    """Return when workers start: "immediately", each as soon as it is ready, or "together"."""
    if not isinstance(start, str) or start not in (IMMEDIATELY, TOGETHER):
        raise ValueError(
            f'start must be "{IMMEDIATELY}", so that each worker starts when it is ready, or "{TOGETHER}", so that all '
            f"wait for the last one, got {checks.shown(start)}"
        )
    return start


def checked_server_threads(threads: Any) -> int | None:
    """Return the number of threads for the server's passes over params; None chooses it."""
    return None if threads is None else checks.at_least(1, threads, "server_threads", "the server's own is one of them")


def checked_metrics_address(port: Any) -> tuple[str, int] | None:
    """Return where metrics are shown: 9100 on this machine only, "0.0.0.0:9100", or ("0.0.0.0", 9100)."""
    if port is None:
        return None
    host: Any = "127.0.0.1"
    number = port
    if isinstance(port, str):
        host, _, number = port.rpartition(":")
        host, number = host.strip("[]"), int(number) if number.isdigit() else number
    elif isinstance(port, (tuple, list)) and len(port) == 2:
        host, number = port
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= LAST_PORT or not host:
        raise ValueError(
            f'metrics_port must be a port, such as 9100, or an address, such as "0.0.0.0:9100", '
            f"got {checks.shown(port)}"
        )
    return str(host), number


def check_slowdown(slowdown: Any, workers: Any, speeds: Speeds | None, cluster: Elsewhere | None) -> None:
    """Raise if a ``slowdown`` argument is malformed, or names a worker that will not exist."""
    number = checked_workers(workers, speeds, cluster)
    check_slowed_workers(checked_slowdown(slowdown), number[1] if isinstance(number, tuple) else number)


def check_slowed_workers(slowdown: Mapping[int, float], most: int | None) -> None:
    """Raise if ``slowdown`` names a worker that will not exist. ``most`` None: their number is not known yet."""
    unknown = [] if most is None else sorted(worker for worker in slowdown if worker >= most)
    if unknown:
        those = "the only worker is 0" if most == 1 else f"the workers are 0 to {(most or 1) - 1}"
        raise ValueError(f"slowdown names worker {', '.join(map(str, unknown))}, but {those}")
