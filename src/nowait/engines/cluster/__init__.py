"""Workers on a Ray cluster. Only ``train`` needs Ray."""

from nowait.engines.cluster.connection import connected, import_ray

__all__ = ["connected", "import_ray"]
