"""A node dies: the rows that had values there are lost, by name and number, and no other; all others go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.cluster.failures.local_cluster import LocalCluster, add_ray_node
from tests.cluster.three_nodes import ThreeNodes, ray
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import NotFoundError

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]

_ROOT = Path(__file__).parents[3]


def test_exactly_the_rows_with_values_on_a_dead_node_are_lost(plane: LocalCluster, trainer: DataPlaneClient) -> None:
    node = plane.add_node()
    trainer.put_samples(["here", "written there", "both"], "p", {"x": torch.ones(3, 4)})
    held = trainer.claim("p", "train", ["x"], 2)  # "here" and "written there"
    plane.put_on(node, "x", "there")
    plane.put_on(node, "y", "written there")
    plane.put_on(node, "x", "of a", "group", group="g")
    plane.kill_node(node)
    rows = ["here", "written there", "both", "there", "of a", "group"]
    events = {row: trainer.sample("p", row).events for row in rows}
    lost = {row: event.reason for row, told in events.items() for event in told if event.what == "lost"}
    assert set(lost) == {"written there", "there", "of a", "group"}
    assert all(reason.startswith("node ") for reason in lost.values())
    assert trainer.partition("p").removed_rows["lost"] == 4
    with pytest.raises(NotFoundError):
        trainer.get_samples(["there"], "p", ["x"])
    assert held.commit() == 1
    assert trainer.get_samples(["here", "both"], "p", ["x"])["x"].tolist() == [[1.0] * 4] * 2
    trainer.put_samples(["later"], "p", {"x": torch.ones(1, 4)})
    claim = trainer.claim("p", "train", ["x"], 2)
    assert sorted(claim.meta.sample_ids) == ["both", "later"]
    assert claim.commit() == 2


def test_when_its_own_node_dies_the_coordinator_goes_on_elsewhere_without_the_rows_of_that_node(
    start_plane: Callable[..., LocalCluster], three_nodes: ThreeNodes
) -> None:
    home = add_ray_node(three_nodes.machine)
    plane = start_plane(home=home)
    with connect(plane.address, transport="shm") as client:
        client.register_partition("p", ["x", "y"], 0, ["train"])
        client.put_samples(["here", "also here"], "p", {"x": torch.ones(2, 4)})
        claim = client.claim("p", "train", ["x"], 1)
        plane.put_on(home, "x", "there")
        plane.kill_node(home)
        assert ray.get(plane.coordinator.addresses.remote(), timeout=60)["listen"] == [plane.outside]
        assert claim.commit() == 1
        assert client.get_samples(["here", "also here"], "p", ["x"])["x"].tolist() == [[1.0] * 4] * 2
        eventually(lambda: client.partition("p").removed_rows["lost"] == 1)  # once Ray reports it
        client.put_samples(["later"], "p", {"x": torch.ones(1, 4)})
        assert client.claim("p", "train", ["x"], 2).meta.size == 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", ["--coordinator-kills", "--node-kills", "--mirrored-node-kills"])
def test_histories_of_clients_hold_whatever_part_of_the_cluster_is_killed(kills: str) -> None:
    command = [sys.executable, "-m", "tests.cluster.failures", kills, "50"]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, encoding="utf-8", check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
