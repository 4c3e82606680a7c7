"""Checks what a run that listens needs, before its folder is made."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from nowait.engines.listen.key_file import make_key_file, read_key
from nowait.engines.listen.options import Listen

logger = logging.getLogger("nowait.listen")


def require_cryptography() -> None:
    """Raise unless connections can be encrypted; the error says what to install."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"workers on other machines need cryptography ({error}): pip install 'nowait[listen]'"
        ) from error


def prepare_to_listen(listen: Listen) -> None:
    """Make the key file if there is none, and raise if the key cannot be read or the port is in use."""
    require_cryptography()
    path = Path(listen.key_file)
    if make_key_file(path):
        logger.warning("made the key file %s: workers need a copy of it", path)
    read_key(path)
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        socket.create_server((listen.host, listen.port), family=family).close()
    except OSError as error:
        raise OSError(f"the server cannot listen at {listen.host}, port {listen.port}: {error.strerror}") from None
