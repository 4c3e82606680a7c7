"""Connects to Ray for the duration of a run."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from nowait.engines.cluster.probe import check_address
from nowait.fleet.options import RayCluster

logger = logging.getLogger("nowait")


def import_ray() -> Any:
    """Import Ray; an error says how to install it."""
    try:
        import cryptography  # noqa: F401
        import ray
    except ImportError as error:
        raise ImportError(f"engine='ray' needs Ray and cryptography ({error}): pip install 'nowait[ray]'") from error
    return ray


@contextlib.contextmanager
def connected(cluster: RayCluster, workers: int | None) -> Iterator[int]:
    """Connect to the cluster, and yield for how many workers it has room. ``workers`` is the most the run will have."""
    ray = import_ray()
    if ray.is_initialized():
        if ray.util.client.ray.is_connected():
            raise ValueError(
                "Ray is connected through its client (ray://), behind which the hosts cannot reach the server: run "
                "your script on a machine of the cluster"
            )
        yield _room(ray, cluster)
        return
    if cluster.address is None and os.environ.get("RAY_ADDRESS"):
        logger.warning("RAY_ADDRESS is set, but this run starts a Ray of its own: address='auto' would join the other")
    if cluster.address is not None:
        check_address(cluster.address)
    with _restored_signal_handlers():
        ray.init(**_init_options(cluster, workers))
        try:
            yield _room(ray, cluster)
        finally:
            _shut_down(ray)


def _shut_down(ray: Any) -> None:
    """Shut Ray down, also if a second Ctrl-C interrupts that."""
    try:
        ray.shutdown()
    except BaseException:
        ray.shutdown()
        raise


def _init_options(cluster: RayCluster, workers: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {"logging_level": logging.ERROR, "include_dashboard": None}
    if cluster.address is not None:
        return options | {"address": cluster.address}
    total = {name: amount * (workers or 0) for name, amount in cluster.need.items()}
    options |= {"address": "local", "include_dashboard": False}
    options["num_cpus"] = max(os.cpu_count() or 1, math.ceil(total.pop("CPU", 0)))
    own = {name: amount for name, amount in total.items() if name not in ("GPU", "memory") and amount}
    return options | {"resources": own or None}


def _room(ray: Any, cluster: RayCluster) -> int:
    nodes = ray._private.state.available_resources_per_node()
    return sum(cluster.room(available) for available in nodes.values())


@contextlib.contextmanager
def _restored_signal_handlers() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
