"""The engines whose workers are not all processes of this machine, and the ``engine`` argument that names them."""

from __future__ import annotations

from typing import Any

from nowait.core import checks
from nowait.engines.cluster.options import RayCluster
from nowait.engines.listen.options import Listen

NAMES = ("processes", "ray")
"""The engines that have a name."""
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
