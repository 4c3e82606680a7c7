"""What has to be there before a run listens, or a worker connects: libraries, key files, and the port."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nowait.fleet.options import Listen
from nowait.fleet.server.patience import Pauses

if TYPE_CHECKING:
    from nowait.fleet.wire.secure import HostKey

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
    """Make the key files if there are none, and raise if a key cannot be read or the port is in use."""
    require_cryptography()
    from nowait.fleet.wire.secure import make_key_file, read_server_key, server_key_path

    path = Path(listen.key_file)
    if make_key_file(path):
        second = server_key_path(path)
        logger.warning("made the key file %s: workers need a copy of it, and must not get %s", path, second)
    read_server_key(path)
    _prepare_draining(path)
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        socket.create_server((listen.host, listen.port), family=family).close()
    except OSError as error:
        raise OSError(f"the server cannot listen at {listen.host}, port {listen.port}: {error.strerror}") from None


def _prepare_draining(path: Path) -> None:
    """Make the drain key file if there is none. A run whose hosts cannot be drained can go on."""
    from nowait.fleet.wire.secure import drain_key_path, make_drain_key_file, read_drain_key

    try:
        if make_drain_key_file(path):
            logger.warning("made the drain key file %s: nowait drain needs it, workers do not", drain_key_path(path))
        read_drain_key(path)
    except OSError as error:
        logger.warning("nowait drain cannot be used for this run: %s", error)


def awaited_key(path: Path, seconds: float, now: Callable[[], float], sleep: Callable[[float], None]) -> HostKey:
    """Return the key of a worker; as long as there is no file, or it is empty, look for it again.

    The server may make it later.
    """
    from nowait.fleet.wire.secure import read_host_key

    deadline, pauses = now() + seconds, Pauses()
    while not _is_there(path):
        if now() >= deadline:
            raise FileNotFoundError(
                f"the key file {path} did not appear within {seconds:g} s: the server makes it; copy it to this machine"
            )
        pause = min(pauses.next(1.0), max(0.0, deadline - now()))
        logger.info("there is no key file %s: looking for it again in %.1f s", path, pause)
        sleep(pause)
    return read_host_key(path)


def _is_there(path: Path) -> bool:
    """Return False if a file is missing or empty; another process may be writing it."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError:
        return True  # reading it says what is wrong
