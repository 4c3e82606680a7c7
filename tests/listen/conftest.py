"""Servers that listen, ``nowait worker`` processes, and a proxy whose connections a test can cut."""

import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import nowait as nw
from nowait.fleet.wire.secure import make_key_file


class Proxy:
    """Passes bytes between connections to its port and a server, until ``cut``. New connections are accepted again."""

    def __init__(self, stack):
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port = self._listener.getsockname()[1]
        self.target = None
        self._open = []
        self._lock = threading.Lock()
        self.accepted = 0
        stack.callback(self.cut)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self.accepted += 1
                    self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self):
        """Break all connections, as a network does."""
        with self._lock:
            cut, self._open = self._open, []
        for connection in cut:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


class Setting:
    """A key, an engine, and worker processes that are ended with the test."""

    def __init__(self, folder, stack):
        self.folder, self._stack = folder, stack
        self.key = folder / "key"
        make_key_file(self.key)
        self.workers = []
        self.proxy = Proxy(stack)

    def engine(self, **options):
        return nw.Listen(**{"port": 0, "host": "127.0.0.1", "key_file": self.key} | options)

    def worker(self, *options, port, host="127.0.0.1", prefix=()):
        """Start ``nowait worker``, which does not find the modules of the tests."""
        source = str(Path(nw.__file__).parents[1])
        command = [sys.executable, "-c", "from nowait.cli import main; main()", "worker", "--key-file", str(self.key)]
        output = self._stack.enter_context((self.folder / f"output {len(self.workers)}").open("wb"))
        process = subprocess.Popen(
            [*prefix, *command, "--connect", f"{host}:{port}", *options],
            env=os.environ | {"PYTHONPATH": source, "TMPDIR": str(self.folder)},
            cwd=self.folder,
            stderr=output,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self.workers.append(process)
        return process

    def output(self, number=0):
        """What a worker has printed."""
        return (self.folder / f"output {number}").read_text(encoding="utf-8")


class _Opening(logging.Handler):
    def __init__(self, then):
        super().__init__()
        self._then = then

    def emit(self, record):
        found = re.search(r"workers connect with: .*:(\d+) --key-file", record.getMessage())
        if found:
            self._then(int(found[1]))


@pytest.fixture
def setting(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Setting(tmp_path, stack)


@pytest.fixture
def when_listening():
    """A function: ``when_listening(then)`` calls ``then(port)`` as soon as a run listens."""
    logger = logging.getLogger("nowait.listen")
    level, handlers = logger.level, []

    def when(then):
        handlers.append(_Opening(then))
        logger.addHandler(handlers[-1])
        logger.setLevel(logging.INFO)

    yield when
    for handler in handlers:
        logger.removeHandler(handler)
    logger.setLevel(level)
