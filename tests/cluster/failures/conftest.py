"""A data plane of their own for tests that kill parts of it, on the Ray cluster of the other tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.failures.local_cluster import MIB, LocalCluster
from tests.cluster.three_nodes import ThreeNodes

from dataplane_client.client import DataPlaneClient, connect


@pytest.fixture
def start_plane(three_nodes: ThreeNodes, tmp_path: Path) -> Iterator[Callable[..., LocalCluster]]:
    """Start a data plane, whose rows are kept in the folder `data` of the test's, if they are to be."""
    with ExitStack() as ending:

        def begin(*, durable: bool = True, memory_bytes: int = 4 * MIB, **settings: Any) -> LocalCluster:
            data, name = tmp_path / "data" if durable else None, f"failures-{os.getpid()}"
            plane = LocalCluster(three_nodes.machine, name, data, memory_bytes, **settings)
            ending.enter_context(plane)
            plane.wait_for_nodes()
            return plane

        yield begin


@pytest.fixture
def plane(start_plane: Callable[..., LocalCluster]) -> LocalCluster:
    return start_plane()


@pytest.fixture
def trainer(plane: LocalCluster) -> Iterator[DataPlaneClient]:
    """On the node of this process."""
    with connect(plane.address, transport="shm") as client:
        client.register_partition("p", ["x", "y"], 0, ["train"])
        yield client
