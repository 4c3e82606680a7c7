"""Speed of the Ray engine relative to the asynchronous parameter server of Ray's documentation on the same Ray.

    make bench-engines

The gradient is trivial (a copy of the point), so that the communication between worker and server is measured: over the
network (also on one node) and over shared memory on the driver's own node, with d = 400 and M = 8 and 40; with
d = 1,000,000 in float64 and M = 4 on one node and on two (``ray.cluster_utils.Cluster``, both on this machine), where
the network path is measured with and without encryption, and with vectors that travel in fewer bytes.
"""

import os
import platform
import statistics
import time
from functools import partial

import numpy as np
import ray
from copying import Copy
from parameter_server import SECONDS_TO_SETTLE, steps_per_second
from ray.cluster_utils import Cluster

import nowait as nw

STEPSIZE, ROUNDS = 1e-6, 3


def make_copy():
    """Return the gradient function of the baseline: a copy, as in ``Copy``."""
    return np.copy


def pattern(dimension, workers, steps, where=None):
    """Return the baseline's steps per second."""
    return steps_per_second(np.ones(dimension), STEPSIZE, steps, make_copy, [()] * workers, where)


def engine(dimension, workers, steps, **options):
    """Return nowait's steps per second."""
    method = nw.AsynchronousSGD(nw.Constant(STEPSIZE))
    cluster = nw.RayCluster(**options)
    run = nw.train(
        Copy(dimension), method, workers=workers, steps=steps, evaluate_every=steps, engine=cluster, progress=False
    )
    time.sleep(SECONDS_TO_SETTLE)
    return run.stats.steps_per_second


def compare(what, baseline, ours):
    """Measure all in alternating rounds; print medians of the rates and of the ratios to the baseline."""
    names = list(ours)
    rounds = [(baseline(), *(ours[name]() for name in names)) for _ in range(ROUNDS)]
    theirs = statistics.median(row[0] for row in rounds)
    print(f"{what}: Ray's pattern {theirs:,.0f} steps/s")
    for column, name in enumerate(names, start=1):
        rate = statistics.median(row[column] for row in rounds)
        ratio = statistics.median(row[column] / row[0] for row in rounds)
        print(f"    {name:34s} {rate:10,.0f} steps/s   ratio {ratio:6.1f}", flush=True)


def one_node():
    """Measure on a Ray cluster of one node."""
    ray.init(address="local", num_cpus=40, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    for workers in (8, 40):
        ours = {
            "network, encrypted": partial(engine, 400, workers, 20_000, shared_memory=False),
            "network, not encrypted": partial(engine, 400, workers, 20_000, shared_memory=False, encrypt=False),
            "shared memory": partial(engine, 400, workers, 60_000),
        }
        compare(f"d = 400, M = {workers}", partial(pattern, 400, workers, 1_500), ours)
    ours = {"shared memory": partial(engine, 1_000_000, 4, 500)}
    compare("d = 10^6, M = 4", partial(pattern, 1_000_000, 4, 200), ours)
    ray.shutdown()


def two_nodes():
    """Measure on a Ray cluster of two nodes, with the workers on the node without the driver."""
    head = {"num_cpus": 2, "resources": {"driver": 1}, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=8, resources={"far": 8})
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    far = {"resources_per_worker": {"num_cpus": 0, "resources": {"far": 1}}}
    half, thin = {"wire": "float16", "points_wire": "float16"}, {"wire": "topk:0.01", "points_wire": "float16"}
    ours = {
        "network, encrypted": partial(engine, 1_000_000, 4, 200, **far),
        "network, not encrypted": partial(engine, 1_000_000, 4, 200, encrypt=False, **far),
        "encrypted, float16": partial(engine, 1_000_000, 4, 200, **half, **far),
        "not encrypted, float16": partial(engine, 1_000_000, 4, 200, encrypt=False, **half, **far),
        "encrypted, float16, only gradients": partial(engine, 1_000_000, 4, 200, wire="float16", **far),
        "encrypted, int8 and float16": partial(engine, 1_000_000, 4, 200, wire="int8", points_wire="float16", **far),
        "encrypted, topk:0.01 and float16": partial(engine, 1_000_000, 4, 200, **thin, **far),
    }
    compare("d = 10^6, M = 4, two nodes", partial(pattern, 1_000_000, 4, 100, where="far"), ours)
    ray.shutdown()
    cluster.shutdown()


def main():
    versions = f"Python {platform.python_version()}, Ray {ray.__version__}"
    print(f"{versions}, {os.cpu_count()} cores; {ROUNDS} alternating rounds")
    one_node()
    two_nodes()


if __name__ == "__main__":
    main()
