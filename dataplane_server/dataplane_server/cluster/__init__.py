"""A server over the memory of several nodes: a coordinator, and beside the arena of each node a node actor.

from dataplane_server.cluster import start
"""

from dataplane_server.cluster.coordinator.starting import Cluster, start

__all__ = ["Cluster", "start"]
