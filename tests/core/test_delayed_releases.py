"""Releases with a delay: rows are held back for a while, then come first in line."""

from __future__ import annotations

import math

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import ReleaseResult
from dataplane_server.core.calls.refusal import Reason


@pytest.fixture
def delayed(caller: Caller) -> Caller:
    """A caller with s1 and s2, held back for train until 10 s, and s3."""
    caller.put_rows(["s1", "s2", "s3"], "a")
    assert caller.release(caller.take("a", batch_size=2).claim_id, delay_s=10.0) == ReleaseResult(2)
    return caller


def test_rows_are_held_back_until_their_delay_is_over(delayed: Caller) -> None:
    delayed.pass_time(9.9)
    assert (delayed.task().delayed_rows, delayed.task().untaken_rows, delayed.task().claimed_rows) == (2, 1, 0)
    assert delayed.standing("s1").state == "delayed"
    delayed.pass_time(0.1)
    assert (delayed.task().delayed_rows, delayed.task().untaken_rows) == (0, 3)


def test_rows_whose_delay_is_over_come_first_in_line_and_in_their_order(delayed: Caller) -> None:
    delayed.pass_time(10.0)
    assert delayed.take("a", batch_size=3).sample_ids == ("s1", "s2", "s3")


def test_the_plane_says_when_the_next_delay_is_over(delayed: Caller) -> None:
    assert delayed.plane.next_due == 10.0
    delayed.pass_time(10.0)
    assert delayed.plane.next_due is None


def test_a_row_delayed_anew_is_held_until_the_new_time(delayed: Caller) -> None:
    delayed.reset(["s1", "s2"])
    delayed.release(delayed.take("a", batch_size=2).claim_id, delay_s=30.0)
    delayed.pass_time(29.9)
    assert delayed.task().delayed_rows == 2
    delayed.pass_time(0.1)
    assert delayed.task().delayed_rows == 0


def test_once_delayed_rows_are_cleared_a_claim_waits_for_producers_and_not_for_them(delayed: Caller) -> None:
    delayed.clear()
    delayed.apply(delayed.claim_call("a"))
    delayed.now = 1.0
    assert delayed.task().state_seconds["waiting_for_producers"] == 1.0


def test_delays_that_were_overtaken_without_end_leave_little_behind(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    for _ in range(5000):
        caller.release(caller.take("a").claim_id, delay_s=86_400.0)
        caller.reset(["s1"])
    assert len(caller.plane._state.delays._heap) < 1000


@pytest.mark.parametrize("delay_s", [-1.0, 86_400.1, math.inf, math.nan])
def test_a_delay_out_of_bounds_is_refused(caller: Caller, delay_s: float) -> None:
    caller.put_rows(["s1"], "a")
    grant = caller.take("a")
    with caller.refuses(Reason.INVALID_REQUEST, "86400"):
        caller.release(grant.claim_id, delay_s=delay_s)
    assert caller.commit(grant.claim_id).consumed_rows == 1


def test_a_long_reason_is_refused_by_its_bytes(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    grant = caller.take("a")
    with caller.refuses(Reason.INVALID_REQUEST, "256 bytes"):
        caller.release(grant.claim_id, reason="é" * 129)
    assert caller.release(grant.claim_id, reason="é" * 128) == ReleaseResult(1)
