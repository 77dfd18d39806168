"""A real cluster of two nodes, each with one core, on this machine."""

import os

import pytest

from drkit.errors import MissingExtraError
from drkit_ray.engine import _ray

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


class Nodes:
    """A cluster whose second node can be lost and replaced; `engine` is its name on the command line."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args=NODE)
        self.second = self.cluster.add_node(num_cpus=1, object_store_memory=NODE["object_store_memory"])
        self.engine = f"ray:{self.cluster.address}"

    def lose_node(self):
        """Kill all processes of the second node, as a machine that goes off."""
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = None

    def restore_node(self):
        if self.second is None:
            self.second = self.cluster.add_node(num_cpus=1, object_store_memory=NODE["object_store_memory"])


@pytest.fixture(scope="package")
def all_nodes():
    """The cluster, once for all tests."""
    try:
        ray = _ray()
    except MissingExtraError as error:
        pytest.skip(str(error))
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    nodes = Nodes()
    yield nodes
    ray.shutdown()
    nodes.cluster.shutdown()
    if before is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = before


@pytest.fixture
def nodes(all_nodes):
    """The cluster with both of its nodes."""
    all_nodes.restore_node()
    return all_nodes
