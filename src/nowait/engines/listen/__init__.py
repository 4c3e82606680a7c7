"""Workers that connect to the server from anywhere, with ``nowait worker``. Needs no Ray."""

from nowait.fleet.preparing import prepare_to_listen

__all__ = ["prepare_to_listen"]
