"""Checks what a run that listens needs, before its folder is made."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from nowait.engines.listen.key_file import drain_key_path, make_key_file, read_key
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
    _prepare_draining(path)
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        socket.create_server((listen.host, listen.port), family=family).close()
    except OSError as error:
        raise OSError(f"the server cannot listen at {listen.host}, port {listen.port}: {error.strerror}") from None


def _prepare_draining(path: Path) -> None:
    """Make the drain key file if there is none. A run whose hosts cannot be drained can go on."""
    second = drain_key_path(path)
    try:
        if make_key_file(second):
            logger.warning("made the drain key file %s: nowait drain needs it, workers do not", second)
        read_key(second)
    except OSError as error:
        logger.warning("nowait drain cannot be used for this run: %s", error)
