"""A real Ray cluster on this machine, for the tests of this folder."""

import os

import pytest

import nowait as nw

os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (the name is Ray's)
"""By default Ray's processes are nice, so that on a busy machine tests would wait for them without end."""
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def nodes():
    """Two nodes: room for one worker on the driver's own, for five on the other, which is reached by network.

    For one module, because tests of others look at the children of this process.
    """
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 100 * 2**20}
    head = {"num_cpus": 1, "resources": {"near": 4}, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head | memory)
    cluster.add_node(num_cpus=5, resources={"far": 4}, **memory)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def both(nodes):
    """An engine with workers on both nodes."""
    return nw.RayCluster()


@pytest.fixture
def only(nodes):
    """Engines whose workers are on nodes with some resource: "near" and "far", or those that a test adds."""
    return lambda where: nw.RayCluster(resources_per_worker={"num_cpus": 0, "resources": {where: 1}})
