"""The engine on a Ray cluster, and the pattern of Ray's documentation, with a gradient that is a copy of the point."""

import contextlib
import time

import numpy as np
import ray
from copying import Copy
from parameter_server import SECONDS_TO_SETTLE, measure
from processor_time import Speed, per_step, used
from ray.cluster_utils import Cluster

import nowait as nw

STEPSIZE, ROUNDS = 1e-6, 3


def pattern(dimension, workers, steps, where=None):
    """Return the speed of the baseline."""
    make_copy = lambda: np.copy  # noqa: E731 - Ray's workers cannot import this module
    return measure(np.ones(dimension), STEPSIZE, steps, make_copy, [()] * workers, where)


def engine(dimension, workers, steps, **options):
    """Return the speed of nowait."""
    seen = []

    class Watch(nw.Callback):
        def on_evaluate(self, control):
            seen.append((control.steps, used()))

    run = nw.train(
        Copy(dimension),
        nw.AsynchronousSGD(nw.Constant(STEPSIZE)),
        workers=workers,
        steps=steps,
        evaluate_every=max(1, steps // 8),
        engine=nw.RayCluster(**options),
        progress=False,
        callbacks=[Watch()],
    )
    time.sleep(SECONDS_TO_SETTLE)
    (first, before), *_, (last, after) = [entry for entry in seen if 0 < entry[0] < steps]
    return Speed(run.stats.steps_per_second, per_step(before, after, last - first))


@contextlib.contextmanager
def one_node():
    """A Ray cluster of one node."""
    ray.init(address="local", num_cpus=40, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


@contextlib.contextmanager
def two_nodes():
    """A Ray cluster of two nodes on this machine: one has the resource "driver", the other one "far"."""
    head = {"num_cpus": 2, "resources": {"driver": 1}, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=8, resources={"far": 8})
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()
    cluster.shutdown()
