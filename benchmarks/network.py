"""Speed between machines: of one connection relative to plain TCP, and of a run relative to Ray's pattern.

    make bench-engines
    .venv/bin/python benchmarks/network.py [connection | handshakes | codecs | parts | small | large | wires ...]

``connection``: vectors of a million float64 go from one process to another on this machine: with ``sendall`` and
``recv_into`` alone, through a connection of this library that is authenticated, and through one that is encrypted.
``handshakes``: the processor time of the server for a host that connects, and for a stranger, whose first message was
made without the key of this server.
``codecs``: how fast vectors are rounded to fewer bytes and read from them, next to a copy of the vector. The speed on a
processor without newer instructions: with ``NUMBA_CPU_NAME=generic`` in the environment.
``parts``: the processor time of everything that has to be done for one step with such vectors, each part alone.
``small`` and ``large``: gradients that are copies of the point, compared with the asynchronous parameter server of
Ray's documentation on the same Ray: d = 400 over the network path on one node, and d = 1,000,000 in float64 between two
nodes (``ray.cluster_utils.Cluster``, both on this machine), with and without encryption, and with float16 numbers.
``wires``: the same with other settings of ``wire`` and ``points_wire``; the names have the megabytes of a gradient and
of a point.

Besides rates there are processor seconds of all processes, which other work on the machine changes little.
"""

import contextlib
import itertools
import os
import select
import socket
import statistics
import sys
import time
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from processor_time import compare

from nowait.fleet.wire.connection import SENT_PAYLOAD, Address, Connection, HostSocket, Link
from nowait.fleet.wire.messages import Format, MessageKind, bytes_of
from nowait.fleet.wire.secure import (
    HEADER,
    OVERHEAD,
    Authentication,
    ClientHandshake,
    Encryption,
    FrameKind,
    ProtocolError,
    ServerHandshake,
    ServerKey,
)
from nowait.numerics.vectors import sgd_step
from nowait.problems.encodings import FLOATS, Encodings, codec_of

ENCRYPTING, AUTHENTICATING = "encrypting", "authenticating (encrypt=False)"
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
        address = Address(*listener.getsockname(), key.for_hosts(), encrypt)
        host = HostSocket.connect(address, b"1", FORMAT, lambda *_: [])
        host.finish_handshake(30.0)
        began = time.process_time()
        for _ in range(VECTORS):
            host.send(MessageKind.REPORTS, b"", [vector])
        while (message := host.receive()) is None:  # the server's reply to everything
            wait(host.fd, host.events)
        assert message.kind == MessageKind.END
        seconds = time.process_time() - began
        host.close()
        return seconds

    key = ServerKey.new()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent = in_child(send)
        tcp, _ = listener.accept()
    handshake = ServerHandshake(key, X25519PrivateKey.generate, encrypt=encrypt)
    server = Link(tcp, Connection(handshake, FORMAT, lambda *_: [received]))
    messages, began = 0, 0.0
    while messages <= VECTORS:
        wait(server.fd, select.POLLIN)
        while server.receive() is not None:
            began = began or time.process_time()
            messages += 1
        server.write()  # the greeting
    seconds = time.process_time() - began
    server.connection.send(MessageKind.END)
    server.end()
    sending = sent()
    server.close()
    return sending, seconds


def wait(fd, events):
    """Wait for one of some events of a descriptor."""
    poller = select.poll()
    poller.register(fd, events)
    poller.poll()


def timed(way):
    """Return the processor seconds of both ends, and the seconds of the whole."""
    began = time.perf_counter()
    return *way(), time.perf_counter() - began


def connection():
    """Compare one connection with plain TCP."""
    ways = {"plain TCP": plain, "authenticated": lambda: ours(False), "encrypted": lambda: ours(True)}
    rounds = [{name: timed(way) for name, way in ways.items()} for _ in range(ROUNDS)]
    gigabytes = VECTORS * FORMAT.vector_bytes / 1e9
    print(f"one connection, d = 10^6: medians of {ROUNDS} alternating rounds; GB per processor-second, GB per second")
    for name in ways:
        sending, receiving, rate = (statistics.median(gigabytes / each[name][n] for each in rounds) for n in range(3))
        slower = statistics.median(max(each["plain TCP"][:2]) / max(each[name][:2]) for each in rounds)
        whole = statistics.median(each["plain TCP"][2] / each[name][2] for each in rounds)
        print(
            f"    {name:14s} sending {sending:5.2f}   receiving {receiving:5.2f}   in seconds {rate:5.2f}   "
            f"ratio of the slower end {slower:5.2f}, in seconds {whole:5.2f}",
            flush=True,
        )


def handshakes():
    """Print how many first messages of connections the server can answer or refuse in a second."""
    key = ServerKey.new()

    def answer(greeting):
        with contextlib.suppress(ProtocolError):
            ServerHandshake(key, X25519PrivateKey.generate, encrypt=True).receive(greeting)

    print("the first message of a connection: microseconds of the server's processor time, and messages per second")
    for name, known in (("of a host", key), ("of a stranger", ServerKey.new())):
        message = ClientHandshake(known.for_hosts(), X25519PrivateKey.generate(), encrypt=True).greeting
        seconds = []
        for _ in range(20):
            began = time.process_time()
            for _ in range(100):
                answer(message)
            seconds.append((time.process_time() - began) / 100)
        print(f"    {name:14s} {1e6 * min(seconds):6.0f} {1 / min(seconds):9.0f}", flush=True)


def codecs():
    """Compare encoding and decoding with copying, for vectors in the processor's cache and for large ones."""
    print("codecs: medians of 15 alternating rounds; GB of float64 or float32 vectors per processor-second")
    for length, dtype in itertools.product((20_000, DIMENSION), (np.float64, np.float32)):
        vector = np.random.default_rng(0).standard_normal(length).astype(dtype)
        memory, out = (1e-4 * vector).astype(dtype), np.empty_like(vector)
        ways = {("a copy", ""): partial(np.copyto, out, vector)}
        for name in FLOATS:
            codec = codec_of(name, length, dtype)
            if codec is not None:
                code = np.zeros(codec.num_bytes, np.uint8)
                ways[name, "encode"] = partial(codec.encode, vector, code)
                ways[name, "encode v + e"] = partial(codec.encode_sum, vector, memory, out, code)
                ways[name, "decode"] = partial(codec.decode, code, out)
        rates = {way: [] for way in ways}
        for way, do in [*ways.items()] * 16:
            began = time.thread_time()
            for _ in range(DIMENSION // length):
                do()
            rates[way].append(DIMENSION * vector.itemsize / 1e9 / (time.thread_time() - began))
        print(f"    d = {length:,} {np.dtype(dtype)}")
        for (name, what), (_, *measured) in rates.items():  # the first round loads or compiles
            print(f"        {name:9s} {what:13s} {statistics.median(measured):6.1f}", flush=True)


def parts():
    """Print the milliseconds of processor time that a step with a million float64 cannot do without."""
    rng = np.random.default_rng(0)
    params, gradient, out = rng.random((3, DIMENSION))
    sealing, opening, authenticating = Encryption(bytes(32)), Encryption(bytes(32)), Authentication(bytes(32))
    frames = [memoryview(bytearray(len(piece) + OVERHEAD)) for piece in pieces(params)]

    def seal(cipher):
        for frame, piece in zip(frames, pieces(params), strict=True):
            HEADER.pack_into(frame, 0, len(piece), FrameKind.VECTOR, 0, 0)
            cipher.seal(frame, piece)

    def open_frames():
        for frame, piece in zip(frames, pieces(out), strict=True):
            opening.open(frame, piece)

    found = {
        ENCRYPTING: lambda: seal(sealing),
        "decrypting": open_frames,
        AUTHENTICATING: lambda: seal(authenticating),
        "the step": lambda: sgd_step(params, gradient, 1e-6, out),
        "computing a gradient (a copy)": lambda: np.copyto(out, params),
    }
    times = {name: [] for name in found}
    sent = [tuple(1e3 * seconds / VECTORS for seconds in plain()) for _ in range(ROUNDS)]
    for _ in range(20):
        for name, do in found.items():
            began = time.process_time()
            do()
            times[name].append(1e3 * (time.process_time() - began))
    spent = {name: statistics.median(values) for name, values in times.items()}
    spent["sending (TCP)"], spent["receiving (TCP)"] = (statistics.median(values) for values in zip(*sent, strict=True))
    print("the parts of a step, d = 10^6 float64: milliseconds of processor time, each alone")
    for name, milliseconds in spent.items():
        print(f"    {name:34s} {milliseconds:5.2f}")
    others = (AUTHENTICATING, "the step", "computing a gradient (a copy)")
    both_ways = sum(milliseconds for name, milliseconds in spent.items() if name not in others)
    print(f"    authenticating takes {spent[AUTHENTICATING] / spent[ENCRYPTING]:.2f} of the time of encrypting")
    print(f"    {'the server: the step, a vector in and one out':50s} {both_ways + spent['the step']:5.2f}")
    print(f"    {'the host: a vector in and one out':50s} {both_ways:5.2f}", flush=True)


def pieces(vector):
    """Return the bytes of a vector in as many pieces as it has frames."""
    whole = bytes_of(vector)
    return [whole[start : start + SENT_PAYLOAD] for start in range(0, len(whole), SENT_PAYLOAD)]


def small():
    """Compare runs with small vectors over the network path, on one node."""
    from comparison import ROUNDS, engine, one_node, pattern

    with one_node():
        for workers in (8, 40):
            network = partial(engine, 400, workers, 20_000, shared_memory=False)
            ways = {"encrypted": network, "authenticated": partial(network, encrypt=False)}
            compare(f"d = 400, M = {workers}", partial(pattern, 400, workers, 1_500), ways, ROUNDS)


def large():
    """Compare runs with large vectors between two nodes; the workers are on the one without the driver."""
    from comparison import ROUNDS, engine, pattern, two_nodes

    with two_nodes():
        far = {"resources_per_worker": {"num_cpus": 0, "resources": {"far": 1}}}
        network = partial(engine, 1_000_000, 4, 200, **far)
        half = {"wire": "float16", "points_wire": "float16"}
        ways = {
            "encrypted": network,
            "authenticated": partial(network, encrypt=False),
            "encrypted, float16": partial(network, **half),
            "authenticated, float16": partial(network, encrypt=False, **half),
        }
        compare("d = 10^6, M = 4, two nodes", partial(pattern, 1_000_000, 4, 100, where="far"), ways, ROUNDS)


def wires():
    """Compare runs with large vectors that travel in fewer bytes between two nodes."""
    from comparison import ROUNDS, engine, pattern, two_nodes

    settings = [(None, None), ("float32", "float32"), ("float16", None), ("float16", "float16"), ("int8", "float16")]
    with two_nodes():
        far = {"resources_per_worker": {"num_cpus": 0, "resources": {"far": 1}}}
        ways = {}
        for gradients, points in [*settings, ("topk:0.01", "float16")]:
            sizes = Encodings(gradients, points).codecs(DIMENSION, FORMAT.dtype).shapes(DIMENSION, FORMAT.dtype)
            points_mb, gradients_mb = (length * np.dtype(dtype).itemsize / 1e6 for length, dtype in sizes)
            name = f"{gradients}, {points}: {gradients_mb:.2f} + {points_mb:.2f} MB"
            ways[name] = partial(engine, DIMENSION, 4, 200, wire=gradients, points_wire=points, **far)
        compare("d = 10^6, M = 4, encrypted", partial(pattern, DIMENSION, 4, 100, where="far"), ways, ROUNDS)


def main():
    what = {
        "connection": connection,
        "handshakes": handshakes,
        "codecs": codecs,
        "parts": parts,
        "small": small,
        "large": large,
        "wires": wires,
    }
    print(f"{os.cpu_count()} cores")
    for name in sys.argv[1:] or what:
        what[name]()


if __name__ == "__main__":
    main()
