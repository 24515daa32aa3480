"""Puts and commits: columns and tags of rows, changed all at once or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller, int64

from dataplane_server.core.calls.answers import CommitResult, Failed, PutResult, Reservation, Waiting
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import (
    AbortWrite,
    CommitClaim,
    DropPartition,
    EndRead,
    GiveUpWrite,
    PutSamples,
    ShareReservation,
)

R = Reason


def begun(caller: Caller, put: PutSamples) -> Reservation:
    reservation = caller.apply(put)
    assert isinstance(reservation, Reservation)
    return reservation


def test_a_put_creates_rows_and_says_how_many_and_how_large(caller: Caller) -> None:
    assert caller.put(caller.put_call(["s1", "s2"], {"a": [3, 4], "b": [1, 0]})) == PutResult(2, 8)
    assert caller.put(caller.put_call(["s2", "s3"], {"a": [5, 6]})) == PutResult(1, 11)
    info = caller.plane.partition_info("p")
    assert (info.rows, info.size_bytes, info.rows_put_total) == (3, 15, 3)
    assert [(field.rows, field.size_bytes) for field in info.fields] == [(3, 14), (2, 1)]


def test_the_bytes_of_a_reservation_are_those_of_the_stream_column_after_column(caller: Caller) -> None:
    reservation = begun(caller, caller.put_call(["s1", "s2"], {"a": [3, 4], "b": [1, 0]}))
    assert [run.size_bytes for run in reservation.runs] == [7, 1]
    assert reservation.size_bytes == 8


def test_nothing_of_a_put_shows_before_it_is_finished(caller: Caller) -> None:
    reservation = begun(caller, caller.put_call(["s1"], {"a": [3]}, tags=[{"k": 1}]))
    assert caller.plane.partition_info("p").rows == 0
    assert caller.used == 3
    assert caller.plane.holds_reservation(reservation.ticket)
    caller.finish(reservation.ticket)
    assert caller.plane.partition_info("p").rows == 1
    assert not caller.plane.holds_reservation(reservation.ticket)


def test_an_aborted_put_leaves_nothing_behind(caller: Caller) -> None:
    before = caller.state()
    reservation = begun(caller, caller.put_call(["s1"], {"a": [3]}))
    caller.apply(AbortWrite(reservation.ticket))
    caller.apply(AbortWrite(reservation.ticket))
    assert caller.state() == before
    with pytest.raises(Refusal):
        caller.finish(reservation.ticket)


def test_an_aborted_put_does_not_settle_the_shape_of_its_field(caller: Caller) -> None:
    reservation = begun(caller, caller.put_call(["s1"], {"a": [3]}))
    caller.apply(AbortWrite(reservation.ticket))
    assert caller.put(caller.put_call(["s1"], columns=[ColumnSpec("a", Shape("dense", "float32", ()))])).size_bytes == 4


def test_a_put_replaces_its_fields_and_leaves_the_others(caller: Caller) -> None:
    caller.put(caller.put_call(["s1"], {"a": [3], "b": [4]}))
    caller.put(caller.put_call(["s1"], {"a": [9]}))
    plan = caller.read(["s1"], "a", "b")
    assert [column.entries.tolist() for column in plan.columns] == [[9], [4]]
    caller.apply(EndRead(plan.ticket))
    assert caller.used == 13


def test_puts_finish_in_any_order_and_the_last_to_finish_wins(caller: Caller) -> None:
    first = begun(caller, caller.put_call(["s1"], {"a": [3]}))
    second = begun(caller, caller.put_call(["s1"], {"a": [5]}))
    assert caller.finish(second.ticket) == PutResult(1, 5)
    assert caller.finish(first.ticket) == PutResult(0, 3)
    assert caller.read(["s1"], "a").columns[0].entries.tolist() == [3]
    assert caller.used == 3


def test_tags_alone_take_no_room_and_are_merged_key_by_key(caller: Caller) -> None:
    caller.put(caller.put_call(["s1", "s2"], tags=[{"k": 1, "l": 2}, {}]))
    caller.put(caller.put_call(["s1", "s2"], tags=[{"l": None, "m": "x"}, {"k": 0.5}]))
    grant = caller.take(batch_size=2)
    assert grant.tags == ({"k": 1, "l": None, "m": "x"}, {"k": 0.5})
    assert caller.used == 0


def test_tags_of_a_grant_are_those_of_its_moment(caller: Caller) -> None:
    caller.put(caller.put_call(["s1"], tags=[{"k": 1}]))
    grant = caller.take()
    caller.put(caller.put_call(["s1"], tags=[{"k": 2}]))
    assert grant.tags == ({"k": 1},)


def test_as_many_tags_as_a_row_may_have_can_be_replaced(caller: Caller) -> None:
    most: dict[str, str | int | float | bool | None] = {f"key{i}": i for i in range(64)}
    caller.put(caller.put_call(["s1"], tags=[most]))
    caller.put(caller.put_call(["s1"], tags=[most]))
    with caller.refuses(Reason.INVALID_REQUEST, "'p'", "'s1'", "64 tags"):
        caller.put(caller.put_call(["s1"], tags=[{"one more": 1}]))


def test_a_dense_field_becomes_jagged_and_rows_put_before_read_as_jagged(caller: Caller) -> None:
    def put(sample_id: str, shape: Shape, lengths: list[int] | None = None) -> None:
        column = ColumnSpec("a", shape, None if lengths is None else int64(lengths))
        caller.put(caller.put_call([sample_id], columns=[column]))

    put("s1", Shape("dense", "int16", (3, 2)))
    assert caller.read(["s1"], "a").columns[0].shape == Shape("dense", "int16", (3, 2))
    put("s2", Shape("dense", "int16", (5, 2)))
    put("s3", Shape("jagged", "int16", (2,)), [0])
    plan = caller.read(["s2", "s3", "s1"], "a")
    assert plan.columns[0].shape == Shape("jagged", "int16", (2,))
    assert plan.columns[0].entries.tolist() == [5, 0, 3]
    assert plan.size_bytes == 32
    put("s4", Shape("dense", "int16", (3, 2)))
    assert caller.read(["s4"], "a").columns[0].shape == Shape("jagged", "int16", (2,))


def test_a_field_keeps_its_shape_after_its_last_row_is_gone(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    caller.clear()
    with caller.refuses(Reason.FIELD_MISMATCH, "'a'"):
        caller.put(caller.put_call(["s1"], columns=[ColumnSpec("a", Shape("dense", "float32", ()))]))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(lambda c: c.apply(DropPartition(c.request_id(), "p")), R.PARTITION_NOT_FOUND, id="dropped"),
        pytest.param(lambda c: c.register(("a", "b"), ("train",)), R.FIELD_NOT_DECLARED, id="field dropped"),
        pytest.param(
            lambda c: c.put(PutSamples(c.request_id(), "p", ["s9"], [ColumnSpec("c", Shape("dense", "int8", ()))])),
            R.FIELD_MISMATCH,
            id="field took another shape",
        ),
        pytest.param(lambda c: c.put_rows(["s7", "s8"]), R.LIMIT_REACHED, id="rows filled up"),
        pytest.param(
            lambda c: c.put(c.put_call(["s2"], tags=[{f"other{i}": i for i in range(64)}])),
            R.INVALID_REQUEST,
            id="tags filled up",
        ),
    ],
)
def test_a_put_that_the_world_has_overtaken_is_refused_at_its_end_and_leaves_nothing(
    new_caller: Callable[..., Caller], spoil: Callable[[Caller], object], reason: Reason
) -> None:
    caller = new_caller(max_rows=3)
    caller.register(("a", "b", "c"), ("train",))
    reservation = begun(caller, caller.put_call(["s1", "s2"], {"c": [3, 4]}, tags=[{"k": 1}, {"k": 2}]))
    spoil(caller)
    used = caller.used
    with pytest.raises(Refusal) as caught:
        caller.finish(reservation.ticket)
    assert caught.value.reason is reason
    assert caller.used == used - 7
    assert not caller.plane.holds_reservation(reservation.ticket)


def test_a_failed_put_to_a_full_server_registers_no_row(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=64)
    caller.register()
    caller.put_rows(["s1"], "a", size=64)
    waiting = caller.apply(caller.put_call(["s2"], {"a": [1]}))
    assert isinstance(waiting, Waiting)
    caller.apply(GiveUpWrite(waiting.ticket))
    with caller.refuses(Reason.SAMPLE_NOT_FOUND, "'s2'"):
        caller.read(["s2"], "a")
    assert caller.plane.totals().rows == 1


# -- a request that is repeated while it is under way ------------------------------------------------------------------


def test_a_repeated_put_takes_the_place_of_one_that_streams(caller: Caller) -> None:
    put = caller.put_call(["s1"], {"a": [3]})
    first = begun(caller, put)
    second = begun(caller, put)
    effect = caller.plane.take_effects()[0]
    assert isinstance(effect, Failed)
    assert (effect.ticket, effect.refusal.reason) == (first.ticket, Reason.SUPERSEDED)
    assert not caller.plane.holds_reservation(first.ticket)
    assert caller.used == 3
    with pytest.raises(Refusal) as caught:
        caller.finish(first.ticket)
    assert caught.value.reason is Reason.SUPERSEDED
    assert caller.finish(second.ticket) == PutResult(1, 3)


def test_a_repeated_put_that_is_refused_has_ended_the_one_under_way(caller: Caller) -> None:
    """Also if the arena has no space for the repeated put: that of the earlier one is free before it is checked."""
    put = caller.put_call(["s1"], {"a": [3]})
    for other in (
        PutSamples(put.request_id, "nowhere", ["s1"]),
        PutSamples(put.request_id, "p", ["s1"], [ColumnSpec("a", Shape("jagged", "uint8", ()), int64([5000]))]),
    ):
        reservation = begun(caller, put)
        with pytest.raises(Refusal):
            caller.apply(other)
        (failed,) = caller.plane.take_effects()
        assert isinstance(failed, Failed)
        assert (failed.ticket, failed.refusal.reason) == (reservation.ticket, Reason.SUPERSEDED)
        assert caller.used == 0
        with pytest.raises(Refusal) as caught:
            caller.finish(reservation.ticket)
        assert caught.value.reason is Reason.SUPERSEDED


def test_lent_room_of_a_put_whose_place_was_taken_stays_lent_until_it_is_given_back(caller: Caller) -> None:
    put = caller.put_call(["s1"], {"a": [3]})
    earlier = begun(caller, put)
    caller.apply(ShareReservation(earlier.ticket))
    later = begun(caller, put)
    assert caller.used == 6
    assert not set(earlier.runs) & set(later.runs)
    assert not caller.plane.holds_reservation(earlier.ticket)
    caller.finish(later.ticket)
    assert caller.used == 6
    caller.apply(AbortWrite(earlier.ticket))
    assert caller.used == 3


def test_lent_room_is_given_back_by_a_finish_that_comes_too_late(caller: Caller) -> None:
    put = caller.put_call(["s1"], {"a": [3]})
    earlier = begun(caller, put)
    caller.apply(ShareReservation(earlier.ticket))
    later = begun(caller, put)
    with pytest.raises(Refusal) as caught:
        caller.finish(earlier.ticket)
    assert caught.value.reason is R.SUPERSEDED
    assert caller.used == 3
    caller.finish(later.ticket)


def test_a_repeated_commit_takes_the_place_of_one_that_streams(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    commit = caller.commit_call(caller.take("a").claim_id, {"b": [5]})
    first = caller.apply(commit)
    second = caller.apply(commit)
    assert isinstance(first, Reservation)
    assert isinstance(second, Reservation)
    assert [effect.ticket for effect in caller.plane.take_effects()] == [first.ticket]
    assert caller.finish(second.ticket) == CommitResult(1)
    assert caller.used == 6


# -- commits -----------------------------------------------------------------------------------------------------------


def test_a_commit_writes_its_columns_and_consumes_its_rows_in_one_step(caller: Caller) -> None:
    caller.put_rows(["s1", "s2"], "a")
    waiting = caller.apply(caller.claim_call("b", batch_size=2, task="score"))
    assert isinstance(waiting, Waiting)
    grant = caller.take("a", batch_size=2)
    reservation = caller.apply(caller.commit_call(grant.claim_id, {"b": [3, 4]}))
    assert isinstance(reservation, Reservation)
    assert caller.plane.take_effects() == []
    assert caller.finish(reservation.ticket) == CommitResult(2)
    assert [effect.ticket for effect in caller.plane.take_effects()] == [waiting.ticket]
    train = caller.plane.partition_info("p").tasks[0]
    assert (train.claimed_rows, train.consumed_rows) == (0, 2)
    assert caller.read(["s1", "s2"], "b").columns[0].entries.tolist() == [3, 4]


def test_columns_of_a_commit_follow_the_rows_of_its_claim(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a")
    first, second = caller.take("a", batch_size=2), caller.take("a")
    caller.release(first.claim_id)
    caller.release(second.claim_id)
    grant = caller.take("a", batch_size=3)
    assert grant.sample_ids == ("s3", "s1", "s2")
    reservation = caller.apply(caller.commit_call(grant.claim_id, {"b": [30, 10, 20]}))
    assert isinstance(reservation, Reservation)
    caller.finish(reservation.ticket)
    assert caller.read(["s1", "s2", "s3"], "b").columns[0].entries.tolist() == [10, 20, 30]


def test_of_two_commits_of_one_claim_the_first_to_finish_takes_effect(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    claim_id = caller.take("a").claim_id
    first = caller.apply(caller.commit_call(claim_id, {"b": [3]}))
    second = caller.apply(caller.commit_call(claim_id, {"b": [9]}))
    assert isinstance(first, Reservation)
    assert isinstance(second, Reservation)
    assert caller.finish(second.ticket) == CommitResult(1)
    with pytest.raises(Refusal) as caught:
        caller.finish(first.ticket)
    assert caught.value.reason is Reason.CLAIM_NOT_FOUND
    assert caller.used == 10
    assert caller.plane.partition_info("p").tasks[0].consumed_rows_total == 1


def test_a_commit_refused_at_its_end_leaves_the_claim_open(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    claim_id = caller.take("a").claim_id
    reservation = caller.apply(caller.commit_call(claim_id, {"b": [5]}))
    assert isinstance(reservation, Reservation)
    caller.clear(["s1"])
    with pytest.raises(Refusal, match=f"'s1' of claim '{claim_id}' was cleared"):
        caller.finish(reservation.ticket)
    assert caller.plane.totals().open_claims == 1
    assert caller.used == 0
    assert caller.commit(claim_id) == CommitResult(0)


def test_a_commit_whose_columns_the_world_has_overtaken_is_refused_at_its_end_and_leaves_the_claim_open(
    caller: Caller,
) -> None:
    caller.put_rows(["s1"], "a")
    claim_id = caller.take("a").claim_id
    reservation = caller.apply(caller.commit_call(claim_id, {"b": [5]}))
    assert isinstance(reservation, Reservation)
    caller.put(caller.put_call(["s2"], columns=[ColumnSpec("b", Shape("dense", "float32", ()))]))
    with pytest.raises(Refusal) as caught:
        caller.finish(reservation.ticket)
    assert caught.value.reason is Reason.FIELD_MISMATCH
    assert caller.plane.totals().open_claims == 1
    assert caller.used == 5


def test_a_commit_without_columns_counts_the_rows_that_are_left(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a")
    grant = caller.take("a", batch_size=3)
    caller.clear(["s2"])
    assert caller.commit(grant.claim_id) == CommitResult(2)
    with caller.refuses(Reason.CLAIM_NOT_FOUND, grant.claim_id):
        caller.apply(CommitClaim(caller.request_id(), grant.claim_id))


# -- write-backs in the name of a claim --------------------------------------------------------------------------------


def test_a_write_back_changes_rows_of_its_claim_and_leaves_it_open(caller: Caller) -> None:
    caller.put_rows(["s1", "s2"], "a")
    grant = caller.take("a", batch_size=2)
    assert caller.write_back(grant.claim_id, ["s2"], {"b": [5]}) == PutResult(0, 5)
    assert caller.write_back(grant.claim_id, ["s1", "s2"], {"b": [6, 7]}) == PutResult(0, 13)
    assert caller.commit(grant.claim_id) == CommitResult(2)


def test_a_write_back_to_rows_that_are_not_of_its_claim_is_refused(caller: Caller) -> None:
    caller.put_rows(["s1", "s2"], "a")
    claim_id = caller.take("a").claim_id
    with caller.refuses(Reason.INVALID_REQUEST, "'p'", claim_id):
        caller.write_back(claim_id, ["s1", "s2"], {"b": [5, 5]})


def test_a_write_back_creates_no_row(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    claim_id = caller.take("a").claim_id
    with caller.refuses(Reason.SAMPLE_NOT_FOUND, "'s2'"):
        caller.write_back(claim_id, ["s1", "s2"], {"b": [5, 5]})


def release(caller: Caller, claim_id: str) -> None:
    caller.release(claim_id)


def commit(caller: Caller, claim_id: str) -> None:
    caller.commit(claim_id)


def reset(caller: Caller, claim_id: str) -> None:
    caller.reset()


def register_anew(caller: Caller, claim_id: str) -> None:
    caller.register(tasks=("train", "score"))


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (release, R.CLAIM_NOT_FOUND),
        (commit, R.CLAIM_NOT_FOUND),
        (reset, R.CLAIM_FENCED),
        (register_anew, R.CLAIM_FENCED),
    ],
)
def test_a_write_back_whose_claim_has_ended_is_refused_before_its_bytes_and_after(
    caller: Caller, end: Callable[[Caller, str], None], reason: Reason
) -> None:
    caller.put_rows(["s1"], "a")
    claim_id = caller.take("a").claim_id
    reservation = begun(caller, caller.put_call(["s1"], {"b": [5]}, claim_id=claim_id))
    end(caller, claim_id)
    with pytest.raises(Refusal) as caught:
        caller.finish(reservation.ticket)
    assert caught.value.reason is reason
    assert caller.used == 1
    with caller.refuses(reason, claim_id):
        caller.write_back(claim_id, ["s1"], {"b": [5]})
    with caller.refuses(reason, claim_id):
        caller.write_back(claim_id, ["s1", "unknown"], {"b": [5, 5]})


def test_a_write_back_to_a_row_that_was_cleared_and_put_anew_leaves_the_new_row_alone(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    claim_id = caller.take("a").claim_id
    caller.clear()
    with caller.refuses(Reason.SAMPLE_NOT_FOUND, "'s1'"):
        caller.write_back(claim_id, ["s1"], {"b": [5]})
    caller.put_rows(["s1"], "a")
    with caller.refuses(Reason.INVALID_REQUEST, claim_id):
        caller.write_back(claim_id, ["s1"], {"b": [5]})


# -- what is told of writes --------------------------------------------------------------------------------------------


def told(caller: Caller, sample_id: str) -> list[tuple[str, str, str, tuple[str, ...]]]:
    events = caller.plane.sample("p", sample_id).events
    return [(event.what, event.who, event.claim_id, event.fields) for event in events if event.fields]


def test_the_story_of_a_row_names_who_put_which_fields_and_under_which_claim(caller: Caller) -> None:
    caller.put(caller.put_call(["s1"], {"a": [1]}, caller="rollout-7"))
    first, second = caller.take("a").claim_id, caller.take("a", task="score").claim_id
    caller.put(caller.put_call(["s1"], {"b": [1]}, claim_id=first, caller="critic"))
    reservation = caller.apply(caller.commit_call(second, {"b": [2], "a": [3]}))
    assert isinstance(reservation, Reservation)
    caller.finish(reservation.ticket)
    assert told(caller, "s1") == [
        ("put", "rollout-7", "", ("a",)),
        ("wrote_back", "critic", first, ("b",)),
        ("wrote_back", "", second, ("b", "a")),
    ]


def test_a_put_that_never_finished_is_not_told(caller: Caller) -> None:
    caller.apply(AbortWrite(begun(caller, caller.put_call(["s1"], {"a": [1]})).ticket))
    assert told(caller, "s1") == []


def test_the_name_of_a_caller_has_a_bound(caller: Caller) -> None:
    with caller.refuses(Reason.INVALID_REQUEST, "caller", "256 bytes"):
        caller.apply(caller.put_call(["s1"], {"a": [1]}, caller="x" * 257))
    caller.put(caller.put_call(["s1"], {"a": [1]}, caller="x" * 256))
