"""Claims: which rows they take, when they are answered, and what becomes of the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
import torch
from tests.waiting import eventually
from torch.nested import nested_tensor

from dataplane_client import aio
from dataplane_client.client import Claim, DataPlaneClient, connect
from dataplane_client.errors import (
    ClaimFencedError,
    DataPlaneError,
    NotFoundError,
    PreconditionError,
)


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with fields a and b, and the tasks train and eval."""
    client.register_partition("p", ["a", "b"], 4, ["train", "eval"])
    return client


def put(client: DataPlaneClient, ids: Sequence[str], *fields: str) -> None:
    client.put_samples(ids, "p", {field: torch.zeros(len(ids)) for field in fields or ("a",)})


def states(client: DataPlaneClient, task: str = "train") -> tuple[int, int, int]:
    """Untaken, claimed and consumed rows."""
    status = client.partition("p").task(task)
    return status.untaken_rows, status.claimed_rows, status.consumed_rows


def test_a_claim_says_fields_lengths_and_tags_of_its_rows(client: DataPlaneClient) -> None:
    client.register_partition("p", ["tokens"], 2, ["train"], per_token_fields=["tokens"])
    tokens = nested_tensor([torch.arange(3), torch.arange(5)], layout=torch.jagged)
    client.put_samples(["x", "y"], "p", {"tokens": tokens}, [{"version": 3, "std": 0.5}, {}])
    meta = client.claim("p", "train", ["tokens"], 2).meta
    assert (meta.partition_id, meta.task_name, meta.fields) == ("p", "train", ["tokens"])
    assert meta.sequence_lengths == [3, 5]
    assert meta.tags == [{"version": 3, "std": 0.5}, {}]


def test_sequence_lengths_are_none_where_a_row_has_none(flow: DataPlaneClient) -> None:
    flow.put_samples(["x"], "p", {"a": torch.zeros(1)}, sequence_lengths=[7])
    put(flow, ["y"])
    first, second = (flow.claim("p", "train", ["a"], 1) for _ in range(2))
    assert (first.sequence_lengths, second.meta.sequence_lengths) == ([7], None)
    with pytest.raises(PreconditionError, match="sequence_lengths"):
        second.sequence_lengths  # noqa: B018  # the access is the test


def test_leaving_the_block_commits(flow: DataPlaneClient) -> None:
    put(flow, ["x"])
    with flow.claim("p", "train", ["a"], 1) as claim:
        assert states(flow) == (0, 1, 0)
        assert repr(claim) == f"<Claim {claim.claim_id} p/train 1 rows open>"
    assert (claim.state, states(flow)) == ("committed", (0, 0, 1))


@pytest.mark.parametrize("end", [Claim.commit, Claim.release], ids=["committed", "released"])
def test_a_block_may_end_its_claim_itself(flow: DataPlaneClient, end: Callable[[Claim], int]) -> None:
    put(flow, ["x"])
    with flow.claim("p", "train", ["a"], 1) as claim:
        assert end(claim) == 1
    with pytest.raises(PreconditionError, match=claim.state):
        end(claim)


@pytest.mark.parametrize("dropped", [False, True])
def test_an_exception_in_the_block_releases_and_matters_more_than_that_of_the_release(
    flow: DataPlaneClient, dropped: bool
) -> None:
    put(flow, ["x"])
    claim = flow.claim("p", "train", ["a"], 1)
    if dropped:
        flow.drop_partition("p")
    with pytest.raises(ZeroDivisionError), claim:
        raise ZeroDivisionError
    assert dropped or (claim.state, states(flow)) == ("released", (1, 0, 0))


def test_released_rows_are_first_in_line_and_in_their_order(flow: DataPlaneClient) -> None:
    put(flow, ["w", "x", "y", "z"])
    claim = flow.claim("p", "train", ["a"], 2)
    assert claim.release() == 2
    assert flow.claim("p", "train", ["a"], 3).meta.sample_ids == ["w", "x", "y"]


def test_released_rows_are_held_back_for_the_delay(flow: DataPlaneClient) -> None:
    put(flow, ["x", "y"])
    flow.claim("p", "train", ["a"], 1).release(delay_s=0.2)
    assert states(flow) == (1, 0, 0)
    assert flow.claim("p", "train", ["a"], 2, timeout_s=200.0).meta.sample_ids == ["x", "y"]


def test_under_a_claim_that_a_reset_has_fenced_nothing_is_written_and_leaving_its_block_raises(
    flow: DataPlaneClient,
) -> None:
    put(flow, ["x", "y"])
    with pytest.raises(ClaimFencedError, match="reset"), flow.claim("p", "train", ["a"], 1):
        assert flow.reset("p", "train") == 1
    claim = flow.claim("p", "train", ["a"], 2)
    flow.reset("p", "train")
    for late in (claim.write, claim.commit, claim.write):
        with pytest.raises(ClaimFencedError):
            late({"b": torch.ones(2)})
        assert claim.state == "fenced"
    assert (flow.partition("p").fields[1].rows, states(flow)) == (0, (2, 0, 0))


def test_a_commit_with_columns_writes_and_consumes_in_one_step(flow: DataPlaneClient) -> None:
    put(flow, ["x", "y"])
    claim = flow.claim("p", "train", ["a"], 2)
    with pytest.raises(DataPlaneError, match="undeclared"):
        claim.commit({"b": torch.tensor([1.0, 2.0]), "undeclared": torch.zeros(2)})
    assert states(flow) == (0, 2, 0)
    assert claim.commit({"b": torch.tensor([1.0, 2.0])}) == 2
    assert flow.get_samples(["y", "x"], "p", ["b"])["b"].tolist() == [2.0, 1.0]
    assert states(flow) == (0, 0, 2)


def test_replacing_a_definition_fences_open_claims_and_hands_every_row_out_again(flow: DataPlaneClient) -> None:
    put(flow, ["x", "y"])
    flow.claim("p", "train", ["a"], 1).commit()
    flow.claim("p", "eval", ["a"], 2).commit()
    held = flow.claim("p", "train", ["a"], 1)
    flow.register_partition("p", ["a", "b"], 4, ["train", "eval"], replace=True)
    with pytest.raises(ClaimFencedError):
        held.commit()
    with pytest.raises(KeyError):
        held.release()
    for task in ("train", "eval"):
        assert flow.claim("p", task, ["a"], 2).meta.sample_ids == ["x", "y"]


def test_claim_meta_consumes_on_delivery(flow: DataPlaneClient) -> None:
    put(flow, ["x", "y"])
    meta = flow.claim_meta("p", "train", ["a"], 2, dp_rank=3)
    assert (meta.sample_ids, meta.extra_info) == (["x", "y"], {"dp_rank": 3})
    assert states(flow) == (0, 0, 2)


def test_claim_meta_that_may_not_block_answers_with_no_rows(flow: DataPlaneClient) -> None:
    put(flow, ["x"])
    meta = flow.claim_meta("p", "train", ["a"], 2, blocking=False)
    assert (meta.size, meta.partition_id, meta.fields) == (0, "p", ["a"])
    assert states(flow) == (1, 0, 0)
    assert flow.claim_meta("p", "train", ["a"], 1, blocking=False).sample_ids == ["x"]


def test_consumption_is_complete_when_the_announced_rows_were_put_and_all_tasks_took_them(
    flow: DataPlaneClient,
) -> None:
    put(flow, ["w", "x", "y"])
    flow.claim_meta("p", "train", ["a"], 3)
    assert not flow.check_consumption_status("p", ["train"])
    put(flow, ["z"])
    assert not flow.check_consumption_status("p", ["train"])
    with flow.claim("p", "train", ["a"], 1):
        assert not flow.check_consumption_status("p", ["train"])
    assert flow.check_consumption_status("p", ["train"])
    assert not flow.check_consumption_status("p", ["train", "eval"])
    flow.clear_samples(None, "p")
    assert flow.check_consumption_status("p", ["train", "eval"])


async def test_an_asynchronous_claim_commits_on_leaving_its_block_and_releases_on_an_exception(
    flow: DataPlaneClient, async_client: aio.AsyncDataPlaneClient
) -> None:
    put(flow, ["x", "y"])
    async with async_client.claim("p", "train", ["a"], 1) as claim:
        assert states(flow) == (1, 1, 0)
        assert (await async_client.get_data(claim.meta))["a"].tolist() == [0.0]
    assert (claim.state, states(flow)) == ("committed", (1, 0, 1))
    with pytest.raises(ZeroDivisionError):
        async with await async_client.claim("p", "train", ["a"], 1) as claim:
            raise ZeroDivisionError
    assert (claim.state, states(flow)) == ("released", (1, 0, 1))
    claim = await async_client.claim("p", "train", ["a"], 1)
    commit = asyncio.create_task(claim.__aexit__(None, None, None))
    await asyncio.sleep(0)
    if commit.cancel():  # before the answer has come
        with pytest.raises(asyncio.CancelledError):
            await commit
        assert claim.state == "released"
    await asyncio.to_thread(eventually, lambda: states(flow)[1] == 0)


# -- provenance --------------------------------------------------------------------------------------------------------


def test_provenance_is_of_this_row_and_of_what_has_become_of_it(flow: DataPlaneClient, address: str) -> None:
    """Not of a row that failed, nor of a commit that a reset has undone."""
    with connect(address, client_name="first") as first, first.reserve_group("p", "g", ["s", "rest"]) as group:
        group.put(["s", "rest"], {"a": torch.zeros(2), "b": torch.zeros(2)})
        group.fail(["s"])
    with flow.reserve_group("p", "h") as group:
        group.put_shared({"b": torch.zeros(1)})
        group.add(["s"], {"a": torch.zeros(1)})
    flow.claim("p", "train", ["a"], 2).commit()
    flow.reset("p", "train", ["s"])
    claim = flow.claim("p", "train", ["a"], 1)
    (row,) = claim.provenance()
    assert (row.values["b"].producer, row.state, row.committed_by) == ("", "claimed", "")
    claim.commit()
    assert claim.provenance()[0].committed_by == row.values["a"].producer != ""
    flow.register_partition("p", ["a", "b"], 4, ["eval"], replace=True)
    with pytest.raises(NotFoundError, match=r"'s'.* 'train'"):
        claim.provenance()
