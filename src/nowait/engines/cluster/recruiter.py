"""Asks Ray for hosts. Calls to Ray may take long or fail, so they are made beside the run, by a thread."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, final

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nowait.engines.cluster.distant import DistantStaff
from nowait.engines.cluster.host import Assignment, Host
from nowait.engines.cluster.network import Address
from nowait.engines.cluster.options import RayCluster
from nowait.engines.processes.places import Place
from nowait.engines.processes.staff import Office, Staff

SECONDS_TO_END = 5.0
"""How long hosts may take to end well before they are killed."""
LONGEST_WORDS = 2_000


@final
@dataclass(eq=False)
class Recruit:
    """A host that was asked for."""

    identity: bytes
    node: str
    """For messages."""
    node_id: str
    size: int
    """How many workers it takes in all."""
    room: int
    """How many more."""
    actor: Any = None
    ended: Future[str] = field(default_factory=Future)
    ready: bool = False
    delivered: bool = False
    """A gradient of its workers has come; of several hosts on the driver's node, a gradient of any of them."""
    near: Staff | None = None
    """Its workers, once it has been heard of, if they are on the driver's node;"""
    far: DistantStaff | None = None
    """if they are on another."""
    since: float = field(default_factory=monotonic)

    @property
    def place(self) -> Place | None:
        """Where its workers are."""
        return self.near or self.far


def driver_ip() -> str:
    """By what address other nodes reach this process."""
    return str(ray.util.get_node_ip_address())


@final
class Recruiter:
    """Finds nodes with room and starts hosts there."""

    def __init__(self, cluster: RayCluster, office: Office, door: tuple[str, bytes], address: Address) -> None:
        self._cluster, self._office, self._door, self._address = cluster, office, door, address
        self._home_node: str = ray.get_runtime_context().get_node_id()
        self._payload: list[Any] | None = None
        self._started: deque[Recruit] = deque()
        self._number = 0
        self.asking = False
        """Is a request under way? The hosts of one that is not were all told of by ``started``."""
        self._pending: list[Recruit] = []
        self._all: list[Recruit] = []
        self._failures: Counter[str] = Counter()
        """By node."""
        self._closing = False
        self._demand = 0
        self._thread = Background()
        self._nodes = "it was not asked which nodes there are"

    def ask(self, workers: int, total: int, paused: Collection[str] = ()) -> None:
        """Have hosts started for workers without room, on nodes that are not paused and have some."""
        self.asking = True
        self._thread.do(lambda: self._recruit(workers, total, paused))

    def started(self) -> Iterator[Recruit]:
        """Those asked for since; they may not be there yet."""
        while self._started:
            yield self._started.popleft()

    def error(self) -> Exception | None:
        """What went wrong with the latest call to Ray that failed, told once."""
        error, self._thread.error = self._thread.error, None
        return error

    def why(self, host: Recruit) -> tuple[str, bool]:
        """Why a host ended, and whether that is likely to happen to others: not if it was killed."""
        error = host.ended.exception()
        if error is None:
            return host.ended.result(), False
        lasting = isinstance(error, (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError))
        return str(error).strip()[-LONGEST_WORDS:], lasting

    def nodes(self) -> str:
        """The nodes and what they have left, for messages."""
        return self._nodes

    def failed(self, host: Recruit) -> None:
        """It could not start: other nodes come first."""
        self._failures[host.node_id] += 1

    def dismiss(self, host: Recruit) -> None:
        """Make sure that a host is gone."""
        self._thread.do(lambda: _kill(host))

    def close(self) -> None:
        """All hosts end, by themselves or not; also those that are only being asked for."""
        self._closing = True
        wait_for([host.ended for host in list(self._all) if host.ready], timeout=SECONDS_TO_END)
        self._thread.do(self._end)
        self._thread.close(SECONDS_TO_END)

    # On the thread

    def _end(self) -> None:
        for host in self._all:
            _kill(host)
        if self._demand:
            _demand([])

    def _recruit(self, workers: int, total: int, paused: Collection[str]) -> None:
        if self._closing:
            return
        try:
            self._pending = [host for host in self._pending if not host.ready and not host.ended.done()]
            for node_id, node, room in self._nodes_with_room():
                taken = 0 if node_id in paused else min(room, workers)
                workers -= max(0, taken)
                while taken > 0:
                    size = int(min(taken, self._cluster.largest_host))
                    self._start(node_id, node, size)
                    taken -= size
            if workers > 0 and self._cluster.address is not None and self._demand != total:
                self._demand = total
                _demand([self._cluster.need] * total)
        finally:
            self.asking = False

    def _nodes_with_room(self) -> list[tuple[str, str, int]]:
        """Identity, name and room of each node: the driver's own first, those where hosts cannot start last."""
        available = ray._private.state.available_resources_per_node()
        nodes, words = [], []
        for node in ray.nodes():
            if not node["Alive"]:
                continue
            node_id, name = node["NodeID"], f"node {node['NodeID'][:8]} ({node['NodeManagerAddress']})"
            left = available.get(node_id, {})
            promised = sum(host.size for host in self._pending if host.node_id == node_id)
            nodes.append((node_id, name, self._cluster.room(left) - promised))
            words.append(f"{name} has { ({key: left.get(key, 0.0) for key in self._cluster.need}) } left")
        self._nodes = "; ".join(words) or "the cluster has no nodes"
        return sorted(nodes, key=lambda node: (self._failures[node[0]], node[0] != self._home_node, -node[2]))

    def _start(self, node_id: str, node: str, size: int) -> None:
        self._number += 1
        host = Recruit(f"host {self._number}".encode(), node, node_id, size, size)
        options = self._cluster.actor_options(size)
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=False)
        assignment = self._assignment(host)
        for hosts in (self._pending, self._all, self._started):  # before it can say anything
            hosts.append(host)
        try:
            host.actor = ray.remote(Host).options(max_restarts=0, **options).remote(assignment)
        except Exception as error:
            host.ended.set_exception(error)
            raise
        host.actor.serve.remote().future().add_done_callback(lambda future: _copy(future, host.ended))

    def _assignment(self, host: Recruit) -> Assignment:
        near = host.node_id == self._home_node and self._cluster.shared_memory
        return Assignment(
            identity=host.identity,
            door=self._door if near else None,
            address=None if near else self._address,
            payload=[] if near else self._shared_payload(),
            length=self._office.points.length,
            dtype=self._office.points.dtype.str,
            threads=self._cluster.threads,
            path=[os.path.abspath(entry) for entry in sys.path],
            ray_threads=str(max(1, int(self._cluster.actor_options(host.size)["num_cpus"]))),
        )

    def _shared_payload(self) -> list[Any]:
        """The job in Ray's object store, put there once."""
        if self._payload is None:
            self._payload = [ray.put(np.frombuffer(part, np.uint8)) for part in self._office.payload.parts()]
        return self._payload


@final
class Background:
    """A thread that does one thing after the other, and does not keep the process from ending."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="nowait-recruiter", daemon=True)
        self._thread.start()

    def do(self, task: Callable[[], None]) -> None:
        """After what is to be done already."""
        self._tasks.put(task)

    def close(self, seconds: float) -> None:
        """Finish, but do not wait longer than this."""
        self._tasks.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception as error:
                self.error = error


def _kill(host: Recruit) -> None:
    if host.actor is not None:
        with contextlib.suppress(Exception):  # it is gone already
            ray.kill(host.actor, no_restart=True)


def _demand(bundles: list[dict[str, float]]) -> None:
    """Tell an autoscaler, if there is one, what is needed."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)


def _copy(future: Future[str], ended: Future[str]) -> None:
    error = future.exception()
    if error is None:
        ended.set_result(future.result())
    else:
        ended.set_exception(error)
