"""The engines whose workers are not all processes of this machine, and the ``engine`` argument that names them."""

from __future__ import annotations

from typing import Any

from nowait.engines.cluster.options import RayCluster
from nowait.engines.listen.options import Listen

Elsewhere = RayCluster | Listen
"""Where workers are: on a Ray cluster, or on machines that connect."""


def checked_engine(engine: Any) -> Elsewhere | None:
    """Return where the workers of an ``engine`` argument are; None for worker processes on this machine."""
    if isinstance(engine, (RayCluster, Listen)):
        return engine
    if engine == "ray":
        return RayCluster()
    if engine == "processes":
        return None
    raise ValueError(f"engine must be 'processes', 'ray', nw.RayCluster(...) or nw.Listen(...), got {engine!r}")
