"""A producer whose rollouts are late or fail: the server commits what is there, and the producer learns of it."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence

import pytest
import torch
from tests.waiting import eventually

from dataplane_client import DataPlaneClient, Group, GroupFencedError, PreconditionError


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["x"], 0, ["train"])
    return client


IDS = [f"p7-{number}" for number in range(8)]


def with_rows(flow: DataPlaneClient, ids: Sequence[str], failed: Sequence[str] = ()) -> Group:
    """A group that soon reaches its deadline, and of which some rows came and others failed before. It gets more time
    on a busy machine.
    """
    for deadline_s in (0.3, 3.0, 30.0):
        group = flow.reserve_group("p", "p7", IDS, deadline_s=deadline_s, min_rows=len(ids))
        with contextlib.suppress(GroupFencedError):
            if failed:
                assert group.fail(failed, "the sandbox died") == len(failed)
            group.put(ids, {"x": torch.arange(float(len(ids)))})
            return group
    raise AssertionError("the machine took half a minute for one row")


def test_a_straggler_does_not_hold_up_its_group(flow: DataPlaneClient) -> None:
    with with_rows(flow, IDS[:6], IDS[6:7]) as group:
        claim = flow.claim("p", "train", ["x"], 1, whole_groups=True, timeout_s=200.0)
        assert claim.meta.sample_ids == IDS[:6]
        assert [tags["missing_rows"] for tags in claim.meta.tags or ()] == [2] * 6
        with pytest.raises(GroupFencedError, match="deadline"):
            group.put(["p7-7"], {"x": torch.zeros(1)})
    claim.release()
    assert flow.groups("p").reserved == 0


def test_the_producer_of_a_commit_after_the_deadline_learns_how_many_rows_came(flow: DataPlaneClient) -> None:
    group = with_rows(flow, IDS[:1])
    eventually(lambda: flow.groups("p").reserved == 0)
    with pytest.raises(GroupFencedError):
        group.put(IDS[1:2], {"x": torch.zeros(1)})
    assert (group.commit(), group.state) == (1, "committed")


def test_a_group_that_is_removed_at_its_deadline_tells_why_and_may_be_tried_again_so_often(
    flow: DataPlaneClient,
) -> None:
    for _ in range(2):
        group = flow.reserve_group("p", "p7", IDS, deadline_s=0.1, min_rows=2, max_regenerations=1)
        eventually(lambda: flow.partition("p").rows == 0)
        with pytest.raises(GroupFencedError, match=r"'p7' .* 0 of 8 .* min_rows is 2"):
            group.commit()
    with pytest.raises(PreconditionError, match="max_regenerations") as caught:
        flow.reserve_group("p", "p7", IDS, max_regenerations=1)
    assert caught.value.reason == "GROUP_GIVEN_UP"
    assert [given_up.group_id for given_up in flow.groups("p").given_up] == ["p7"]


def test_a_group_goes_on_when_all_rows_but_those_of_a_copy_have_failed(flow: DataPlaneClient) -> None:
    with flow.reserve_group("p", "p7") as group:
        pickle.loads(pickle.dumps(group)).add(IDS[:2], {"x": torch.arange(2.0)})  # noqa: S301  # made just now
        assert group.fail(IDS[:1], "no answer") == 1
        assert group.state == "open"
    assert flow.claim_meta("p", "train", ["x"], 1).sample_ids == IDS[1:2]


def test_a_group_has_ended_when_its_last_row_fails_though_others_were_cleared(flow: DataPlaneClient) -> None:
    with flow.reserve_group("p", "p7", IDS[:2]) as group:
        flow.clear_samples(IDS[:1], "p")
        assert group.fail(IDS[1:2], "no answer") == 1
        assert (group.state, flow.partition("p").open_groups) == ("aborted", 0)
