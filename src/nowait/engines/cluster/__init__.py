"""Workers on a Ray cluster. Only ``train`` needs Ray."""

from nowait.engines.cluster.connection import connected, import_ray
from nowait.engines.cluster.options import RayCluster

__all__ = ["RayCluster", "connected", "import_ray"]
