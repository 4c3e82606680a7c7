"""Workers that connect to the server from anywhere, with ``nowait worker``. Needs no Ray."""

from nowait.engines.listen.options import Listen

__all__ = ["Listen"]
