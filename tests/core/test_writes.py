"""Puts and commits: columns and tags of rows, changed all at once or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.caller import Caller, int64

from dataplane_server.core.calls.answers import (
    ROW_CONSUMED,
    ROW_CREATED,
    ROW_REPLACED,
    CommitResult,
    Failed,
    PutResult,
    Reservation,
    Waiting,
)
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.filters import Term
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import AbortWrite, GiveUpClaim, PutSamples, ShareReservation

R = Reason
AGED = (Term("<", "sequence_length", True, (4,)),)


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


# -- write-backs in the name of a claim --------------------------------------------------------------------------------


def test_a_write_back_changes_rows_of_its_claim_and_leaves_it_open(caller: Caller) -> None:
    caller.put_rows(["s1", "s2"], "a")
    grant = caller.take("a", batch_size=2)
    assert caller.write_back(grant.claim_id, ["s2"], {"b": [5]}) == PutResult(0, 5)
    assert caller.write_back(grant.claim_id, ["s1", "s2"], {"b": [6, 7]}) == PutResult(0, 13)
    assert caller.commit(grant.claim_id) == CommitResult(2)


# -- puts of rows that exist -------------------------------------------------------------------------------------------


def test_a_put_tells_which_rows_are_new_which_existed_and_which_of_these_a_task_has_consumed(caller: Caller) -> None:
    assert caller.put_rows(["s1", "s2"], "a").outcomes == b""
    caller.commit(caller.take("a").claim_id)
    again = caller.put_call(["s3", "s2", "s1"], {"a": [1, 1, 1]})
    first = caller.put(again)
    assert tuple(first.outcomes) == (ROW_CREATED, ROW_REPLACED, ROW_CONSUMED)
    repeated = caller.apply(again)
    assert isinstance(repeated, PutResult)
    assert repeated.outcomes == first.outcomes
    claim_id = caller.take("a").claim_id
    assert caller.write_back(claim_id, ["s2"], {"a": [5]}).outcomes == b""


def test_a_put_that_only_creates_is_refused_whole_if_a_row_exists_when_it_begins_or_ends(caller: Caller) -> None:
    caller.put_rows(["s2"], "a")
    with caller.refuses(Reason.SAMPLE_EXISTS, "'p'", "'s2'", "create_only"):
        caller.apply(caller.put_call(["s1", "s2"], {"a": [1, 1]}, create_only=True))
    put = caller.put_call(["s1", "s3"], {"a": [1, 1]}, create_only=True)
    late = caller.apply(put)
    assert isinstance(late, Reservation)
    caller.put_rows(["s3"], "a")
    with pytest.raises(Refusal, match="'s3' exists \\(create_only\\)"):
        caller.finish(late.ticket)
    assert caller.plane.partition_info("p").rows == 2
    caller.clear()
    first = caller.put(put)
    assert repr(caller.apply(put)) == repr(first)


@pytest.mark.parametrize(
    "more", [{"claim_id": "c-1"}, {"reservation_id": "g-1"}, {"generations": int64([1])}, {"only_if": AGED}], ids=str
)
def test_a_put_to_certain_rows_cannot_create_only(caller: Caller, more: dict[str, Any]) -> None:
    with caller.refuses(Reason.INVALID_REQUEST, "create_only"):
        caller.apply(caller.put_call(["s1"], {"a": [1]}, create_only=True, **more))


@pytest.mark.parametrize("end", ["reset", "clear"])
def test_rows_that_were_put_again_are_told_until_they_are_reset_or_cleared(caller: Caller, end: str) -> None:
    def told() -> bool:
        waiting = caller.apply(caller.claim_call("a", batch_size=9))
        assert isinstance(waiting, Waiting)
        return "put again" in caller.apply(GiveUpClaim(waiting.ticket)).message

    caller.put_rows(["s1", "s2"], "a")
    caller.commit(caller.take("a", batch_size=2).claim_id)
    caller.put_rows(["s1", "s2"], "b")  # another field, as of a worker that comes later
    caller.put(caller.put_call(["s1"], tags=[{"x": 1}]))
    assert not told()
    caller.put_rows(["s1"], "a")
    assert told()
    if end == "reset":
        caller.reset(["s1"])
    else:
        caller.clear(["s1"])
        caller.put_rows(["s1"], "a")
    assert not told()


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


def test_the_name_of_a_caller_has_a_bound(caller: Caller) -> None:
    with caller.refuses(Reason.INVALID_REQUEST, "caller", "256 bytes"):
        caller.apply(caller.put_call(["s1"], {"a": [1]}, caller="x" * 257))
    caller.put(caller.put_call(["s1"], {"a": [1]}, caller="x" * 256))
