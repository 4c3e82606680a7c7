"""Connects to Ray for the duration of a run.

Before that it checks that a Ray cluster listens at the address: Ray itself would try for minutes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

from nowait.fleet.options import RayCluster

logger = logging.getLogger("nowait")

SECONDS_TO_ANSWER = 8.0
"""How long an address may take to answer."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What an HTTP/2 client sends first: its preface, and a SETTINGS frame without settings (RFC 9113, section 3.4)."""
FRAME_HEADER_BYTES, SETTINGS = 9, 4
"""The server's first frame has this header and, in its fourth byte, this type."""


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


# Whether Ray listens at an address


def check_address(address: str, seconds: float = SECONDS_TO_ANSWER) -> None:
    """Raise ``ConnectionError`` if no Ray listens at ``host:port``. Other kinds of addresses are left to Ray."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return
    reasons: list[str] = []
    target = (host.strip("[]"), int(port))
    thread = threading.Thread(target=lambda: reasons.append(_why_not(*target, seconds)), daemon=True)
    thread.start()
    thread.join(seconds)  # looking up a name has no timeout of its own
    reason = reasons[0] if reasons else f"it did not answer within {seconds:g} s"
    if reason:
        raise ConnectionError(
            f"no Ray listens at {address} ({reason}): start one there with `ray start --head`, or give the address "
            f"that it printed"
        )


def _why_not(host: str, port: int, seconds: float) -> str:
    """Return why an address is not that of a Ray cluster; an empty string if it is one. Ray's protocol is gRPC."""
    deadline = monotonic() + seconds
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            if _uses_tls():
                return ""
            connection.sendall(GREETING)
            answer = b""
            while len(answer) < FRAME_HEADER_BYTES:
                connection.settimeout(max(0.01, deadline - monotonic()))
                received = connection.recv(FRAME_HEADER_BYTES - len(answer))
                if not received:
                    return "what listens there is something else"
                answer += received
    except TimeoutError:
        return f"it did not answer within {seconds:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return "" if answer[3] == SETTINGS else "what listens there is something else"


def _uses_tls() -> bool:
    """Return True if Ray's connections are encrypted, as its own variable says."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
