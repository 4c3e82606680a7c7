"""Bytes per processor-second of one connection between machines, relative to plain TCP in Python.

    make bench-engines

Vectors of a million float64 go from one process to another on this machine: with ``sendall`` and ``recv_into`` alone,
through a connection of this library that is authenticated, and through one that is encrypted. Both ends are measured in
processor seconds, so that other work on the machine matters little.
"""

import os
import select
import socket
import statistics
import time

import numpy as np

from nowait.engines.network.messages import Format, MessageKind, bytes_of
from nowait.engines.network.sockets import HostSocket, ServerSocket

DIMENSION, VECTORS, ROUNDS = 1_000_000, 60, 5
FORMAT = Format(DIMENSION, "<f8")


def in_child(task):
    """Run a task in a forked process. Returns a function that waits for the task's result, a float."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(task()).encode())
        os._exit(0)

    def result():
        os.waitpid(child, 0)
        found = float(os.read(reading, 100))
        os.close(reading)
        os.close(writing)
        return found

    return result


def plain():
    """Return the processor seconds of sender and receiver with plain TCP."""
    vector, received = np.ones(DIMENSION), np.zeros(DIMENSION)

    def send():
        with socket.create_connection(listener.getsockname()) as connection:
            began = time.process_time()
            for _ in range(VECTORS):
                connection.sendall(bytes_of(vector))
            return time.process_time() - began

    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent = in_child(send)
        connection, _ = listener.accept()
        began = time.process_time()
        with connection:
            for _ in range(VECTORS):
                missing = bytes_of(received)
                while missing:
                    missing = missing[connection.recv_into(missing) :]
        seconds = time.process_time() - began
        return sent(), seconds


def ours(encrypt):
    """Return the processor seconds of sender and receiver with a connection of this library."""
    vector, received = np.ones(DIMENSION), np.zeros(DIMENSION)

    def send():
        host = HostSocket.connect(server.address, b"1", FORMAT, lambda *_: [])
        host.finish_handshake(30.0)
        began = time.process_time()
        for _ in range(VECTORS):
            host.send(MessageKind.REPORTS, b"", [vector])
        while (message := host.receive()) is None:  # the server's reply to everything
            wait(host.fds)
        assert message.kind == MessageKind.END
        seconds = time.process_time() - began
        host.close()
        return seconds

    server = ServerSocket.open("127.0.0.1", None, FORMAT, lambda *_: [received], encrypt=encrypt)
    sent = in_child(send)
    messages, began = 0, 0.0
    while messages <= VECTORS:
        for _ in server.receive(wait(server.fds)):
            began = began or time.process_time()
            messages += 1
    seconds = time.process_time() - began
    server.send(b"1", MessageKind.END)
    server.end(b"1")
    sending = sent()
    server.close()
    return sending, seconds


def wait(fds):
    """Wait until some of the descriptors are readable; returns those."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll()]


def main():
    ways = {"plain TCP": plain, "authenticated": lambda: ours(False), "encrypted": lambda: ours(True)}
    rounds = [{name: way() for name, way in ways.items()} for _ in range(ROUNDS)]
    gigabytes = VECTORS * FORMAT.vector_bytes / 1e9
    print(f"{os.cpu_count()} cores; medians of {ROUNDS} alternating rounds; GB per processor-second")
    for name in ways:
        sending, receiving = (statistics.median(gigabytes / each[name][end] for each in rounds) for end in (0, 1))
        ratio = statistics.median(max(each["plain TCP"]) / max(each[name]) for each in rounds)
        print(f"    {name:14s} sending {sending:5.2f}   receiving {receiving:5.2f}   slower end, ratio {ratio:5.2f}")


if __name__ == "__main__":
    main()
