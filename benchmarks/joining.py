"""Seconds from connecting to the first gradient, for a host that joins a run as ``nowait worker`` does.

    make bench-engines

One worker trains all the time, on this machine. Another host joins the run: first it has nothing, and the problem is
sent to it; then it has the problem, but no process has loaded it; then its connection is cut, and it comes back with
processes that are running. Before each of the first two the process that will load the problem has been started, as on
a host that waits for its server.
"""

import contextlib
import logging
import os
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

import nowait as nw
from nowait.fleet.host.client import Client, ClientSettings
from nowait.fleet.wire.connection import Address, DisconnectedError
from nowait.fleet.wire.secure import make_key_file, read_host_key

ROUNDS = 3
WAYS = ("the problem is sent", "the problem is there", "after a broken connection")


class Times(nw.Method, nw.Callback):
    """Asynchronous SGD that notes when the first gradient of worker 1 arrives."""

    def __init__(self):
        self.method, self.done = nw.AsynchronousSGD(nw.Constant(0.001)), False
        self.arrived, self.time, self.begun = threading.Event(), 0.0, threading.Event()

    def start(self, server):
        self.method.start(server)

    def on_arrival(self, server, arrival):
        self.method.on_arrival(server, arrival)
        self.begun.set()
        if arrival.worker == 1 and not self.arrived.is_set():
            self.time = time.monotonic()
            self.arrived.set()

    def on_step(self, control):
        if self.done:
            control.stop()


def wait_until_idle(process):
    """Wait until a process has used no processor time for a second: it has imported what it can."""
    used, since = None, time.monotonic()
    while time.monotonic() - since < 1.0:
        now = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[:13]
        if now[0] != "S" or now[11:] != used:
            used, since = now[11:], time.monotonic()
        time.sleep(0.05)


def join(client, times):
    """Join the run; returns the seconds until the first gradient, and a function that cuts the connection."""
    times.arrived.clear()
    began = time.monotonic()
    server, welcome = client._join(forever=False)

    def work():
        with contextlib.suppress(DisconnectedError):
            client._work(server, welcome)

    thread = threading.Thread(target=work)
    thread.start()
    times.arrived.wait()

    def cut():
        server._link._socket.shutdown(socket.SHUT_RDWR)
        thread.join()
        server.close()

    return times.time - began, cut


def rounds(address, times):
    """Join in the three ways; returns the seconds of each round."""
    times.begun.wait()
    found = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        with Client(ClientSettings(address, workers=1, threads=1)) as client:
            for way in WAYS:
                if way != "after a broken connection":
                    client._end_run()
                    client._prepare()
                    wait_until_idle(client._prepared.zygote._process.pid)
                seconds, cut = join(client, times)
                found[way].append(seconds)
                cut()
    times.done = True
    return found


def main():
    logging.getLogger("nowait").setLevel(logging.ERROR)
    problem = nw.problems.LeastSquares.random(samples=2_000, dimension=400, batch_size=16, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        make_key_file(key)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        address = Address("127.0.0.1", port, read_host_key(key), encrypt=True)
        times, found = Times(), {}
        with Client(ClientSettings(address, workers=1, threads=1)) as steady:
            threads = [
                threading.Thread(target=steady.run),
                threading.Thread(target=lambda: found.update(rounds(address, times))),
            ]
            for thread in threads:
                thread.start()
            engine = nw.Listen(port=port, host="127.0.0.1", key_file=key, workers=(1, 2))
            slow = nw.speeds.Fixed([0.05, 0.001])  # one worker leaves the machine to the one that joins
            nw.train(problem, times, steps=10**9, callbacks=[times], engine=engine, speeds=slow, progress=False)
            for thread in threads:
                thread.join()
    print(f"{os.cpu_count()} cores; seconds from connecting to the first gradient, medians of {ROUNDS} rounds")
    for way, seconds in found.items():
        print(f"    {way:26s} {statistics.median(seconds):6.3f}   {' '.join(f'{each:.3f}' for each in seconds)}")


if __name__ == "__main__":
    main()
