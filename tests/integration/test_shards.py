"""Shards: all who ask for a rank of a step see the same rows, and the ranks share the step's rows out among them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dataplane_client.client import Claim, DataPlaneClient, connect
from dataplane_client.errors import PreconditionError
from dataplane_client.options import TransportChoice

LENGTHS = [100, 1, 2, 90, 50, 60, 3, 10]
IDS = [f"s{row}" for row in range(len(LENGTHS))]


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with eight rows of very different lengths."""
    client.register_partition("p", ["a"], 8, ["train"])
    client.put_samples(IDS, "p", {"a": torch.arange(8)}, sequence_lengths=LENGTHS)
    return client


def shard(client: DataPlaneClient, dp_rank: int, step: int = 0, **more: object) -> Claim:
    settings = {"dp_world": 2, "timeout_s": 20.0, **more}
    return client.claim_shard("p", "train", ["a"], 8, step=step, dp_rank=dp_rank, **settings)  # type: ignore[arg-type]


def test_each_row_says_of_which_step_and_rank_it_is(flow: DataPlaneClient) -> None:
    assert {(flow.sample("p", row).tasks[0].step, flow.sample("p", row).tasks[0].dp_rank) for row in IDS} == {
        (None, None)
    }
    mine = shard(flow, 0, step=3).meta.sample_ids
    told = {row: flow.sample("p", row).tasks[0] for row in IDS}
    assert {row: (task.step, task.dp_rank) for row, task in told.items()} == {
        row: (3, 0 if row in mine else 1) for row in IDS
    }


def test_all_who_ask_for_a_rank_get_the_same_rows(
    flow: DataPlaneClient, address: str, transport: TransportChoice, threads: ThreadPoolExecutor
) -> None:
    all_have_asked = threading.Barrier(6)

    def asked(dp_rank: int) -> tuple[str, list[str]]:
        with connect(address, transport=transport) as other:
            claim = shard(other, dp_rank)
            assert shard(other, dp_rank).meta == claim.meta
            all_have_asked.wait(200)
            return claim.claim_id, claim.meta.sample_ids

    found = list(threads.map(asked, [0, 1, 0, 1, 0, 1]))
    assert found[0] == found[2] == found[4]
    assert found[1] == found[3] == found[5]
    assert sorted(found[0][1] + found[1][1]) == IDS


def test_a_trainer_that_starts_again_is_refused_what_was_committed_and_told_where_to_go_on(
    flow: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    first, second = shard(flow, 0), shard(flow, 1)
    assert first.commit() == 4
    slow = shard(flow, 0)
    assert (slow.committed, slow.meta.sample_ids, slow.commit()) == (True, first.meta.sample_ids, 4)
    with connect(address, transport=transport) as restarted:
        with pytest.raises(PreconditionError, match="step 0, dp_rank 0 of 2") as caught:
            shard(restarted, 0)
        assert caught.value.reason == "SHARD_COMMITTED"
        task = restarted.partition("p").task("train")
        assert (task.newest_step, task.next_step, caught.value.details["next_step"]) == (0, 0, "0")
        again, rest = shard(restarted, 0, again=True), shard(restarted, 1)
        assert (again.committed, again.meta.sample_ids) == (True, first.meta.sample_ids)
        assert (rest.committed, rest.meta.sample_ids) == (False, second.meta.sample_ids)
        rest.commit()
        assert restarted.partition("p").task("train").next_step == 1
