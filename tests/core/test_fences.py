"""A claim speaks of the rows it was given, not of their names: what was cleared is gone, though its id may return."""

from __future__ import annotations

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import CommitResult
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import EndRead


@pytest.fixture
def claim_id(caller: Caller) -> str:
    """A claim on s1 and s2 for train, both of which were then cleared and put again."""
    caller.put_rows(["s1", "s2"], "a", size=1)
    grant = caller.take("a", batch_size=2)
    caller.clear(["s1", "s2"])
    caller.put_rows(["s1", "s2"], "a", size=5)
    return grant.claim_id


def test_a_commit_does_not_consume_rows_that_were_put_again(caller: Caller, claim_id: str) -> None:
    assert caller.commit(claim_id) == CommitResult(0)
    assert caller.take("a", batch_size=2).sample_ids == ("s1", "s2")


def test_a_commit_does_not_write_to_rows_that_were_put_again(caller: Caller, claim_id: str) -> None:
    with caller.refuses(Reason.SAMPLE_NOT_FOUND, "'s1'", "was cleared"):
        caller.apply(caller.commit_call(claim_id, {"b": [1, 1]}))
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
