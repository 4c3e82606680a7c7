"""Workers on a Ray cluster. Only ``train`` needs Ray."""

from nowait.engines.cluster.connection import connected, import_ray
from nowait.engines.cluster.options import RayCluster, checked_engine

__all__ = ["RayCluster", "checked_engine", "connected", "import_ray"]
