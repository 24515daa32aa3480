"""Where bytes are: on the node that put them, and on each node that reads them once, however they come and go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.cluster.three_nodes import CACHE_BYTES, ThreeNodes, on_node, ray

from dataplane_client.client import DataPlaneClient, connect

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray")]

Rows = dict[str, torch.Tensor]
ROW = 25_000  # numbers
ROW_BYTES = 8 * ROW


class User:
    """An actor with a client."""

    def __init__(self, address: str) -> None:
        self._client = connect(address)

    def do(self, function: Callable[..., Any], *args: object) -> Any:
        return function(self._client, *args)

    def close(self) -> None:
        self._client.close()


@dataclass
class Users:
    """Of nodes A, B and C. here: on node B too, of this process."""

    a: Any
    b: list[Any]
    c: Any
    here: DataPlaneClient

    def do(self, node: int, function: Callable[..., Any], *args: object) -> Any:
        """Call function(client, *args) on node 0, 1 or 2."""
        if node == 1:
            return function(self.here, *args)
        return ray.get((self.a if node == 0 else self.c).do.remote(function, *args), timeout=60)


@pytest.fixture(scope="module")
def actors(three_nodes: ThreeNodes) -> Iterator[list[Any]]:
    """One on A, three on B, one on C."""
    nodes = [three_nodes.nodes[i] for i in (0, 1, 1, 1, 2)]
    actors = [ray.remote(User).options(**on_node(node)).remote(three_nodes.address) for node in nodes]
    ray.get([actor.do.remote(DataPlaneClient.server_status) for actor in actors], timeout=100)
    yield actors
    ray.get([actor.close.remote() for actor in actors])
    for actor in actors:
        ray.kill(actor)


@pytest.fixture
def users(three_nodes: ThreeNodes, actors: list[Any]) -> Iterator[Users]:
    """Partition p is empty, with jagged tokens, images, and objects."""
    with three_nodes.emptied() as address, connect(address, transport="shm") as here:
        here.register_partition("p", ["x", "tokens", "image", "note"], 0, ["train"], per_token_fields=["tokens"])
        yield Users(actors[0], actors[1:4], actors[4], here)


def numbers(seed: int, size: int = ROW) -> torch.Tensor:
    return torch.arange(size) + seed * 1_000_003


def put(client: DataPlaneClient, rows: Rows) -> None:
    client.put_samples(list(rows), "p", {"x": list(rows.values())})


def clear(client: DataPlaneClient, ids: list[str]) -> int:
    return client.clear_samples(ids, "p")


def read(client: DataPlaneClient, ids: list[str]) -> list[torch.Tensor]:
    return [row.clone() for row in client.get_samples(ids, "p", ["x"])["x"].unbind()]


def assert_rows(got: list[torch.Tensor], *expected: torch.Tensor) -> None:
    assert [torch.equal(row, wanted) for row, wanted in zip(got, expected, strict=True)] == [True] * len(expected)


# -- what travels ------------------------------------------------------------------------------------------------------


def test_values_are_in_the_memory_of_the_clients_node_and_its_reads_fetch_nothing(
    users: Users, three_nodes: ThreeNodes
) -> None:
    before = [three_nodes.figures(node) for node in range(3)]
    for node, ids in enumerate((["s0"], ["s1", "s2"], ["s3", "s4", "s5"])):
        rows = {name: numbers(10 * node + row) for row, name in enumerate(ids)}
        users.do(node, put, rows)
        assert_rows(users.do(node, read, ids), *rows.values())
    after = [three_nodes.figures(node) for node in range(3)]
    assert [node.memory_used_bytes for node in after] == [ROW_BYTES, 2 * ROW_BYTES, 3 * ROW_BYTES]
    assert [node.fetched_bytes for node in after] == [node.fetched_bytes for node in before]
    assert [node.cache_hit_bytes for node in after] == [node.cache_hit_bytes for node in before]


def test_four_processes_of_another_node_fetch_once(users: Users, three_nodes: ThreeNodes) -> None:
    before = three_nodes.figures(1)
    rows = {f"s{i}": numbers(i) for i in range(4)}
    users.do(0, put, rows)
    reading = [actor.do.remote(read, list(rows)) for actor in users.b]
    for got in [read(users.here, list(rows)), *ray.get(reading)]:
        assert_rows(got, *rows.values())
    after = three_nodes.figures(1)
    assert after.fetched_bytes - before.fetched_bytes == 4 * ROW_BYTES
    assert after.cache_hit_bytes - before.cache_hit_bytes == 3 * 4 * ROW_BYTES


# -- what is read is what is there -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_put_cleared_and_replaced_on_any_node_is_read_on_all(users: Users, seed: int) -> None:
    """Rows of up to 2 MiB: more than the caches keep. Some reads are views, which stay as they were."""
    random = np.random.default_rng(seed)
    there: Rows = {}
    views: list[tuple[torch.Tensor, torch.Tensor]] = []
    for turn in range(120):
        node, kind = int(random.integers(3)), random.random()
        chosen = [name for name in there if random.random() < 0.4]
        if kind < 0.4 or not chosen:
            names = random.choice(24, size=random.integers(1, 5), replace=False).tolist()
            sizes = random.choice([1, 1000, 9000, 9000, 40_000, 250_000], size=len(names)).tolist()
            rows = {f"s{name}": numbers(1000 * turn + name, size) for name, size in zip(names, sizes, strict=True)}
            users.do(node, put, rows)
            there |= rows
        elif kind < 0.5:
            assert users.do(node, clear, chosen) == len(chosen)
            there = {name: row for name, row in there.items() if name not in chosen}
        elif kind < 0.6:
            column = users.here.get_samples(chosen[:1], "p", ["x"])["x"]
            views = [*views[-5:], (column.unbind()[0], there[chosen[0]])]
        else:
            assert_rows(users.do(node, read, chosen), *(there[name] for name in chosen))
        for view, wanted in views:
            assert torch.equal(view, wanted)


def test_a_view_of_another_nodes_rows_stays_right_whatever_comes_after(users: Users, three_nodes: ThreeNodes) -> None:
    rows = {f"s{i}": numbers(i) for i in range(4)}
    users.do(0, put, rows)
    meta = users.here.claim("p", "train", ["x"], 4).meta
    view = users.here.read_columns(meta, ["x"], layout="jagged")["x"]
    users.do(0, clear, list(rows))
    for turn in range(2 * CACHE_BYTES // (20 * ROW_BYTES)):  # more than fits into the cache beside the view
        others = {f"t{i}": numbers(100 * turn + i) for i in range(20)}
        users.do(0, put, others)
        assert_rows(read(users.here, list(others)), *others.values())
    assert_rows(list(view.unbind()), *rows.values())
    assert three_nodes.figures(0).memory_used_bytes == 24 * ROW_BYTES, "the bytes under the view"
    del view
    with contextlib.suppress(Exception):
        users.here.partition("p")
    assert three_nodes.figures(0).memory_used_bytes == 20 * ROW_BYTES


def test_a_read_larger_than_the_cache_comes_over_grpc(users: Users, three_nodes: ThreeNodes) -> None:
    size = CACHE_BYTES // 8 // 4
    rows = {f"s{i}": numbers(i, size) for i in range(5)}
    users.do(0, put, rows)
    before = three_nodes.figures(1)
    assert_rows(read(users.here, list(rows)), *rows.values())
    assert three_nodes.figures(1).fetched_bytes == before.fetched_bytes
    assert_rows(read(users.here, list(rows)[:4]), *list(rows.values())[:4])
    assert three_nodes.figures(1).fetched_bytes == before.fetched_bytes + CACHE_BYTES


# -- verbs whose rows are of several nodes -----------------------------------------------------------------------------


def append(client: DataPlaneClient, ids: list[str], tokens: torch.Tensor) -> None:
    client.append_tokens(ids, "p", {"tokens": [tokens] * len(ids)}, create=True)


def tokens_of(client: DataPlaneClient, ids: list[str]) -> list[list[int]]:
    return [row.tolist() for row in client.get_samples(ids, "p", ["tokens"])["tokens"].unbind()]


@pytest.mark.parametrize("step", [3, 20_000], ids=["small", "large"])
def test_rows_grow_on_any_node(users: Users, step: int) -> None:
    ids, whole = ["a", "b"], torch.arange(6 * step)
    for turn in range(6):
        users.do(turn % 3, append, ids, whole[turn * step : (turn + 1) * step])
        for node in range(3):
            assert users.do(node, tokens_of, ids) == [whole[: (turn + 1) * step].tolist()] * 2


def put_once(client: DataPlaneClient, ids: list[str], images: torch.Tensor) -> None:
    client.put_samples(ids, "p", {"image": images}, once=["image"])


def images_of(client: DataPlaneClient, ids: list[str]) -> torch.Tensor:
    return torch.stack(client.get_samples(ids, "p", ["image"])["image"].unbind())


@pytest.mark.parametrize("pixels", [4, 500_000], ids=["small", "large"])
def test_values_put_once_are_kept_once_in_the_whole_cluster(users: Users, pixels: int) -> None:
    images = torch.arange(2 * pixels).view(2, pixels)
    for node, name in enumerate("abc"):
        users.do(node, put_once, [f"{name}0", f"{name}1", f"{name}2"], images[[0, 1, 0]])
    assert users.here.server_status().memory_used_bytes == images.nbytes
    users.do(0, clear, ["a0", "a1", "a2"])
    users.do(1, clear, ["b0", "b2"])
    for node in range(3):
        assert torch.equal(users.do(node, images_of, ["b1", "c0", "c1", "c2"]), images[[1, 0, 1, 0]])
    users.do(2, clear, ["c0", "c1", "c2", "b1"])
    assert users.here.server_status().memory_used_bytes == 0


def put_group(client: DataPlaneClient, name: str) -> None:
    with client.reserve_group("p", name, [f"{name}0", f"{name}1"]) as group:
        for row, sample in enumerate(group.meta.sample_ids):
            group.put([sample], {"x": [numbers(row, 7)]})
        group.put_shared({"image": torch.ones(1, 5)})


# -- claims of rows of the own node ------------------------------------------------------------------------------------


def test_a_claim_of_groups_prefers_those_of_its_node(users: Users) -> None:
    for node, name in ((0, "g"), (0, "h"), (2, "k"), (0, "l"), (2, "m")):
        users.do(node, put_group, name)
    assert users.do(2, claim_groups, 2) == ["g0", "g1", "k0", "k1"]
    assert users.do(0, claim_groups, 2) == ["h0", "h1", "l0", "l1"]
    assert users.do(0, claim_groups, 1) == ["m0", "m1"]


def claim_groups(client: DataPlaneClient, size: int) -> list[str]:
    with client.claim("p", "train", ["x"], size, whole_groups=True) as claim:
        claim.commit()
        return claim.meta.sample_ids


def test_ranks_get_the_rows_of_their_nodes_from_the_second_step_on(users: Users, three_nodes: ThreeNodes) -> None:
    """Ranks 0 and 1 are on nodes C and A. Each step has four rows of each node."""
    for turn in range(3):
        for node, name in ((0, "a"), (2, "c")):
            users.do(node, put, {f"{name}{turn}{i}": numbers(i) for i in range(4)})
    first = [users.do(node, read_shard, 0, rank) for rank, node in enumerate((2, 0))]
    assert sorted(name[:2] for shard in first for name in shard) == ["a0"] * 4 + ["c0"] * 4
    before = [three_nodes.figures(node).fetched_bytes for node in range(3)]
    for step in (1, 2):
        shards = [users.do(node, read_shard, step, rank) for rank, node in enumerate((2, 0))]
        assert shards == [[f"{name}{step}{i}" for i in range(4)] for name in "ca"]
    assert [three_nodes.figures(node).fetched_bytes for node in range(3)] == before, "not a byte"


def read_shard(client: DataPlaneClient, step: int, rank: int) -> list[str]:
    with client.claim_shard("p", "train", ["x"], 8, step=step, dp_rank=rank, dp_world=2) as claim:
        read(client, claim.meta.sample_ids)
        claim.commit()
        return claim.meta.sample_ids
