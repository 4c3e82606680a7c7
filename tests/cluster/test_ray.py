"""The Ray engine on a real cluster: the contract, and faults of workers, hosts, nodes and the network."""

import contextlib
import json
import logging
import os
import pickle
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nowait as nw
from faulty import Conducted, Conductor, Faulty, InOrder, Watched, train_until
from nowait.api.recorded import cluster_of
from nowait.fleet.host.relay import clock_difference
from nowait.fleet.server.gateway import Gateway
from nowait.fleet.server.remote import RemoteHost
from nowait.fleet.sources.ray_cluster import check_address
from nowait.fleet.wire.messages import POINT_ORDER, MessageKind
from nowait.recording import describe
from nowait.recording.sent import Sent
from nowait.testing import CATALOGUE, ENGINE_CHECKS

ray = pytest.importorskip("ray")
ray_nodes = pytest.importorskip("nowait.fleet.sources.ray_nodes")

ASYNCHRONOUS = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
ORDER = [2, 0, 1, 1, 2, 2, 0, 2]
CHECKS = ["the_trace_replays", "callbacks_stop_add_and_remove", "an_error_in_the_problem_is_shown"]


def parent_of(process):
    return int(Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])


def joined(run):
    return [int(event["worker"]) for event in run.trace.events if event["kind"] == 0]


def lost(run):
    return [int(event["worker"]) for event in run.trace.events if event["kind"] == 1]


def warnings(caplog):
    """What was logged above INFO. On a slow machine it may take long until the workers have started."""
    records = [record for record in caplog.records if record.name == "nowait" and record.levelno > logging.INFO]
    return [record.message for record in records if not record.message.startswith("waiting for workers")]


def check_that_it_replays(run, problem, method=ASYNCHRONOUS):
    assert len(np.unique(run.trace.ticket)) == len(run.trace), "each ticket arrives once at most"
    again = nw.replay(run.trace, problem, method)
    assert np.array_equal(again.last, run.last)
    assert again.stats.lost == run.stats.lost


# The contract


@pytest.mark.parametrize("name", CHECKS)
def test_the_contract_of_engines(name, both, caplog):
    """The other checks run without processes: what is different here is how orders and reports travel."""

    def train(problem, method, **options):
        return nw.train(problem, method, engine=both, **options)

    {check.__name__: check for check in ENGINE_CHECKS}[name](train)


@pytest.mark.parametrize("name", ["MinibatchSGD"])
def test_the_same_order_of_arrivals_gives_the_params_of_the_simulator(name, both, tmp_path):
    conductor = Conductor(tmp_path, workers=3)
    method, problem = CATALOGUE[name], Conducted(folder=str(tmp_path))
    run = nw.train(problem, InOrder(method, ORDER, conductor), workers=3, steps=24, seed=5, engine=both, audit=False)
    conductor.close()
    simulated = nw.simulate(problem.problem, method, nw.speeds.Adversary(ORDER), steps=24, seed=5)
    assert run.stats.engine == "ray"
    assert np.array_equal(run.last, simulated.last)
    for column in ["ticket", "worker", "job", "version", "delay", "outcome", "step", "weight", "stepsize"]:
        assert np.array_equal(run.trace.arrivals[column], simulated.trace.arrivals[column]), column


@pytest.mark.parametrize(("encrypt", "dimension"), [(True, 20_000), (False, 5)])
def test_small_and_large_params_travel_encrypted_or_not(encrypt, dimension, nodes):
    """20,000 numbers travel as frames of their own."""
    engine = nw.RayCluster(shared_memory=False, encrypt=encrypt)
    problem = Faulty(dimension=dimension)
    run = train_until(lambda jobs: len(jobs) == 3, problem, ASYNCHRONOUS, workers=3, engine=engine)
    check_that_it_replays(run, problem)


def test_a_point_for_all_travels_once_and_is_the_same_for_all(only, monkeypatch):
    problem, method = Faulty(), nw.MinibatchSGD(nw.Constant(0.1))
    sent, send = [], RemoteHost.send

    def counting_send(self, kind, content=b"", vectors=()):
        if kind in (MessageKind.ORDERS, MessageKind.REPLY) and content:
            sent.append((len(content) // POINT_ORDER.size, len(vectors)))
        send(self, kind, content, vectors)

    monkeypatch.setattr(RemoteHost, "send", counting_send)
    run = nw.train(problem, method, workers=4, steps=30, engine=only("far"), start="together")
    assert sum(orders for orders, _ in sent) >= 120
    assert sum(points for _, points in sent) <= 31, "each version once, for all four workers"
    simulated = nw.simulate(problem, method, nw.speeds.Fixed([1.0] * 4), steps=30)
    assert np.allclose(run.last, simulated.last, rtol=1e-12)


def test_what_a_worker_remembers_survives_cancelling_and_replays(both):
    problem = nw.problems.Compressed(Faulty({(1, 5): "kill", (0, 3): "fail"}), nw.problems.TopK(1))
    method = nw.RennalaSGD(nw.Constant(0.1), batch=3)
    everybody = lambda jobs: len(jobs) == 4 and jobs[1] > 5 and jobs[0] > 3  # noqa: E731
    run = train_until(everybody, problem, method, workers=4, engine=both)
    assert run.stats.late > 0
    check_that_it_replays(run, problem, method)


def test_stragglers_to_order_and_the_clock_of_another_node(only):
    speeds = nw.speeds.Fixed([0.002, 0.02])
    everybody = lambda jobs: jobs.get(0, 0) > 2 and jobs.get(1, 0) > 2  # noqa: E731
    run = train_until(everybody, Faulty(), ASYNCHRONOUS, speeds=speeds, engine=only("far"))
    for worker, seconds in enumerate((0.002, 0.02)):
        assert run.trace.compute_seconds[run.trace.worker == worker].min() >= seconds
    assert (run.trace.started >= -0.01).all(), "the other node's clock was compared with ours"
    assert (run.trace.started <= run.trace.time).all()


def test_a_cancelled_worker_does_not_play_slow_any_longer(only, tmp_path):
    """Worker 1 would take an hour. The run ends when it has a later job, so it was told of the cancelled ones."""
    marker = tmp_path / "later job"

    class Noted(Faulty):
        def gradient(self, point, sample):
            if sample.worker == 1 and sample.job >= 3:
                marker.touch()
            return super().gradient(point, sample)

    method = nw.MindFlayerSGD(nw.Constant(0.1), timeout_seconds=0.02, trials=1)
    speeds = nw.speeds.Fixed([0.001, 3600.0])
    run = train_until(lambda jobs: marker.exists(), Noted(), method, speeds=speeds, engine=only("far"))
    assert (run.trace.worker[run.trace.outcome == "late"] == 1).sum() >= 1


# Faults


@pytest.mark.parametrize("name", ["RingleaderASGD"])
def test_workers_that_die_raise_and_send_nonsense_on_both_nodes(name, both, caplog):
    faults = {(1, 2): "kill", (2, 3): "fail", (0, 4): "nan", (0, 7): "kill", (3, 0): "leave", (1, 5): "fail"}
    problem, method = Faulty(faults), CATALOGUE[name]
    reached = lambda jobs: jobs.get(0, 0) > 7 and jobs.get(1, 0) > 5 and jobs.get(2, 0) > 3 and 3 in jobs  # noqa: E731
    run = train_until(reached, problem, method, workers=4, engine=both)
    assert "worker 1 was killed by signal 9: it is replaced" in caplog.text
    assert "worker 3 ended with exit code 3: it is replaced" in caplog.text
    assert caplog.text.count("raised ArithmeticError") + caplog.text.count("ArithmeticError: this sample") >= 2
    check_that_it_replays(run, problem, method)


class Back(nw.Callback):
    """Counts those that came back."""

    joined = 0

    def on_worker_join(self, control, worker):
        self.joined += 1


@pytest.mark.parametrize(("where", "generation"), [("near", 1), ("far", 2)], ids=["near-zygote", "far-host"])
def test_a_host_or_its_zygote_is_killed_and_its_workers_are_replaced(where, generation, only, caplog):
    """The parent of a worker is the zygote, and the parent of that is the host."""

    class Kill(Faulty):
        def gradient(self, point, sample):
            if (sample.worker, sample.job) == (0, 10):
                ancestor = os.getpid()
                for _ in range(generation):
                    ancestor = parent_of(ancestor)
                os.kill(ancestor, signal.SIGKILL)
            return super().gradient(point, sample)

    back = Back()
    enough = lambda jobs: back.joined >= 2 and jobs.get(0, 0) > 10  # noqa: E731
    run = train_until(enough, Kill(), ASYNCHRONOUS, [back], workers=2, engine=only(where))
    assert lost(run) == joined(run) == [0, 1]
    assert "and workers [0, 1] with it: they are replaced" in caplog.text
    check_that_it_replays(run, Faulty())


def test_a_host_that_is_stopped_is_noticed_and_replaced(nodes, caplog):
    """Ray does not notice: heartbeats do."""

    class Stop(Faulty):
        def gradient(self, point, sample):
            if (sample.worker, sample.job) == (0, 10):
                os.kill(parent_of(os.getppid()), signal.SIGSTOP)
            return super().gradient(point, sample)

    engine = nw.RayCluster(shared_memory=False, heartbeat_seconds=3.0)
    run = train_until(lambda jobs: jobs.get(0, 0) > 10, Stop(), ASYNCHRONOUS, workers=1, engine=engine)
    assert lost(run) == [0]
    assert "silent for" in caplog.text
    check_that_it_replays(run, Faulty())


def drain(node_id):
    """What `ray drain-node` does when a machine is about to be taken away."""
    reason, deadline = ray.core.generated.autoscaler_pb2.DRAIN_NODE_REASON_PREEMPTION, int(1000 * (time.time() + 60))
    assert ray._private.worker.global_worker.gcs_client.drain_node(node_id, reason, "a test", deadline) == (True, "")


def test_nodes_are_added_removed_and_drained_while_it_trains(nodes, only, caplog, monkeypatch):
    """The first node is lost at once. The workers of the second, which is drained, deliver and leave."""
    monkeypatch.setattr(ray_nodes, "SECONDS_BETWEEN_POLLS", 0.1)
    caplog.set_level(logging.INFO, "nowait")
    node = {"num_cpus": 0, "resources": {"elsewhere": 2}, "object_store_memory": 100 * 2**20}
    first, more, drained = nodes.add_node(**node), [], []

    class Change(Watched):
        def on_step(self, control):
            if len(self.jobs) == 2 and not more:
                more.append(nodes.add_node(**node))
            if len(self.jobs) == 4 and first in nodes.worker_nodes:
                nodes.remove_node(first, allow_graceful=False)
            if set(control.workers) == {2, 3} and not drained:
                drained.append(more[0].node_id)
                drain(drained[0])

        def on_worker_lost(self, control, worker):
            if not control.workers:
                control.stop()

    change = Change(ASYNCHRONOUS, None)
    run = nw.train(Faulty(), change, workers=(2, 4), steps=10**9, engine=only("elsewhere"), callbacks=[change])
    nodes.remove_node(more[0])
    assert run.trace.initial_workers.tolist() == [0, 1]
    assert joined(run) == [2, 3]
    assert lost(run)[:2] == [0, 1]
    assert sorted(lost(run)[2:]) == [2, 3]
    assert any("is lost" in warning for warning in warnings(caplog)), "the node that was removed"
    assert not any(drained[0][:8] in warning for warning in warnings(caplog))
    assert f"the host on node {drained[0][:8]}" in caplog.text
    assert "its workers [2, 3] deliver what they compute" in caplog.text
    check_that_it_replays(run, Faulty())


@pytest.mark.parametrize("where", ["near", "far"])
def test_a_host_that_is_sent_sigterm_lets_its_workers_deliver_and_leave(where, only, caplog):
    caplog.set_level(logging.INFO, "nowait")

    class Terminate(Faulty):
        def gradient(self, point, sample):
            if (sample.worker, sample.job) == (0, 10):
                os.kill(parent_of(os.getppid()), signal.SIGTERM)
            return super().gradient(point, sample)

    class Left(nw.Callback):
        def on_worker_lost(self, control, worker):
            if not control.workers:
                control.stop()

    run = nw.train(Terminate(), ASYNCHRONOUS, workers=2, steps=10**9, engine=only(where), callbacks=[Left()])
    assert sorted(lost(run)) == [0, 1]
    jobs = run.trace.job[run.trace.worker == 0]
    assert len(jobs) > 10, "what it computed meanwhile counts"
    assert np.array_equal(jobs, np.arange(len(jobs)))
    assert run.stats.lost <= 2, "the tickets that nobody had begun"
    assert warnings(caplog) == []
    assert "leaves within 120 s" in caplog.text
    check_that_it_replays(run, Faulty())


def until_all_is_free():
    """Return when both nodes are there, and the hosts of earlier tests have given everything back."""
    while ray.available_resources().get("CPU") != 6:
        pass


def test_a_host_without_workers_is_given_back(both, caplog):
    """Worker 0 is on the driver's node; worker 1, which is on the other one, is removed."""
    caplog.set_level(logging.INFO, "nowait")
    until_all_is_free()

    class GiveBack(Watched):
        def on_step(self, control):
            if self.jobs.keys() == {0, 1} and 1 in control.workers:
                control.remove_worker(1)
            if 1 not in control.workers and ray.available_resources().get("CPU") == 5:
                control.stop()

    watch = GiveBack(ASYNCHRONOUS, None)
    engine = replace(both, idle_seconds=0.2)
    run = nw.train(Faulty(), watch, workers=2, steps=10**9, engine=engine, callbacks=[watch])
    assert lost(run) == [1]
    assert "a host has had no workers for 0.2 s: it is given back" in caplog.text
    assert warnings(caplog) == []
    check_that_it_replays(run, Faulty())


def test_the_address_of_a_cluster_answers(nodes):
    check_address(nodes.address)


def test_room_that_a_worker_leaves_is_filled(only):
    """There is room for four, and a fifth waits for it."""

    class Remove(Watched):
        def on_step(self, control):
            if {0, 1, 2, 3} <= self.jobs.keys() and 0 in control.workers:
                control.remove_worker(0)
            super().on_step(control)

    watch = Remove(ASYNCHRONOUS, lambda jobs: 4 in jobs)
    run = nw.train(Faulty(), watch, workers=(4, 5), steps=10**9, engine=only("far"), callbacks=[watch])
    assert lost(run)[0] == 0
    assert joined(run) == [4]
    check_that_it_replays(run, Faulty())


def test_a_run_takes_no_more_of_the_cluster_than_it_asked_for(only, monkeypatch):
    sizes, start = [], ray_nodes.HostProvisioner._start

    def counting_start(self, node_id, node, size):
        sizes.append(size)
        start(self, node_id, node, size)

    monkeypatch.setattr(ray_nodes.HostProvisioner, "_start", counting_start)
    nw.train(Faulty(), ASYNCHRONOUS, workers=3, steps=200, engine=only("far"))
    assert sum(sizes) == 3


def test_a_run_waits_for_the_fewest_workers_and_says_for_what(only, caplog):
    with pytest.raises(nw.WorkerFailedError, match=r"there is room for 0 of 3 workers: each needs .*nowhere"):
        nw.train(Faulty(), ASYNCHRONOUS, workers=3, steps=10, engine=replace(only("nowhere"), start_seconds=0.2))


def test_gradients_of_torch_models_travel_too(both):
    torch = pytest.importorskip("torch")
    from nowait.pytorch import TorchProblem

    torch.manual_seed(0)
    inputs = torch.randn(64, 3)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    problem = TorchProblem(lambda: torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, data, batch_size=8)
    run = nw.train(problem, nw.AsynchronousSGD(nw.Constant(0.05)), workers=3, steps=200, engine=both)
    assert run.history.loss[-1] < 0.1 * run.history.loss[0]
    assert np.array_equal(nw.replay(run.trace, problem, nw.AsynchronousSGD(nw.Constant(0.05))).last, run.last)
    assert len({worker.node for worker in run.stats.by_worker}) == 2, "the trace knows where workers were"
    assert all(place.node.startswith("node ") for place in run.trace.placements)
    assert set(run.trace.loading) == {worker.worker for worker in run.stats.by_worker if worker.gradients}


def test_a_problem_that_only_hosts_cannot_load_says_why(nodes):
    driver = os.getpid()

    class Unloadable(Faulty):
        def __setstate__(self, state):
            if parent_of(os.getpid()) != driver:
                raise RuntimeError("not here")
            self.__dict__ |= state

    with pytest.raises(nw.WorkerFailedError, match=r"hosts cannot start(.|\n)*not here"):
        nw.train(Unloadable(), ASYNCHRONOUS, workers=1, steps=10, max_failures=0, engine=nw.RayCluster())


def test_the_clock_of_a_node_is_compared_with_the_servers():
    """The host's clock is 100 s ahead; the quickest of three round trips counts."""
    replies = [(200.0, 103.0, 204.0), (210.0, 110.125, 210.25), (220.0, 121.5, 222.0)]
    assert clock_difference(replies) == 100.0


def test_the_process_that_computes_losses_is_replaced_with_its_zygote(both, tmp_path, caplog):
    """The evaluator kills its parent once, and is asked again."""

    class Once(Faulty):
        folder, driver = str(tmp_path), os.getpid()

        def loss(self, point):
            if os.getpid() != self.driver and not os.path.exists(f"{self.folder}/done"):
                open(f"{self.folder}/done", "w").close()
                os.kill(os.getppid(), signal.SIGKILL)
                signal.pause()
            return super().loss(point)

    run = nw.train(Once(), ASYNCHRONOUS, workers=2, steps=50, engine=both)
    assert run.history.step[-1] == 50
    assert lost(run) == []
    assert "it is started again" in caplog.text


def test_a_run_is_resumed_where_there_is_less_room(only, tmp_path):
    """It had four workers; now there is room for one, and the others wait for it."""

    sent = []

    def stop(control):  # called again while the run ends: a second signal would end it at once
        if len(control.workers) == 4 and not sent:
            sent.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    far = only("far")
    first = nw.train(
        Faulty(), ASYNCHRONOUS, workers=(1, 4), steps=10**6, engine=far, folder=tmp_path / "run", callbacks=[stop]
    )
    assert first.stats.interrupted
    scarce = replace(far, resources_per_worker={"num_cpus": 0, "resources": {"far": 4}})

    def stop_later(control):
        if control.steps == first.stats.steps + 200:
            control.stop()

    run = nw.resume(tmp_path / "run", Faulty(), engine=scarce, callbacks=[stop_later])
    assert run.stats.steps == first.stats.steps + 200
    assert sorted(lost(run)) == [1, 2, 3]
    assert run.trace.live_workers[-1] == 1
    check_that_it_replays(run, Faulty())
    assert nw.load(tmp_path / "run").config["workers"] == [1, 4]


def test_vectors_travel_in_fewer_bytes_also_after_a_resume(only, both, tmp_path):
    """First on the other node; then on both, by shared memory on one of them: the trace has one wire."""
    problem, engine = Faulty(dimension=9_000), replace(only("far"), wire="float16", points_wire="bfloat16")
    nw.train(problem, ASYNCHRONOUS, workers=2, steps=30, engine=engine, folder=tmp_path / "run")
    run = nw.resume(tmp_path / "run", problem, engine=both, steps=60)
    assert run.trace.sent == Sent("float16", "bfloat16", 18_000, 18_000, "float16", "bfloat16")
    assert run.stats.bytes_up == len(run.trace) * 18_000
    check_that_it_replays(run, problem)
    assert nw.load(tmp_path / "run").trace.sent == run.trace.sent


def test_workers_that_wait_for_room_are_in_the_first_checkpoint(only, tmp_path):
    def die(control):
        raise RuntimeError("before the second checkpoint")

    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="before the second"):
        nw.train(Faulty(), ASYNCHRONOUS, workers=(2, 6), steps=50, engine=only("far"), folder=folder, callbacks=[die])
    numbers = json.loads((folder / "checkpoints" / "step_0" / "state.json").read_text())
    assert numbers["wanted_workers"] == [0, 1, 2, 3, 4, 5]


# The network


class Proxy:
    """Between a server and its hosts: it can cut the wire."""

    def __init__(self, address):
        self.target, self.wires, self.threads = (address.host, address.port), [], []
        self.listener = socket.create_server((address.host, 0))
        self.port = self.listener.getsockname()[1]
        self.start(self.accept)

    def start(self, task, *arguments):
        self.threads.append(threading.Thread(target=task, args=arguments))
        self.threads[-1].start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target)
                self.wires += [near, far]
                self.start(self.carry, near, far)
                self.start(self.carry, far, near)

    def carry(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)

    def cut(self):
        for wire in self.wires:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.threads[0].join()
        self.cut()
        for thread in self.threads:
            thread.join()
        for end in (self.listener, *self.wires):
            end.close()


def test_a_connection_that_breaks_costs_a_host_but_not_the_run(only, monkeypatch, caplog):
    """What was in transit is lost, so that the host is replaced."""
    proxies, listen = [], Gateway.open

    def behind_a_proxy(self, *arguments, **options):
        listen(self, *arguments, **options)
        proxies.append(Proxy(self.address))
        self.address = replace(self.address, port=proxies[0].port)

    monkeypatch.setattr(Gateway, "open", behind_a_proxy)
    back = Back()

    class Cut(Watched):
        cut = False

        def on_step(self, control):
            if self.jobs.get(0, 0) > 10 and not self.cut:
                self.cut = True
                proxies[0].cut()
            super().on_step(control)

    watch = Cut(nw.MinibatchSGD(nw.Constant(0.1)), lambda jobs: back.joined == 2)
    run = nw.train(Faulty(), watch, workers=2, steps=10**9, engine=only("far"), callbacks=[watch, back])
    proxies[0].close()
    assert lost(run) == [0, 1]
    assert "the connection to the server broke" in caplog.text
    check_that_it_replays(run, Faulty(), nw.MinibatchSGD(nw.Constant(0.1)))


# How it is called


def test_what_it_needs_and_what_it_refuses():
    quadratic = Faulty()
    for options, message in [
        ({"engine": "odd"}, "engine must be 'processes', 'ray', nw.RayCluster"),
        ({"workers": (2, 4)}, "a minimum and a maximum are for engine='ray'"),
        ({"workers": (2, 4, 5), "engine": "ray"}, "workers must be a number, or a minimum and a maximum"),
        ({"workers": (4, 2), "engine": "ray"}, "the maximum must be an integer of at least 4"),
        ({"workers": (0, 2), "engine": "ray"}, "the minimum number of workers must be an integer of at least 1"),
    ]:
        with pytest.raises(ValueError, match=message.replace("(", r"\(")):
            nw.train(quadratic, ASYNCHRONOUS, steps=10, **options)
    for values, message in [
        ({"address": "ray://head:10001"}, "is for Ray's client"),
        ({"resources_per_worker": {"gpus": 1}}, "resources_per_worker has no 'gpus'"),
        ({"resources_per_worker": {"num_cpus": 0}}, "must ask for something"),
        ({"resources_per_worker": {"num_gpus": -1}}, "a number of GPU that is not negative"),
        ({"port": 70_000}, "port must be below 65536"),
        ({"start_seconds": 0}, "start_seconds must be"),
        ({"heartbeat_seconds": 1}, "heartbeat_seconds must be at least 3"),
        ({"runtime_env": "mine"}, "runtime_env must be like"),
        ({"encrypt": "no"}, "encrypt must be True or False"),
        ({"resources_per_worker": {"resources": None}}, "resources must be like"),
        ({"address": ""}, "address must be None"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            nw.RayCluster(**values)


def test_how_many_workers_fit():
    cluster = nw.RayCluster(resources_per_worker={"num_cpus": 0.1, "num_gpus": 0.5, "resources": {"fast": 1}})
    assert cluster.room({"CPU": 8.0, "GPU": 2.0, "fast": 3.0}) == 3
    assert cluster.room({"CPU": 0.3, "GPU": 2.0, "fast": 9.0}) == 3
    assert cluster.room({"CPU": 8.0, "GPU": 2.0}) == 0
    assert cluster.largest_host == 2, "those that share a GPU"
    thirds = nw.RayCluster(resources_per_worker={"num_gpus": 0.4})
    assert thirds.room({"CPU": 99.0, "GPU": 4.0}) == 8, "nobody is spread over two GPUs"
    assert thirds.room({"CPU": 99.0, "GPU": 1.8}) == 4
    assert cluster.actor_options(3) == {"num_cpus": 0.3, "num_gpus": 1.5, "resources": {"fast": 3}, "runtime_env": None}


def test_an_engine_is_remembered_but_not_its_secrets():
    plain, secret = nw.RayCluster(address="auto"), nw.RayCluster(runtime_env={"env_vars": {"TOKEN": "secret"}})
    assert cluster_of(describe(plain)) == plain
    assert "secret" not in str(describe(secret))
    with pytest.raises(ValueError, match="the run had a runtime_env"):
        cluster_of(describe(secret))


def test_without_ray_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(ImportError, match=r"pip install 'nowait\[ray\]'"):
        nw.train(Faulty(), ASYNCHRONOUS, workers=2, steps=10, engine="ray")


def test_a_cluster_is_small_to_send():
    assert pickle.loads(pickle.dumps(nw.RayCluster(address="auto"))) == nw.RayCluster(address="auto")
