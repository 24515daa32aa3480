"""A prompt with a number of rows that is not known beforehand, and batches of such prompts."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.integration.conftest import Eventually

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import (
    ClaimTimeoutError,
    InvalidArgumentError,
)
from dataplane_client.options import TransportChoice


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with fields a and image, and the task train."""
    client.register_partition("p", ["a", "image"], 4, ["train"])
    return client


def prompt(client: DataPlaneClient, group_id: str, rows: int, tokens: int = 1) -> None:
    """A group of so many rows, each of so many tokens."""
    with client.reserve_group("p", group_id) as group:
        for row in range(rows):
            group.add([f"{group_id}{row}"], {"a": torch.tensor([row])}, sequence_lengths=[tokens])


def test_rows_are_added_to_a_prompt_and_seen_together(flow: DataPlaneClient) -> None:
    group = flow.reserve_group("p", "g")
    image = torch.randn(1, 50_000)
    assert group.meta.sample_ids == []
    added = group.add(["g0"], {"a": torch.tensor([0])}, [{"n": 1}], sequence_lengths=[3])
    group.put_shared({"image": image})
    group.add(["g1", "g2"], {"a": torch.tensor([1, 2])})
    assert group.meta.sample_ids == ["g0", "g1", "g2"]
    assert group.meta.generations is not None
    assert added.generations == group.meta.generations[:1]
    with pytest.raises(ClaimTimeoutError):
        flow.claim("p", "train", [], 1, timeout_s=0)
    assert group.commit() == 3
    claim = flow.claim("p", "train", ["a", "image"], 1, whole_groups=True)
    assert (claim.meta.sample_ids, claim.groups[0].rows) == (["g0", "g1", "g2"], 3)
    assert claim.meta.tags == [{"n": 1}, {}, {}]
    got = flow.get_data(claim.meta)
    assert got["a"].tolist() == [0, 1, 2]
    assert torch.equal(got["image"], image.expand(3, 50_000))


def test_rows_vanish_with_the_client_that_added_them(
    flow: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    with connect(address, transport=transport) as other:
        group = other.reserve_group("p", "g")
        group.put_shared({"image": torch.zeros(1, 9)})
        group.add(["g0"], {"a": torch.zeros(1)})
        empty = other.reserve_group("p", "empty")
        empty.put_shared({"image": torch.zeros(1, 9)})
        assert (flow.partition("p").rows, flow.partition("p").open_groups) == (1, 2)
    assert (flow.partition("p").rows, flow.partition("p").size_bytes) == (0, 0)
    assert flow.partition("p").open_groups == 0


async def test_the_asynchronous_client_adds_rows_at_once(
    flow: DataPlaneClient, async_client: aio.AsyncDataPlaneClient
) -> None:
    async with await async_client.reserve_group("p", "g") as group:
        await asyncio.gather(*(group.add([f"g{row}"], {"a": torch.tensor([row])}) for row in range(8)))
    assert sorted(group.meta.sample_ids) == [f"g{row}" for row in range(8)]
    assert len(flow.claim("p", "train", ["a"], 1, whole_groups=True).meta.sample_ids) == 8


def test_a_claim_counts_the_rows_of_whole_prompts(
    flow: DataPlaneClient, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    claim = threads.submit(flow.claim, "p", "train", ["a"], 9, min_size=6, whole_groups=True, unit="rows")
    eventually(lambda: flow.server_status().waiting_claims == 1)
    prompt(flow, "g", 5)
    assert flow.server_status().waiting_claims == 1
    prompt(flow, "h", 2)
    assert [(group.group_id, group.rows) for group in claim.result(20).groups] == [("g", 5), ("h", 2)]


@pytest.mark.parametrize(
    ("balance", "split"), [("rows", ["g", "hij"]), ("tokens", ["gi", "hj"]), ("groups", ["gh", "ij"])]
)
def test_prompts_of_different_sizes_are_split_by_what_the_balance_names(
    flow: DataPlaneClient, balance: str, split: list[str]
) -> None:
    for group_id, rows, tokens in (("g", 6, 1), ("h", 1, 9), ("i", 3, 1), ("j", 2, 1)):
        prompt(flow, group_id, rows, tokens)
    of_rank: dict[str, Any] = {"step": 0, "dp_world": 2, "whole_groups": True, "unit": "rows", "balance": balance}
    shards = [flow.claim_shard("p", "train", ["a"], 12, min_size=12, dp_rank=rank, **of_rank) for rank in range(2)]
    assert ["".join(group.group_id for group in shard.groups) for shard in shards] == split
    names = ["g0", "g1", "g2", "g3", "g4", "g5", "h0", "i0", "i1", "i2", "j0", "j1"]
    assert sorted(row for shard in shards for row in shard.meta.sample_ids) == names


@pytest.mark.parametrize(
    ("call", "text"),
    [
        pytest.param({"unit": "groups"}, "unit 'groups' needs whole_groups=True", id="groups that may be split"),
        pytest.param({"unit": "tokens"}, r"unit must be one of \('rows', 'groups'\) or None", id="unknown unit"),
        pytest.param({"balance": "groups"}, "balance 'groups' needs whole_groups=True", id="a split by groups"),
    ],
)
def test_a_unit_that_makes_no_sense_is_refused(flow: DataPlaneClient, call: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        flow.claim_shard("p", "train", ["a"], 2, step=0, dp_rank=0, dp_world=2, **call)  # type: ignore[arg-type]
