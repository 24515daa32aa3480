"""Lists of samples, claims and sessions, and what a claim that times out says about them."""

from __future__ import annotations

import pytest
import torch

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import ClaimTimeoutError, InvalidArgumentError, NotFoundError

ROWS = [f"s{row}" for row in range(5)]


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with the fields a and b, the task train, and five rows that have produced a."""
    client.register_partition("p", ["a", "b"], 5, ["train"])
    tags = [{"weight_version": row % 2, "best": row == 0} for row in range(5)]
    client.put_samples(ROWS, "p", {"a": torch.arange(5)}, tags, sequence_lengths=[1, 2, 3, 4, 5])
    return client


def test_rows_are_listed_page_by_page_with_what_reads_them(flow: DataPlaneClient) -> None:
    first = flow.list_samples("p", page_size=3)
    rest = flow.list_samples("p", page_size=3, page=first.next_page)
    assert (first.meta.sample_ids, rest.meta.sample_ids) == (ROWS[:3], ROWS[3:])
    assert (first.states, rest.next_page) == (None, None)
    assert first.meta.sequence_lengths == [1, 2, 3]
    assert flow.get_data(rest.meta, ["a"])["a"].tolist() == [3, 4]
    flow.clear_samples(ROWS[:3], "p")
    assert flow.list_samples("p", page_size=3, page=first.next_page) == rest


def test_rows_are_chosen_by_state_and_by_tags(flow: DataPlaneClient) -> None:
    flow.claim("p", "train", ["a"], 2).commit()
    assert flow.list_samples("p", task_name="train").states == ["consumed"] * 2 + ["untaken"] * 3
    untaken = flow.list_samples("p", task_name="train", states=["untaken"], where={"weight_version": 1})
    assert (untaken.meta.sample_ids, untaken.states) == (["s3"], ["untaken"])
    assert flow.list_samples("p", where={"weight_version": 0, "best": False}).meta.sample_ids == ["s2", "s4"]
    assert flow.list_samples("p", where={"best": 1}).meta.sample_ids == ["s0"]  # bools are 0 and 1


def test_a_list_of_samples_is_refused_by_name(flow: DataPlaneClient) -> None:
    with pytest.raises(InvalidArgumentError, match="states"):
        flow.list_samples("p", states=["untaken"])
    with pytest.raises(InvalidArgumentError, match=r"'lost' .*untaken, "):
        flow.list_samples("p", task_name="train", states=["lost"])
    with pytest.raises(InvalidArgumentError, match=r"65536 .*70000"):
        flow.list_samples("p", page_size=70_000)
    with pytest.raises(NotFoundError, match="'nope'"):
        flow.list_samples("p", task_name="nope")
    with pytest.raises(NotFoundError, match="'q'"):
        flow.list_samples("q")


def test_claims_name_their_holders(flow: DataPlaneClient) -> None:
    claim = flow.claim("p", "train", ["a"], 2)
    shard = flow.claim_shard("p", "train", ["a"], 2, step=7, dp_rank=1, dp_world=2)
    held = flow.claims("p", "train").open
    assert [(entry.claim_id, entry.rows, entry.step, entry.dp_rank) for entry in held] == [
        (claim.claim_id, 2, None, None),
        (shard.claim_id, 1, 7, 1),
    ]
    (session,) = flow.sessions()
    assert held[0].sessions == (session.session_id,)
    assert held[0].clients == (session.client,)
    assert (session.claims, session.rows, session.groups) == (2, 3, 0)
    assert 0 <= session.silent_s < session.grace_s
    with pytest.raises(NotFoundError, match="'other'"):
        flow.claims("p", "other")
    with pytest.raises(NotFoundError, match="'q'"):
        flow.claims("q")


def test_a_claim_that_times_out_names_who_holds_the_rows(flow: DataPlaneClient, address: str) -> None:
    claim = flow.claim("p", "train", ["a"], 3)
    with pytest.raises(ClaimTimeoutError) as timeout:
        flow.claim("p", "train", ["a"], 3, timeout_s=0.0)
    assert f"; 3 rows are held by this client (claim '{claim.claim_id}', for 0 s)" in str(timeout.value)
    with connect(address, client_name="the other") as other:
        theirs = other.claim("p", "train", ["a"], 2)
        with pytest.raises(ClaimTimeoutError) as timeout:
            flow.claim("p", "train", ["a"], 3, timeout_s=0.0)
    assert f"; 2 rows are held by client 'the other' (claim '{theirs.claim_id}', for 0 s)" in str(timeout.value)


def test_every_claim_sees_the_weight_versions_of_a_group(flow: DataPlaneClient) -> None:
    flow.clear_samples(None, "p")
    group = flow.reserve_group("p", "g", ["g0", "g1"], weight_version=7)
    group.put(["g0", "g1"], {"a": torch.arange(2)}, tags=[{"weight_version": 6}, {"std": 0.5}])
    group.commit(weight_version=8)
    assert flow.claim("p", "train", ["a"], 2).meta.tags == [
        {"weight_version": 6, "end_weight_version": 8},
        {"weight_version": 7, "end_weight_version": 8, "std": 0.5},
    ]


def test_a_group_whose_rows_have_no_room_for_its_weight_version_stays_reserved(flow: DataPlaneClient) -> None:
    group = flow.reserve_group("p", "g", ["g0"])
    group.put(["g0"], {"a": torch.arange(1)}, tags=[{f"tag{number}": number for number in range(64)}])
    with pytest.raises(InvalidArgumentError, match=r"'g0' .*64 tags"):
        group.commit(weight_version=8)
    group.commit()
