"""Workers that connect to the server from anywhere, with ``nowait worker``. Needs no Ray."""

from nowait.engines.listen.options import Listen
from nowait.engines.listen.preparing import prepare_to_listen

__all__ = ["Listen", "prepare_to_listen"]
