"""Puts and commits: columns and tags of rows, changed all at once or not at all."""

from __future__ import annotations

import pytest
from tests.core.caller import Caller, int64

from dataplane_server.core.calls import answers
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import AbortWrite, GiveUpClaim, PutSamples, ShareReservation

# -- a request that is repeated while it is under way ------------------------------------------------------------------


def test_a_repeated_put_that_is_refused_has_ended_the_one_under_way(caller: Caller) -> None:
    """Also if the arena has no space for the repeated put: that of the earlier one is free before it is checked."""
    put = caller.put_call(["s1"], {"a": [3]})
    for other in (
        PutSamples(put.request_id, "nowhere", ["s1"]),
        PutSamples(put.request_id, "p", ["s1"], [ColumnSpec("a", Shape("jagged", "uint8", ()), int64([5000]))]),
    ):
        reservation = caller.begin(put)
        with pytest.raises(Refusal):
            caller.apply(other)
        failed = caller.effect(answers.Failed)
        assert (failed.ticket, failed.refusal.reason) == (reservation.ticket, Reason.SUPERSEDED)
        assert caller.used == 0
        caller.fails(Reason.SUPERSEDED, reservation.ticket)


@pytest.mark.parametrize("by", ["an abort", "a finish that comes too late"])
def test_lent_room_of_a_put_whose_place_was_taken_stays_lent_until_it_is_given_back(caller: Caller, by: str) -> None:
    put = caller.put_call(["s1"], {"a": [3]})
    earlier = caller.begin(put)
    caller.apply(ShareReservation(earlier.ticket))
    later = caller.begin(put)
    assert caller.used == 6
    assert not set(earlier.runs) & set(later.runs)
    assert not caller.plane.holds_reservation(earlier.ticket)
    caller.finish(later.ticket)
    assert caller.used == 6
    if by == "an abort":
        caller.apply(AbortWrite(earlier.ticket))
    else:
        caller.fails(Reason.SUPERSEDED, earlier.ticket)
    assert caller.used == 3


def test_room_of_a_put_whose_place_was_taken_is_not_lent(caller: Caller) -> None:
    put = caller.put_call(["s1"], {"a": [3]})
    earlier = caller.begin(put)
    later = caller.begin(put)
    caller.effect(answers.Failed)
    assert earlier.runs == later.runs
    with caller.refuses(Reason.SUPERSEDED):
        caller.apply(ShareReservation(earlier.ticket))
    caller.finish(later.ticket)


# -- puts of rows that exist -------------------------------------------------------------------------------------------


def test_a_put_tells_which_rows_are_new_which_existed_and_which_of_these_a_task_has_consumed(caller: Caller) -> None:
    assert caller.put_rows(["s1", "s2"], "a").outcomes == b""
    caller.commit(caller.take("a").claim_id)
    again = caller.put_call(["s3", "s2", "s1"], {"a": [1, 1, 1]})
    first = caller.put(again)
    assert tuple(first.outcomes) == (answers.ROW_CREATED, answers.ROW_REPLACED, answers.ROW_CONSUMED)
    assert caller.answer(answers.PutResult, again).outcomes == first.outcomes
    claim_id = caller.take("a").claim_id
    assert caller.write_back(claim_id, ["s2"], {"a": [5]}).outcomes == b""


def test_a_put_that_only_creates_is_refused_whole_if_a_row_exists_when_it_begins_or_ends(caller: Caller) -> None:
    caller.put_rows(["s2"], "a")
    with caller.refuses(Reason.SAMPLE_EXISTS, "'p'", "'s2'", "create_only"):
        caller.apply(caller.put_call(["s1", "s2"], {"a": [1, 1]}, create_only=True))
    put = caller.put_call(["s1", "s3"], {"a": [1, 1]}, create_only=True)
    late = caller.begin(put)
    caller.put_rows(["s3"], "a")
    caller.fails(Reason.SAMPLE_EXISTS, late.ticket)
    assert caller.plane.partition_info("p").rows == 2
    caller.clear()
    first = caller.put(put)
    assert repr(caller.apply(put)) == repr(first)


@pytest.mark.parametrize("end", ["reset", "clear"])
def test_rows_that_were_put_again_are_told_until_they_are_reset_or_cleared(caller: Caller, end: str) -> None:
    def told() -> bool:
        waiting = caller.wait(caller.claim_call("a", batch_size=9))
        return "put again" in caller.apply(GiveUpClaim(waiting)).message

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
    reservation = caller.begin(caller.commit_call(second, {"b": [2], "a": [3]}))
    caller.finish(reservation.ticket)
    assert told(caller, "s1") == [
        ("put", "rollout-7", "", ("a",)),
        ("wrote_back", "critic", first, ("b",)),
        ("wrote_back", "", second, ("b", "a")),
    ]
