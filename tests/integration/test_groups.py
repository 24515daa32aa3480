"""Groups: the rows of a prompt become visible all at once or not at all, and can be claimed whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest
import torch
from tests.forked import forking
from tests.integration.conftest import Eventually

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, Group, connect
from dataplane_client.errors import (
    ClaimTimeoutError,
    GroupFencedError,
    InvalidArgumentError,
    NotFoundError,
    PreconditionError,
)
from dataplane_client.grants import ClaimedGroup
from dataplane_client.options import TransportChoice


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with fields a and image, and the task train."""
    client.register_partition("p", ["a", "image"], 4, ["train"])
    return client


def reserved(client: DataPlaneClient, group_id: str = "g", weight_version: int | None = None) -> Group:
    return client.reserve_group("p", group_id, [f"{group_id}0", f"{group_id}1"], weight_version=weight_version)


def fill(group: Group) -> None:
    for row, sample_id in enumerate(group.meta.sample_ids):
        group.put([sample_id], {"a": torch.tensor([float(row)])})


def nothing_to_claim(client: DataPlaneClient) -> bool:
    with pytest.raises(ClaimTimeoutError):
        client.claim("p", "train", [], 1, timeout_s=0)
    return True


def test_rows_of_a_group_are_seen_by_no_claim_until_it_is_committed(flow: DataPlaneClient) -> None:
    group = reserved(flow)
    fill(group)
    assert nothing_to_claim(flow)
    assert (flow.partition("p").rows, flow.partition("p").open_groups) == (2, 1)
    assert group.commit() == 2
    assert (group.state, flow.partition("p").open_groups) == ("committed", 0)
    assert flow.claim("p", "train", ["a"], 2, timeout_s=0).meta.sample_ids == ["g0", "g1"]


def test_a_commit_wakes_a_claim_that_waits_for_more_than_one_row(
    flow: DataPlaneClient, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    claim = threads.submit(flow.claim, "p", "train", ["a"], 2)
    eventually(lambda: flow.server_status().waiting_claims == 1)
    with reserved(flow) as group:
        fill(group)
        assert flow.server_status().waiting_claims == 1
    assert claim.result(20).meta.sample_ids == ["g0", "g1"]


def test_rows_are_what_was_put_into_them(flow: DataPlaneClient) -> None:
    group = reserved(flow)
    receipt = group.put(["g1", "g0"], {"a": torch.tensor([1.0, 2.0])}, [{"n": 1}, {}], sequence_lengths=[3, 4])
    assert receipt.generations == list(reversed(group.meta.generations or []))
    group.commit()
    meta = flow.claim("p", "train", ["a"], 2).meta
    assert (meta.sample_ids, meta.sequence_lengths, meta.tags) == (["g0", "g1"], [4, 3], [{}, {"n": 1}])
    assert flow.get_data(meta)["a"].tolist() == [2.0, 1.0]


def test_a_group_with_a_row_that_has_nothing_cannot_be_committed_yet(flow: DataPlaneClient) -> None:
    group = reserved(flow)
    group.put(["g0"], {"a": torch.zeros(1)})
    with pytest.raises(PreconditionError, match="g1"):
        group.commit()
    assert group.state == "open"
    group.put(["g1"], {"a": torch.zeros(1)})
    assert group.commit() == 2


@pytest.mark.parametrize("n_floats", [6, 100_000], ids=["small", "large"])
def test_what_rows_have_in_common_is_stored_once_and_read_from_each(flow: DataPlaneClient, n_floats: int) -> None:
    image = torch.randn(1, n_floats)
    with reserved(flow) as group:
        fill(group)
        before = flow.partition("p").size_bytes
        group.put_shared({"image": image})
        assert flow.partition("p").size_bytes == before + image.nbytes
    got = flow.get_data(flow.claim("p", "train", ["a", "image"], 2).meta)
    assert torch.equal(got["image"], image.expand(2, n_floats))
    flow.clear_samples(["g0"], "p")
    assert torch.equal(flow.get_samples(["g1"], "p", ["image"])["image"], image)


def test_an_exception_aborts_the_group_and_says_why(flow: DataPlaneClient) -> None:
    group = reserved(flow)
    fill(group)
    with pytest.raises(ZeroDivisionError), group:
        raise ZeroDivisionError
    assert (group.state, flow.partition("p").rows) == ("aborted", 0)
    events = flow.sample("p", "g0").events
    assert [event.reason for event in events if event.what == "rolled_back"] == ["ZeroDivisionError"]
    with pytest.raises(PreconditionError, match="g1"), reserved(flow) as group:  # its commit is refused
        group.put(["g0"], {"a": torch.zeros(1)})
    assert (group.state, flow.partition("p").rows) == ("aborted", 0)
    assert flow.partition("p").removed_rows["rolled_back"] == 4
    assert flow.server_status().memory_used_bytes == 0


def reserve(pipe: Connection, address: str, transport: TransportChoice) -> None:
    client = connect(address, transport=transport, session_grace_s=0.3)
    group = client.reserve_group("p", "g", ["g0", "g1"])
    pipe.send(group.state)
    pipe.recv()


@pytest.mark.parametrize("way", ["unix", "shm"], indirect=True)
def test_a_group_of_a_client_that_was_killed_vanishes(
    flow: DataPlaneClient, address: str, transport: TransportChoice, eventually: Eventually
) -> None:
    context = forking()
    pipe, theirs = context.Pipe()
    process = context.Process(target=reserve, args=(theirs, address, transport))
    process.start()
    assert pipe.recv() == "open"
    assert flow.partition("p").rows == 2
    process.kill()
    process.join(60)
    eventually(lambda: flow.partition("p").rows == 0)
    with reserved(flow) as group:
        fill(group)
    assert flow.claim("p", "train", ["a"], 2).meta.sample_ids == ["g0", "g1"]


async def test_the_asynchronous_client_has_groups_too(
    flow: DataPlaneClient, async_client: aio.AsyncDataPlaneClient
) -> None:
    async with await async_client.reserve_group("p", "g", ["g0", "g1"], weight_version=1) as group:
        await group.put(["g0", "g1"], {"a": torch.zeros(2)})
    gone = await async_client.reserve_group("p", "h", ["h0"])
    with pytest.raises(ZeroDivisionError):
        async with gone:
            raise ZeroDivisionError
    assert (group.state, gone.state) == ("committed", "aborted")
    assert flow.claim("p", "train", ["a"], 3, min_size=1).meta.sample_ids == ["g0", "g1"]


def test_a_group_takes_its_own_rows_only_and_nobody_else_puts_into_them(flow: DataPlaneClient) -> None:
    group = reserved(flow)
    with pytest.raises(PreconditionError, match="g0"):
        flow.put_samples(["g0"], "p", {"a": torch.zeros(1)})
    with pytest.raises(NotFoundError, match="other"):
        group.put(["other"], {"a": torch.zeros(1)})
    assert flow.partition("p").rows == 2
    flow.put_samples(["other"], "p", {"a": torch.zeros(1)})
    with pytest.raises(InvalidArgumentError, match="other"):
        group.put(["other"], {"a": torch.ones(1)})
    assert flow.get_samples(["other"], "p", ["a"])["a"].tolist() == [0.0]


def test_a_group_that_has_ended_takes_nothing_more(flow: DataPlaneClient) -> None:
    group = reserved(flow)
    fill(group)
    group.commit()
    with pytest.raises(PreconditionError, match="committed"):
        group.put(["g0"], {"a": torch.zeros(1)})
    with pytest.raises(PreconditionError, match="committed"):
        group.abort()


def test_a_late_put_of_a_group_that_was_rolled_back_is_fenced_and_creates_nothing(
    flow: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    group = reserved(flow)
    with connect(address, transport=transport) as other:
        late = reserved(other, "h")
        ended = late.reservation_id
    group.reservation_id = ended
    with pytest.raises(GroupFencedError):
        group.put(["h0"], {"a": torch.zeros(1)})
    assert group.state == "fenced"
    with pytest.raises(GroupFencedError):
        group.commit()
    assert flow.partition("p").rows == 2


def test_whole_groups_are_claimed_with_their_weight_versions(flow: DataPlaneClient) -> None:
    flow.put_samples(["single"], "p", {"a": torch.zeros(1)})
    for group_id, start, end in (("g", 3, 4), ("h", 5, None)):
        group = reserved(flow, group_id, start)
        fill(group)
        group.commit(end)
    claim = flow.claim("p", "train", ["a"], 3, whole_groups=True)
    assert claim.meta.sample_ids == ["single", "g0", "g1", "h0", "h1"]
    assert claim.groups == (ClaimedGroup("", 1), ClaimedGroup("g", 2, 3, 4), ClaimedGroup("h", 2, 5, None))
    assert claim.deliveries == [1] * 5


def test_tokens_bound_a_claim_by_groups(flow: DataPlaneClient) -> None:
    for group_id in ("g", "h"):
        with reserved(flow, group_id) as group:
            group.put(group.meta.sample_ids, {"a": torch.zeros(2)}, sequence_lengths=[10, 20])
    claims = [flow.claim("p", "train", ["a"], 2, min_size=1, whole_groups=True, max_tokens=59) for _ in range(2)]
    assert [claim.meta.sample_ids for claim in claims] == [["g0", "g1"], ["h0", "h1"]]
