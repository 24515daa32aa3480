"""Steps: the rows of all data-parallel ranks are taken once, split once, and the same for whoever asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Failed
from dataplane_server.core.calls.refusal import Reason


@pytest.fixture
def rows(caller: Caller) -> Caller:
    """A caller with s0 to s7, of 10, 20, ... tokens."""
    ids = [f"s{i}" for i in range(8)]
    caller.put(caller.put_call(ids, {"a": [1] * 8}, sequence_lengths=[10 * i for i in range(1, 9)]))
    return caller


@pytest.mark.parametrize("balance", ["rows", "tokens"])
@pytest.mark.parametrize("dp_world", [1, 2, 3])
def test_shards_are_disjoint_complete_and_of_nearly_one_size(rows: Caller, balance: str, dp_world: int) -> None:
    asked: dict[str, object] = {"dp_world": dp_world, "batch_size": 8, "balance": balance}
    shards = [rows.take_shard("a", dp_rank=rank, **asked).sample_ids for rank in range(dp_world)]
    assert sorted(sample_id for shard in shards for sample_id in shard) == [f"s{i}" for i in range(8)]
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.fixture
def uneven(caller: Caller) -> Caller:
    """Groups g to k of 6, 1, 2, 2 and 1 rows, whose lengths are 1, 9, 1, 9 and 2 tokens a row, in this order."""
    for group, rows, tokens in (("g", 6, 1), ("h", 1, 9), ("i", 2, 1), ("j", 2, 9), ("k", 1, 2)):
        ids = [f"{group}{i}" for i in range(rows)]
        reservation_id = caller.reserve(group, []).reservation_id
        caller.put(caller.add_call(reservation_id, ids, {"a": [1] * rows}, sequence_lengths=[tokens] * rows))
        caller.finish_group(reservation_id)
    return caller


@pytest.mark.parametrize(
    ("balance", "split"),
    [
        pytest.param("rows", [["g"], ["h", "i", "j", "k"]], id="6 and 6 rows"),
        pytest.param("tokens", [["g", "h", "i"], ["j", "k"]], id="17 and 20 tokens"),
        pytest.param("groups", [["g", "h", "i"], ["j", "k"]], id="in order"),
    ],
)
def test_groups_of_different_sizes_are_split_by_what_the_balance_names(
    uneven: Caller, balance: str, split: list[list[str]]
) -> None:
    asked: dict[str, object] = {"batch_size": 5, "whole_groups": True, "balance": balance}
    shards = [uneven.take_shard("a", dp_rank=rank, **asked) for rank in range(2)]
    assert [[part.group_id for part in shard.groups] for shard in shards] == split
    assert all(len(shard.sample_ids) == sum(part.rows for part in shard.groups) for shard in shards)


def test_ranks_that_disagree_are_refused_with_what_differs_and_both_values(rows: Caller) -> None:
    rows.take_shard("a", dp_rank=0, batch_size=4)
    with rows.refuses(Reason.INVALID_REQUEST, "step 0", "batch_size", "4", "6"):
        rows.take_shard("a", dp_rank=1, batch_size=6)


@pytest.mark.parametrize("other_grace_s", [20.0, None], ids=["two sessions", "one of two callers has none"])
def test_a_shard_is_held_by_all_sessions_that_asked_for_it(rows: Caller, other_grace_s: float | None) -> None:
    grant = rows.take_shard("a", session_id="" if other_grace_s is None else rows.open_session(other_grace_s))
    rows.take_shard("a", session_id=rows.open_session(5.0))
    rows.pass_time(5.0)
    assert rows.commit(grant.claim_id).consumed_rows == 2


def test_a_shard_whose_last_holder_died_goes_to_whoever_asks_next_under_a_new_claim(rows: Caller) -> None:
    grant = rows.take_shard("a", session_id=rows.open_session(5.0))
    rows.pass_time(5.0)
    rows.wait(rows.claim_call("a", batch_size=5))
    again = rows.take_shard("a")
    assert (again.sample_ids, again.deliveries.tolist()) == (grant.sample_ids, [2, 2])
    assert again.claim_id != grant.claim_id
    with rows.refuses(Reason.CLAIM_FENCED, grant.claim_id):
        rows.commit(grant.claim_id)


def test_one_commit_ends_a_shard_for_all_and_the_others_are_answered_alike(rows: Caller) -> None:
    grant = rows.take_shard("a", session_id=rows.open_session())
    rows.take_shard("a", session_id=rows.open_session())
    assert rows.commit(grant.claim_id).consumed_rows == 2
    assert rows.commit(grant.claim_id).consumed_rows == 2
    assert rows.task().consumed_rows_total == 2


def test_a_shard_is_handed_to_all_who_share_it_though_no_more_claims_may_be_open(
    new_caller: Callable[..., Caller],
) -> None:
    caller = new_caller(max_claims=1)
    caller.register()
    caller.put_rows(["a", "b", "c", "d"], "a")
    grant = caller.take_shard("a")
    assert caller.take_shard("a") == grant
    caller.commit(grant.claim_id)
    other = caller.take_shard("a", dp_rank=1)
    assert caller.take_shard("a").claim_id == grant.claim_id
    with caller.refuses(Reason.LIMIT_REACHED, "max_claims"):
        caller.take_shard("a", step=1, batch_size=2)
    caller.release(other.claim_id)


def test_rows_that_a_task_does_not_get_any_more_leave_their_step(caller: Caller) -> None:
    caller.put_versions(a=1, b=1, c=1, d=1)
    caller.set_policy(1)
    grant = caller.take_shard("a")
    caller.set_version(3)
    caller.close()
    caller.wait(caller.claim_call("a"))
    assert caller.take_shard("a", dp_rank=1).sample_ids == ()
    caller.commit(grant.claim_id)
    assert caller.effect(Failed).refusal.reason is Reason.END_OF_DATA
    assert (caller.task().delayed_rows, caller.task().stale_rows) == (0, 2)


def test_a_slow_rank_is_handed_the_rows_of_its_step_though_they_were_committed(rows: Caller) -> None:
    grant = rows.take_shard("a")
    rows.commit(grant.claim_id)
    slow = rows.take_shard("a")
    assert (slow.claim_id, slow.sample_ids) == (grant.claim_id, grant.sample_ids)
    assert rows.task().delivered_rows_total == 2
    assert (grant.committed, slow.committed) == (False, True)


def test_a_committed_shard_is_for_sessions_that_were_open_then_and_for_those_that_ask_for_it_again(
    rows: Caller,
) -> None:
    leader, slow = rows.open_session(), rows.open_session()
    grant = rows.take_shard("a", dp_rank=1, session_id=leader)
    rows.commit(grant.claim_id)
    assert rows.take_shard("a", dp_rank=1, session_id=leader).committed
    assert rows.take_shard("a", dp_rank=1, session_id=slow).sample_ids == grant.sample_ids
    restarted = rows.open_session()
    with rows.refuses(Reason.SHARD_COMMITTED, "'p'", "'train'", "step 0, dp_rank 1 of 2", "again=True"):
        rows.take_shard("a", dp_rank=1, session_id=restarted)
    again = rows.take_shard("a", dp_rank=1, session_id=restarted, again=True)
    assert (again.sample_ids, again.committed) == (grant.sample_ids, True)
    assert rows.commit(again.claim_id).consumed_rows == 2
    assert rows.take_shard("a", dp_rank=0, session_id=restarted).sample_ids == ("s0", "s1")


def test_a_committed_shard_is_remembered_as_long_as_its_step(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(remembered_claims=1)
    caller.register(tasks=("train", "score"))
    caller.put_rows(["s0", "s1", "s2", "s3"], "a")
    grant = caller.take_shard("a", batch_size=4)
    caller.commit(grant.claim_id)
    caller.commit(caller.take("a", task="score").claim_id)  # the shard's is not among the last claims that ended
    again = caller.take_shard("a", again=True, session_id=caller.open_session())
    assert (again.claim_id, again.sample_ids, again.committed) == (grant.claim_id, grant.sample_ids, True)
    assert caller.commit(again.claim_id).consumed_rows == 2
    assert caller.task().next_step == 0, "the other rank has not committed"
    younger = caller.open_session()
    with caller.refuses(Reason.SHARD_COMMITTED):
        caller.take_shard("a", session_id=younger)


@pytest.mark.parametrize("begins_again", [False, True])
def test_an_empty_shard_that_outlives_its_step_ends_like_any_claim(rows: Caller, begins_again: bool) -> None:
    shard: dict[str, object] = {"batch_size": 2, "max_tokens": 10}
    assert rows.take_shard("a", dp_rank=0, **shard).sample_ids == ("s0",)
    empty = rows.take_shard("a", dp_rank=1, **shard)
    assert empty.sample_ids == ()
    rows.reset(["s0"])
    if begins_again:
        rows.take_shard("a", dp_rank=0, **shard)
    assert rows.commit(empty.claim_id).consumed_rows == 0
    assert rows.task().next_step == 0


def test_a_task_tells_the_step_with_which_a_trainer_goes_on(rows: Caller) -> None:
    def steps() -> tuple[int | None, int]:
        return rows.task().newest_step, rows.task().next_step

    assert steps() == (None, 0)
    first = [rows.take_shard("a", step=5, dp_rank=rank).claim_id for rank in range(2)]
    assert steps() == (5, 5)
    rows.commit(first[1])
    second = [rows.take_shard("a", step=6, dp_rank=rank).claim_id for rank in range(2)]
    for claim_id in second:
        rows.commit(claim_id)
    assert steps() == (6, 5)
    rows.commit(first[0])
    rows.commit(first[0])
    assert steps() == (6, 7)
    rows.reset()
    assert steps() == (None, 0)
