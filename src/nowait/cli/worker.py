"""``nowait worker``: runs workers for a server on another machine."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import typer

from nowait.cli.exits import on_interrupt
from nowait.core.errors import WorkerFailedError
from nowait.fleet.platform import available_cores, require_worker_processes

if TYPE_CHECKING:
    from nowait.fleet.wire.secure import HostKey


@final
@dataclass(frozen=True)
class WorkerOptions:
    """The options of the command, and the key from its file."""

    host: str
    port: int
    key: HostKey
    workers: int | None
    threads: int | None
    retry_seconds: float
    stay: bool
    encrypt: bool


def run_worker(asked: WorkerOptions, problem: Any = None) -> None:
    """Connect, and run workers until the run is over. A failure is printed, and ends the command with status 1."""
    require_worker_processes()
    from nowait.fleet.host.client import Client, ClientSettings
    from nowait.fleet.wire.connection import Address, DisconnectedError

    cores = available_cores()
    workers = cores if asked.workers is None else asked.workers
    settings = ClientSettings(
        Address(asked.host, asked.port, asked.key, asked.encrypt),
        workers=workers,
        threads=max(1, cores // workers) if asked.threads is None else asked.threads,
        retry_seconds=asked.retry_seconds,
        stay=asked.stay,
        problem=problem,
    )
    show_messages()
    try:
        with on_interrupt(lambda: "The server goes on without these workers."), Client(settings) as client:
            client.run()
    except (DisconnectedError, WorkerFailedError) as error:
        typer.echo(f"nowait: {error}", err=True)
        raise typer.Exit(1) from None


def run_drain(host: str, port: int, key_file: Path, name: str | None, *, encrypt: bool) -> None:
    """Ask a server that a machine leaves, and print its answer."""
    from nowait.fleet.host.client import ask_to_drain
    from nowait.fleet.wire.connection import Address, DisconnectedError
    from nowait.fleet.wire.secure import read_drain_key, read_host_key

    address = Address(host, port, read_host_key(key_file), encrypt)
    try:
        typer.echo(ask_to_drain(address, read_drain_key(key_file), name or None))
    except (DisconnectedError, WorkerFailedError) as error:
        typer.echo(f"nowait: {error}", err=True)
        raise typer.Exit(1) from None


def show_messages() -> None:
    """Print what happens to connections as plain lines on standard error."""
    logger = logging.getLogger("nowait.listen")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("nowait: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
