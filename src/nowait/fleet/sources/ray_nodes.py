"""Asks Ray for hosts. Calls to Ray may take long or fail, so a background thread makes them."""

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
from time import monotonic, time
from typing import Any, final

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nowait.fleet.host.host import Resources
from nowait.fleet.options import RayCluster
from nowait.fleet.server.events import HOME
from nowait.fleet.sources.ray import HostRecord, Request, choose_nodes
from nowait.fleet.sources.ray_host import Host, HostSettings
from nowait.fleet.wire.connection import Address
from nowait.fleet.wire.messages import Shapes
from nowait.fleet.wire.records import GRACE_SECONDS

SECONDS_TO_END = 5.0
"""How long hosts may take to exit before they are killed."""
SECONDS_BETWEEN_POLLS = 2.0
"""How often Ray is asked which nodes are being drained."""
SHORTEST_GRACE = 5.0
"""Seconds that a draining node is given at least: the clock of its deadline may not be ours."""
LONGEST_CAUSE = 2_000
"""Characters of Ray's error messages that are shown."""


def driver_ip() -> str:
    """Return the address by which other nodes reach this process."""
    return str(ray.util.get_node_ip_address())


@final
class HostProvisioner:
    """Finds nodes with free resources and starts hosts there."""

    def __init__(
        self,
        cluster: RayCluster,
        resources: Resources,
        local_address: tuple[str, bytes],
        address: Address,
        shapes: Shapes,
    ) -> None:
        self._cluster, self._resources, self._shapes = cluster, resources, shapes
        self._local_address, self._address = local_address, address
        self._home_node: str = ray.get_runtime_context().get_node_id()
        self._payload: list[Any] | None = None
        self._started: deque[HostRecord] = deque()
        self._last_number = HOME
        self.asking = False
        """True while a request is running. ``started`` has returned all hosts of finished requests."""
        self._pending: list[HostRecord] = []
        self._all: list[HostRecord] = []
        self._failures: Counter[str] = Counter()
        """The number of failures, by node."""
        self._closing = False
        self._demand = 0
        self._thread = BackgroundThread()
        self._nodes = "the nodes have not been listed yet"
        self._draining: dict[str, float] = {}
        self._polling, self._next_poll = False, 0.0

    def open(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ask(self, request: Request) -> None:
        """Start hosts on nodes that have free resources and are not paused."""
        self.asking = True
        self._thread.do(lambda: self._provision(request))

    def draining(self, now: float) -> dict[str, float]:
        """Return the nodes that are being drained, as of the latest poll, with the seconds that they had left then."""
        if not self._polling and now >= self._next_poll:
            self._polling, self._next_poll = True, now + SECONDS_BETWEEN_POLLS
            self._thread.do(self._poll)
        return self._draining

    def started(self) -> Iterator[HostRecord]:
        """Return the hosts that were asked for since the last call; they may not run yet."""
        while self._started:
            yield self._started.popleft()

    def error(self) -> Exception | None:
        """Return the error of the latest call to Ray that failed, once."""
        error, self._thread.error = self._thread.error, None
        return error

    def why(self, host: HostRecord) -> tuple[str, bool]:
        """Return why a host exited, and whether the same would happen to others (not if it was killed)."""
        if host.cancelled:
            return host.cancelled, False
        error = host.ended.exception()
        if error is None:
            return host.ended.result(), False
        lasting = isinstance(error, (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError))
        return str(error).strip()[-LONGEST_CAUSE:], lasting

    def nodes(self) -> str:
        """Return a description of the nodes and their free resources, for messages."""
        return self._nodes

    def failed(self, host: HostRecord) -> None:
        """Note that a host could not start: other nodes are tried first."""
        self._failures[host.node_id] += 1

    def dismiss(self, host: HostRecord) -> None:
        """Kill a host."""
        self._thread.do(lambda: _kill(host))

    def release(self, host: HostRecord) -> None:
        """Return the resources of a host that was told to exit, as soon as it has."""
        host.ended.add_done_callback(lambda _: self.dismiss(host))

    def close(self) -> None:
        """Wait for the hosts to exit, and kill the others; also those that are only being started."""
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

    def _provision(self, request: Request) -> None:
        if self._closing:
            return
        try:
            self._pending = [host for host in self._pending if not host.ready and not host.ended.done()]
            unavailable = request.paused | self._draining.keys()
            nodes = self._nodes_with_room()
            chosen, left = choose_nodes(request.workers, nodes, unavailable, self._cluster.largest_host)
            for node_id, node, size in chosen:
                self._start(node_id, node, size)
            _cancel(request.stuck, instead=request.workers - left)
            if left > 0 and self._cluster.address is not None and self._demand != request.total:
                self._demand = request.total
                _demand([self._cluster.need] * request.total)
        finally:
            self.asking = False

    def _poll(self) -> None:
        """Ask Ray which nodes are being drained. An error is ignored: it asks again."""
        with contextlib.suppress(Exception):
            deadlines = ray._private.state.state.get_draining_nodes()
            self._draining = {
                node_id: max(SHORTEST_GRACE, milliseconds / 1000 - time()) if milliseconds else GRACE_SECONDS
                for node_id, milliseconds in deadlines.items()
            }
        self._polling = False

    def _nodes_with_room(self) -> list[tuple[str, str, int]]:
        """Return id, name and room of each node: the driver's own first, nodes where hosts could not start last."""
        available = ray._private.state.available_resources_per_node()
        nodes, descriptions = [], []
        for node in ray.nodes():
            if not node["Alive"]:
                continue
            node_id, name = node["NodeID"], f"node {node['NodeID'][:8]} ({node['NodeManagerAddress']})"
            left = available.get(node_id, {})
            promised = sum(host.size for host in self._pending if host.node_id == node_id)
            nodes.append((node_id, name, self._cluster.room(left) - promised))
            descriptions.append(f"{name} has { ({key: left.get(key, 0.0) for key in self._cluster.need}) } left")
        self._nodes = "; ".join(descriptions) or "the cluster has no nodes"
        return sorted(nodes, key=lambda node: (self._failures[node[0]], node[0] != self._home_node, -node[2]))

    def _start(self, node_id: str, node: str, size: int) -> None:
        self._last_number += 1
        host = HostRecord(self._last_number, node, node_id, size, since=monotonic())
        options = self._cluster.actor_options(size)
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=False)
        settings = self._settings(host)
        for hosts in (self._pending, self._all, self._started):  # before it can send anything
            hosts.append(host)
        try:
            host.actor = ray.remote(Host).options(max_restarts=0, **options).remote(settings)
        except Exception as error:
            host.ended.set_exception(error)
            raise
        host.actor.serve.remote().future().add_done_callback(lambda future: _copy(future, host.ended))

    def _settings(self, host: HostRecord) -> HostSettings:
        near = host.node_id == self._home_node and self._cluster.shared_memory
        return HostSettings(
            identity=host.identity,
            local_address=self._local_address if near else None,
            address=None if near else self._address,
            payload=[] if near else self._shared_payload(),
            shapes=self._shapes,
            threads=self._cluster.threads,
            path=[os.path.abspath(entry) for entry in sys.path],
            ray_threads=str(max(1, int(self._cluster.actor_options(host.size)["num_cpus"]))),
        )

    def _shared_payload(self) -> list[Any]:
        """Return references to the job in Ray's object store, where it is put once."""
        if self._payload is None:
            self._payload = [ray.put(np.frombuffer(part, np.uint8)) for part in self._resources.payload.parts()]
        return self._payload


@final
class BackgroundThread:
    """A daemon thread that executes one task after the other."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.error: Exception | None = None
        """The error of the latest task that failed."""
        self._thread = threading.Thread(target=self._run, name="nowait-provisioner", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def do(self, task: Callable[[], None]) -> None:
        """Add a task to the queue."""
        self._tasks.put(task)

    def close(self, seconds: float) -> None:
        """Finish the tasks, but wait at most this many seconds."""
        self._tasks.put(None)
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception as error:
                self.error = error


def _kill(host: HostRecord) -> None:
    if host.actor is not None:
        with contextlib.suppress(Exception):  # it may be gone already
            ray.kill(host.actor, no_restart=True)


def _cancel(stuck: Collection[HostRecord], instead: int) -> None:
    """Cancel hosts that wait for resources, if others were started for so many workers.

    What is missing besides them came first. The workers of a host that were not started elsewhere are asked for again.
    """
    for host in stuck:
        if instead <= 0:
            return
        host.cancelled = "another job took the resources of its node"
        instead -= host.size
        _kill(host)


def _demand(bundles: list[dict[str, float]]) -> None:
    """Tell an autoscaler, if there is one, which resources are needed."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)


def _copy(future: Future[str], ended: Future[str]) -> None:
    error = future.exception()
    if error is None:
        ended.set_result(future.result())
    else:
        ended.set_exception(error)
