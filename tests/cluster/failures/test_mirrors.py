"""A cluster whose nodes have mirrors loses no row when a node dies, whatever else is killed before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.client.cli.reading import read, run
from tests.cluster.failures.local_cluster import LocalCluster, add_ray_node
from tests.cluster.three_nodes import ThreeNodes, on_node, ray
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]


@pytest.fixture
def plane(start_plane: Callable[..., LocalCluster]) -> LocalCluster:
    plane = start_plane(mirrored=True)
    plane.wait_for_mirrors()
    return plane


def mirrored_node(plane: LocalCluster) -> str:
    """A further node of Ray, once it has a mirror."""
    node = plane.add_node()
    plane.wait_for_mirrors()
    return node


def values(client: DataPlaneClient, *rows: str) -> list[list[float]]:
    found: list[list[float]] = client.get_samples(list(rows), "p", ["x"])["x"].tolist()
    return found


def mirror_of(plane: LocalCluster, ray_node: str | None) -> str:
    """The node that has the mirror of a node, by its name in Ray. None: of the one that has ended."""
    with connect(plane.outside) as client:
        nodes = {node.number: node for node in client.server_status().nodes}
        (node,) = (node for node in nodes.values() if (node.ended if ray_node is None else node.name == ray_node))
        return nodes[node.mirrors[0]].name


def check_all_there(client: DataPlaneClient, rows: int) -> None:
    claim = client.claim("p", "train", ["x"], rows, timeout_s=30.0)
    assert (client.get_data(claim.meta, ["x"])["x"] == 7).all()
    assert claim.commit() == rows
    assert client.partition("p").removed_rows["lost"] == 0


def test_rows_of_a_dead_node_are_read_from_its_mirror(plane: LocalCluster, trainer: DataPlaneClient) -> None:
    node = mirrored_node(plane)
    trainer.put_samples(["both"], "p", {"y": torch.ones(1, 4)})
    plane.put_on(node, "x", "there", "both")
    plane.put_on(node, "x", "of a", "group", group="g")
    plane.kill_node(node)
    assert values(trainer, "there", "both", "of a", "group") == [[7.0] * 4] * 4
    with connect(plane.outside) as outside:
        assert values(outside, "there", "both", "of a", "group") == [[7.0] * 4] * 4
    trainer.put_samples(["there"], "p", {"y": torch.ones(1, 4)})
    check_all_there(trainer, 4)


def test_a_dead_node_is_forgotten_with_its_mirror_once_its_rows_are_cleared(
    plane: LocalCluster, trainer: DataPlaneClient
) -> None:
    node = mirrored_node(plane)
    plane.put_on(node, "x", "there")
    plane.kill_node(node)
    plane.wait_for_mirrors()
    (ended,) = (one for one in trainer.server_status().nodes if one.ended)
    shown = run("status", "-s", plane.outside)[1]
    assert f"node {ended.number}  gone, its rows are on nodes {ended.mirrors[0]}, {ended.mirrors[1]}" in " ".join(
        read(shown)
    )
    assert shown.count("mirrored on node") == 3
    mirrors = [path for folder in plane.folders for path in folder.glob(f"mirror-{ended.number}-*")]
    assert len(mirrors) == 2
    trainer.clear_samples(["there"], "p")
    assert not [one for one in trainer.server_status().nodes if one.ended]
    eventually(lambda: not any(path.exists() for path in mirrors))


def test_a_mirror_that_is_lost_is_made_again_with_the_rows_that_are_there(
    plane: LocalCluster, trainer: DataPlaneClient
) -> None:
    first, second = two_with_the_mirror_of_the_second_on_the_first(plane)
    plane.put_on(second, "x", "there")
    plane.kill_node(first)
    plane.put_on(second, "x", "there, too")
    plane.wait_for_mirrors()
    plane.kill_node(second)
    check_all_there(trainer, 2)


def test_rows_that_live_on_in_a_mirror_get_another_one(plane: LocalCluster, trainer: DataPlaneClient) -> None:
    first, second = two_with_the_mirror_of_the_second_on_the_first(plane)
    plane.put_on(second, "x", "there", "there, too")
    plane.kill_node(second)
    assert values(trainer, "there") == [[7.0] * 4]
    plane.wait_for_mirrors()
    plane.kill_node(first)
    check_all_there(trainer, 2)


def two_with_the_mirror_of_the_second_on_the_first(plane: LocalCluster) -> tuple[str, str]:
    first, second = mirrored_node(plane), mirrored_node(plane)
    assert mirror_of(plane, second) == first, "it had none"
    return first, second


def test_a_mirror_outlives_the_coordinator_and_the_actor_of_its_node(
    plane: LocalCluster, trainer: DataPlaneClient
) -> None:
    node = mirrored_node(plane)
    plane.put_on(node, "x", "there")
    plane.kill_coordinator()
    plane.kill_node_actor(mirror_of(plane, node))
    plane.put_on(node, "x", "there, too")
    plane.wait_for_mirrors()
    plane.kill_node(node)
    plane.kill_node_actor(mirror_of(plane, None))
    plane.kill_coordinator()
    check_all_there(trainer, 2)


def test_when_its_own_node_dies_the_coordinator_goes_on_elsewhere_with_all_rows(
    start_plane: Callable[..., LocalCluster], three_nodes: ThreeNodes
) -> None:
    home = add_ray_node(three_nodes.machine)
    plane = start_plane(home=home, mirrored=True)
    plane.wait_for_mirrors()
    with connect(plane.address, transport="shm") as client, connect(plane.outside) as outside:
        client.register_partition("p", ["x"], 0, ["train"])
        plane.put_on(home, "x", "there")
        outside.put_samples(["from outside"], "p", {"x": torch.full((1, 4), 7.0)})
        plane.kill_node(home)
        assert ray.get(plane.coordinator.addresses.remote(), timeout=60)["listen"] == [plane.outside]
        check_all_there(client, 2)


def test_what_a_node_copies_within_its_memory_is_mirrored(plane: LocalCluster, trainer: DataPlaneClient) -> None:
    node = mirrored_node(plane)
    ray.get(ray.remote(_append).options(**on_node(node)).remote(plane.address), timeout=60)
    plane.kill_node(node)
    found = trainer.get_samples(["a", "b"], "q", ["x"])["x"]
    assert [row.tolist() for row in found.unbind()] == [[2] * 1000 + [1] * 500] * 2


def _append(address: str) -> None:
    """Append to jagged rows."""
    with connect(address, transport="shm") as client:
        client.register_partition("q", ["x"], 0, ["train"], per_token_fields=["x"])
        client.put_samples(["a", "b"], "q", {"x": [torch.full((1000,), 2)] * 2})
        client.append_tokens(["a", "b"], "q", {"x": [torch.ones(500, dtype=torch.int64)] * 2})
