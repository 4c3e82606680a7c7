"""Kills random workers, zygotes, hosts and connections of real runs; then every run must replay to the same bits.

    python benchmarks/kills.py processes --kills 600 --seed 0   # 6 workers on this machine, one run for each method
    python benchmarks/kills.py listen --kills 300               # 3 `nowait worker` of 2 workers each, through a proxy
    python benchmarks/kills.py ray --kills 100                  # a Ray with two more nodes on this machine

A run ends when all workers work again after the last kill. Whatever it leaves behind is counted: processes, shared
memory, and descriptors of this process; all must be 0, and the exit code is 1 otherwise.
"""

import argparse
import contextlib
import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

import nowait as nw

MARK = f"NOWAIT_KILLS={os.getpid()}"
WORKERS, STALL_SECONDS, SECONDS_TO_END, STEPS_AFTERWARDS = 6, 60.0, 45.0, 200
METHODS = [
    nw.AsynchronousSGD(nw.DelayAdaptive(0.01)),
    nw.RennalaSGD(nw.Constant(0.01), batch=4),
    nw.MinibatchSGD(nw.Constant(0.01)),
    nw.Auto(nw.Constant(0.01)),
]
WEIGHTS = {  # how often each kind is drawn
    "processes": {"kill worker": 16, "terminate worker": 3, "kill zygote": 1},
    "listen": {
        "kill worker": 8,
        "terminate worker": 2,
        "kill zygote": 2,
        "cut connection": 5,
        "kill host": 2,
        "terminate host": 1,
    },
    "ray": {"kill worker": 8, "terminate worker": 2, "kill zygote": 2, "kill host": 2, "terminate host": 1},
}


def marked():
    """Return parent and command line of each process that this one or its descendants started, and that runs."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            folder = Path("/proc", name)
            if MARK.encode() in (folder / "environ").read_bytes().split(b"\0"):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                found[int(name)] = parent, (folder / "cmdline").read_bytes()
    return found


def targets():
    """Return the process ids of workers, zygotes and hosts; the evaluator and the like count as workers."""
    running = marked()
    forked = {process for process, (_, command) in running.items() if b"nowait.fleet.host.zygote" in command}
    zygotes = {process for process in forked if running[process][0] not in forked}
    parents = {running[process][0] for process in zygotes} & running.keys()
    hosts = [parent for parent in parents if re.search(rb"nowait.cli|ray::", running[parent][1])]  # not a raylet
    return {"worker": sorted(forked - zygotes), "zygote": sorted(zygotes), "host": sorted(hosts)}


def descriptors(process="self"):
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{process}/fd"))
    return 0


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


class Proxy:
    """Passes bytes between connections to its port and a server; ``cut`` breaks one of them."""

    def __init__(self, target):
        self._target, self._pairs = target, []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    pair = client, socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                self._pairs.append(pair)
                for source, sink in (pair, pair[::-1]):
                    threading.Thread(target=self._pump, args=(source, sink, pair), daemon=True).start()

    def _pump(self, source, sink, pair):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        self._break(pair)

    def _break(self, pair):
        with contextlib.suppress(ValueError):
            self._pairs.remove(pair)
        for connection in pair:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def cut(self, chance):
        pairs = list(self._pairs)
        if pairs:
            self._break(chance.choice(pairs))
        return bool(pairs)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for pair in list(self._pairs):
            self._break(pair)


class WorkerCommands(logging.Handler):
    """Keeps three ``nowait worker`` running, through a proxy, from when the server listens until ``close``."""

    def __init__(self, folder):
        super().__init__()
        self.key, self._output, self.proxy, self._running = Path(folder, "key"), Path(folder, "output"), None, []
        logging.getLogger("nowait.listen").addHandler(self)

    def emit(self, record):
        port = re.search(r"workers connect with: .*:(\d+) --key-file", record.getMessage())
        if port:
            self.proxy = Proxy(int(port[1]))
            self.replace()

    def replace(self):
        """Start others for those that have ended."""
        if self.proxy is not None:
            self._running = [process for process in self._running if process.poll() is None]
            self._running += [self._start() for _ in range(3 - len(self._running))]

    def _start(self):
        command = [sys.executable, "-c", "from nowait.cli import main; main()", "worker", "--workers", "2"]
        where = ["--connect", f"127.0.0.1:{self.proxy.port}", "--key-file", str(self.key), "--retry-seconds", "5"]
        with self._output.open("ab") as output:
            return subprocess.Popen(command + where, stderr=output)

    def close(self):
        """Wait until all have noticed that the run is over."""
        logging.getLogger("nowait.listen").removeHandler(self)
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in self._running:
                process.wait(SECONDS_TO_END)
        self.proxy.close()


class Killer(threading.Thread, nw.Callback):
    """Kills at random until there were enough kills; as a callback, it ends the run when all workers are back."""

    def __init__(self, engine, kills, chance, commands=None):
        super().__init__(daemon=True)
        self._weights, self._kills, self._chance, self._commands = WEIGHTS[engine], kills, chance, commands
        self._pause = 0.02 if engine == "processes" else 0.08
        self.killed, self.most_descriptors, self.most_elsewhere = Counter(), 0, 0
        self.stalled, self.over, self._steps, self._enough_at = False, False, 0, None

    def on_step(self, control):
        self._steps = control.steps
        if self._steps == 1:
            self.start()
        if self.killed.total() < self._kills or len(control.workers) < WORKERS:
            self._enough_at = None
        elif self._enough_at is None:
            self._enough_at = self._steps + STEPS_AFTERWARDS
        elif self._steps >= self._enough_at:
            control.stop()

    def run(self):
        seen, since, kind = 0, time.monotonic(), None
        while not self.over:
            time.sleep(self._pause * (0.5 + self._chance.random()))
            if self._commands is not None:
                self._commands.replace()
            if self.killed.total() < self._kills:
                kind = kind or self._chance.choices(list(self._weights), self._weights.values())[0]
                kind = None if self._kill(kind) else kind  # it waits until there is something to kill
            if self._steps != seen:
                seen, since = self._steps, time.monotonic()
            elif time.monotonic() - since > STALL_SECONDS and not self.stalled:
                self.stalled = True
                os.kill(os.getpid(), signal.SIGINT)

    def _kill(self, kind):
        """Kill one of a kind; returns False if there is none now."""
        found, (verb, what), before = targets(), kind.split(), self.killed.total()
        self.most_descriptors = max(self.most_descriptors, descriptors())
        self.most_elsewhere = max([self.most_elsewhere, *map(descriptors, found["zygote"] + found["host"])])
        if what == "connection":
            self.killed[kind] += self._commands.proxy.cut(self._chance)
        elif found[what]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(found[what]), signal.SIGTERM if verb == "terminate" else signal.SIGKILL)
                self.killed[kind] += 1
        print(f"\r{self.killed.total():5} of {self._kills} kills, step {self._steps} ", end="", flush=True)
        return self.killed.total() > before


def attack(engine, method, kills, chance, options):
    """Train while processes are killed, replay, print a line; returns the kills by kind, and what went wrong."""
    problem = nw.problems.NoisyQuadratic(dimension=20_000 if engine == "listen" else 2_000, sigma=0.1)
    if not isinstance(method, nw.Auto):
        problem = nw.problems.Compressed(problem, nw.problems.TopK(200))  # workers remember what they did not send
    memory, before, began = shared_memory(), descriptors(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        commands = None
        if engine == "listen":
            commands = stack.enter_context(contextlib.closing(WorkerCommands(folder)))
            options = {"engine": nw.Listen(port=0, host="127.0.0.1", key_file=commands.key)}
        killer = Killer(engine, kills, chance, commands)
        options = {"workers": WORKERS, "steps": 10**9, "evaluate_every": 50, "max_failures": 10**6} | options
        run = nw.train(problem, method, callbacks=[killer], progress=False, **options)
        killer.over = True
        killer.join()
    seconds = time.monotonic() - began
    again = nw.replay(run.trace, problem, method, progress=False)
    same = np.array_equal(again.last, run.last) and again.stats.lost == run.stats.lost
    tickets = len(np.unique(run.trace.ticket)) == len(run.trace)
    ours = [process for process, (_, command) in marked().items() if b"nowait" in command]
    left = {
        "processes": len(ours),
        "shared memory": 0 if engine == "ray" else len(shared_memory() - memory),
        "descriptors": 0 if engine == "ray" else max(0, descriptors() - before),
    }
    print(
        f"\r{type(method).__name__:16} {killer.killed.total():4} kills in {seconds:5.1f} s, {run.stats.steps:7} steps, "
        f"{run.stats.lost:4} gradients lost; replay: {'the same bits' if same and tickets else 'OTHER BITS'}; "
        f"left: {', '.join(f'{count} {what}' for what, count in left.items())}; at most {killer.most_descriptors} "
        f"descriptors here, {killer.most_elsewhere} in a host or zygote{'; STALLED' * killer.stalled}",
        flush=True,
    )
    return killer.killed, sum(left.values()) + (not (same and tickets)) + killer.stalled


@contextlib.contextmanager
def ray_cluster():
    """Two nodes besides the driver's own, all on this machine."""
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (the name is Ray's)
    import ray
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 100 * 2**20}
    head = {"num_cpus": 2, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head | memory)
    for _ in range(2):
        cluster.add_node(num_cpus=2, **memory)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()
    cluster.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=WEIGHTS)
    parser.add_argument("--kills", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default="0,1,2,3", help="numbers, of AsynchronousSGD, RennalaSGD, ...")
    asked = parser.parse_args()
    name, _, value = MARK.partition("=")
    os.environ[name] = value
    logging.getLogger("nowait").addHandler(logging.NullHandler())  # thousands of warnings that workers were killed
    logging.getLogger("nowait.listen").setLevel(logging.INFO)
    logging.getLogger("nowait.listen").propagate = False
    methods = [METHODS[int(number)] for number in asked.methods.split(",")]
    chance, killed, wrong = random.Random(asked.seed), Counter(), 0
    with ray_cluster() if asked.engine == "ray" else contextlib.nullcontext():
        for number, method in enumerate(methods):
            kills = asked.kills * (number + 1) // len(methods) - asked.kills * number // len(methods)
            options = {"engine": nw.RayCluster(shared_memory=number % 2 == 0)} if asked.engine == "ray" else {}
            kinds, count = attack(asked.engine, method, kills, chance, options)
            killed, wrong = killed + kinds, wrong + count
    print(f"{killed.total()} kills: {', '.join(f'{count} x {kind}' for kind, count in killed.most_common())}")
    print("everything is as it should be" if wrong == 0 else f"{wrong} THINGS WENT WRONG")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
