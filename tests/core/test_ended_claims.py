"""Ended claims change nothing any more, and late callers hear why. A claim holds the rows it was given, not their ids:
a row that was cleared is gone, though another may have its id.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import CommitResult, Grant, Reservation
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import ClaimSamples, CloseSession, DropPartition, EndRead

BY_SERVER = ["session died", "row reset", "task reset", "registered anew", "dropped"]
BY_CALLER = ["committed", "released", "abandoned", "session closed"]


def drop_and_put_again(caller: Caller, *_: object) -> None:
    caller.apply(DropPartition(caller.request_id(), "p"))
    caller.register()
    caller.put_rows(["s1"], "a")


WAYS: dict[str, Callable[[Caller, ClaimSamples, str], object]] = {
    "session died": lambda caller, *_: caller.pass_time(5.0),
    "row reset": lambda caller, *_: caller.reset(["s1"]),
    "task reset": lambda caller, *_: caller.reset(),
    "registered anew": lambda caller, *_: caller.register(tasks=("train",)),
    "dropped": drop_and_put_again,
    "cleared": lambda caller, *_: caller.clear(),
    "committed": lambda caller, _, claim_id: caller.commit(claim_id),
    "released": lambda caller, _, claim_id: caller.release(claim_id),
    "abandoned": lambda caller, call, _: caller.abandon_request(call.request_id),
    "session closed": lambda caller, call, _: caller.apply(CloseSession(call.session_id)),
}


def ended(caller: Caller, how: str, *sample_ids: str) -> str:
    """The id of a claim on rows (s1 if none are named) that has ended."""
    caller.put_rows(sample_ids or ["s1"], "a")
    call = caller.claim_call("a", batch_size=len(sample_ids) or 1, session_id=caller.open_session(5.0))
    claim_id = caller.answer(Grant, call).claim_id
    WAYS[how](caller, call, claim_id)
    caller.plane.take_effects()
    return claim_id


def check_refused(caller: Caller, claim_id: str, reason: Reason) -> None:
    with caller.refuses(reason, claim_id):
        caller.commit(claim_id)
    with caller.refuses(reason, claim_id):
        caller.apply(caller.commit_call(claim_id, {"b": [1]}))
    with caller.refuses(reason, claim_id):
        caller.release(claim_id)
    with caller.refuses(reason, claim_id):
        caller.write_back(claim_id, ["s1"], {"b": [1]})
    heir = caller.open_session()
    with caller.refuses(reason, claim_id):
        caller.adopt(claim_id, heir)


@pytest.mark.parametrize("how", BY_SERVER)
def test_whatever_is_done_in_the_name_of_a_claim_that_the_server_ended_is_fenced(caller: Caller, how: str) -> None:
    check_refused(caller, ended(caller, how), Reason.CLAIM_FENCED)


@pytest.mark.parametrize("how", BY_CALLER)
def test_a_claim_that_its_caller_ended_is_not_found(caller: Caller, how: str) -> None:
    check_refused(caller, ended(caller, how), Reason.CLAIM_NOT_FOUND)


@pytest.mark.parametrize("claim_id", ["c-99", "x-1", "c-", "-1", "nonsense", "c--1", "c-1e3", "c-²"])
def test_a_claim_that_never_was_is_not_found(caller: Caller, claim_id: str) -> None:
    caller.put_rows(["s1"], "a")
    check_refused(caller, claim_id, Reason.CLAIM_NOT_FOUND)


def test_a_claim_is_the_fence_of_one_delivery_and_fences_grow(caller: Caller) -> None:
    """Whatever task it is for."""
    caller.put_rows(["s1"], "a")
    fences = []
    for task in ("train", "score", "score", "train", "train"):
        grant = caller.take("a", task=task)
        fences.append(int(grant.claim_id.rpartition("-")[2]))
        caller.release(grant.claim_id)
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("write", ["commit", "write-back"])
def test_a_write_whose_claim_ends_while_its_bytes_come_is_fenced_at_its_end(caller: Caller, write: str) -> None:
    caller.put_rows(["s1"], "a")
    claim_id = caller.take("a", session_id=caller.open_session(5.0)).claim_id
    if write == "commit":
        reservation = caller.begin(caller.commit_call(claim_id, {"b": [9]}))
    else:
        reservation = caller.begin(caller.put_call(["s1"], {"b": [9]}, claim_id=claim_id))
    caller.pass_time(5.0)
    caller.fails(Reason.CLAIM_FENCED, reservation.ticket)
    with caller.refuses(Reason.FIELD_NOT_PRODUCED):
        caller.read(["s1"], "b")


def test_a_write_back_to_rows_of_others_is_refused(caller: Caller) -> None:
    caller.put_rows(["s1", "s2"], "a")
    grant = caller.take("a")
    with caller.refuses(Reason.INVALID_REQUEST, grant.claim_id):
        caller.write_back(grant.claim_id, ["s1", "s2"], {"b": [3, 3]})


def test_a_write_back_does_not_write_to_a_row_that_took_the_id_of_its_own(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    grant = caller.take("a")
    caller.clear(["s1"])
    caller.put_rows(["s1"], "a")
    with caller.refuses(Reason.INVALID_REQUEST, grant.claim_id):
        caller.write_back(grant.claim_id, ["s1"], {"b": [3]})


@pytest.mark.parametrize("lengths", [{}, {"b": [9]}], ids=["plain", "with columns"])
def test_a_commit_that_is_repeated_is_answered_as_the_first_time_and_applied_once(
    caller: Caller, lengths: dict[str, list[int]]
) -> None:
    caller.put_rows(["s1"], "a")
    commit = caller.commit_call(caller.take("a").claim_id, lengths)
    begun = caller.apply(commit)
    first = caller.finish(begun.ticket) if isinstance(begun, Reservation) else begun
    assert first == CommitResult(1)
    caller.reset()
    caller.take("a")
    before = caller.state()
    assert caller.apply(commit) == first
    assert caller.state() == before


@pytest.mark.parametrize("how", ["session died", "committed"])
def test_a_claim_that_ended_long_ago_is_fenced(new_caller: Callable[..., Caller], how: str) -> None:
    caller = new_caller(remembered_claims=3)
    caller.register()
    late = ended(caller, how)
    caller.reset()
    for _ in range(3):
        caller.release(caller.take("a").claim_id)
    with caller.refuses(Reason.CLAIM_FENCED, late):
        caller.commit(late)


def test_an_adopted_claim_outlives_its_former_session(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    former, heir = caller.open_session(5.0), caller.open_session(60.0)
    claim_id = caller.take("a", session_id=former).claim_id
    caller.adopt(claim_id, heir)
    caller.apply(CloseSession(former))
    assert caller.commit(claim_id).consumed_rows == 1


def test_an_adopted_claim_ends_with_its_new_session(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    former, heir = caller.open_session(60.0), caller.open_session(5.0)
    claim_id = caller.take("a", session_id=former).claim_id
    caller.adopt(claim_id, heir)
    caller.pass_time(5.0)
    with caller.refuses(Reason.CLAIM_FENCED, claim_id):
        caller.commit(claim_id)
    assert caller.take("a").sample_ids == ("s1",)


def test_a_claim_on_a_partition_that_was_dropped_is_told_that_its_rows_are_gone(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    claim_id = caller.take("a").claim_id
    caller.apply(DropPartition(caller.request_id(), "p"))
    caller.plane.take_effects()
    with caller.refuses(Reason.CLAIM_FENCED, "its partition was dropped", "its rows are gone"):
        caller.commit(claim_id)


# -- rows that were cleared and put again ------------------------------------------------------------------------------


def test_a_commit_does_not_write_to_rows_that_were_put_again(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    claim_id = caller.take("a").claim_id
    caller.clear(["s1"])
    caller.put_rows(["s1"], "a")
    with caller.refuses(Reason.SAMPLE_NOT_FOUND, "'s1'", "was cleared"):
        caller.apply(caller.commit_call(claim_id, {"b": [1]}))
    assert caller.plane.partition_info("p").fields[1].rows == 0


def test_a_commit_that_streams_while_its_rows_are_put_again_is_refused_at_its_end(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    reservation = caller.begin(caller.commit_call(caller.take("a").claim_id, {"b": [9]}))
    caller.clear(["s1"])
    caller.put_rows(["s1"], "a")
    caller.fails(Reason.SAMPLE_NOT_FOUND, reservation.ticket)
    with caller.refuses(Reason.FIELD_NOT_PRODUCED, "'s1'", "'b'"):
        caller.read(["s1"], "b")


def test_a_row_cleared_while_pinned_and_put_again_is_a_new_row(caller: Caller) -> None:
    caller.put_rows(["s1"], "a", size=3)
    grant = caller.take("a")
    plan = caller.read(["s1"], "a")
    caller.clear(["s1"])
    caller.put_rows(["s1"], "a", size=4)
    caller.apply(EndRead(plan.ticket))
    assert caller.used == 4
    assert caller.commit(grant.claim_id) == CommitResult(0)
    assert caller.take("a").sample_ids == ("s1",)
