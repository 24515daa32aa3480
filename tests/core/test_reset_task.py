"""ResetTask: rows go back to a task as if it had never taken them."""

from __future__ import annotations

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import ResetResult
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import ResetTask


@pytest.fixture
def five(caller: Caller) -> Caller:
    """A caller with s1 consumed, s2 claimed, s3 delayed, s4 dead and s5 untaken, for train."""
    caller.register(tasks=("train", "score"), max_deliveries=1)
    caller.put_rows(["s1", "s2", "s3", "s4", "s5"], "a")
    claims = [caller.take("a").claim_id for _ in range(4)]
    caller.commit(claims[0])
    caller.release(claims[2], delay_s=50.0)
    caller.release(claims[3], reason="poison")
    states = [caller.standing(f"s{i}").state for i in range(1, 6)]
    assert states == ["consumed", "claimed", "delayed", "dead", "untaken"]
    return caller


def test_rows_in_every_state_go_back_in_order_of_arrival(five: Caller) -> None:
    assert five.reset() == ResetResult(4, 1)
    assert five.take("a", batch_size=5).sample_ids == ("s1", "s2", "s3", "s4", "s5")


def test_deliveries_are_forgotten(five: Caller) -> None:
    five.reset()
    assert five.take("a", batch_size=5).deliveries.tolist() == [1] * 5
    assert five.plane.dead_letters("p", "train") == []


def test_a_claim_that_holds_one_of_the_rows_is_fenced_as_a_whole(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a")
    touched, other = caller.take("a", batch_size=2), caller.take("a")
    assert caller.reset(["s2"]) == ResetResult(2, 1)
    with caller.refuses(Reason.CLAIM_FENCED, touched.claim_id):
        caller.commit(touched.claim_id)
    assert caller.commit(other.claim_id).consumed_rows == 1
    assert caller.take("a", batch_size=2).sample_ids == ("s1", "s2")


def test_ids_that_are_not_there_are_fine(five: Caller) -> None:
    assert five.reset(["nothing", "s1"]) == ResetResult(1, 0)


def test_a_step_that_holds_one_of_the_rows_is_forgotten_as_a_whole(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3", "s4"], "a")
    shard = caller.take_shard("a", dp_rank=0)
    assert caller.reset(["s4"]) == ResetResult(4, 1)
    with caller.refuses(Reason.CLAIM_FENCED):
        caller.commit(shard.claim_id)
    assert caller.take("a", batch_size=4).sample_ids == ("s1", "s2", "s3", "s4")


@pytest.mark.parametrize(
    ("partition_id", "task", "ids", "reason"),
    [
        ("nowhere", "train", None, Reason.PARTITION_NOT_FOUND),
        ("p", "nobody", None, Reason.TASK_NOT_REGISTERED),
        ("p", "train", [], Reason.INVALID_REQUEST),
        ("p", "train", ["s1", "s1"], Reason.DUPLICATE),
    ],
)
def test_what_cannot_be_reset_is_refused(
    five: Caller, partition_id: str, task: str, ids: list[str] | None, reason: Reason
) -> None:
    with five.refuses(reason):
        five.apply(ResetTask(five.request_id(), partition_id, task, ids))
