"""A client that lives may pause as long as it likes: an evaluation of half an hour costs it neither rows nor groups."""

from __future__ import annotations

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Waiting
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import Heartbeat

PAUSE_S = 1800.0


def pause(caller: Caller, session_id: str, interval_s: float) -> None:
    """Half an hour in which nothing is heard of a client but its heartbeats, and the plane does whatever is due."""
    until = caller.now + PAUSE_S
    while caller.now < until:
        caller.pass_time(interval_s)
        assert caller.apply(Heartbeat(session_id))


@pytest.mark.parametrize("grace_s", [0.5, 10.0, 60.0])
@pytest.mark.parametrize("share", [0.25, 0.9], ids=["at the usual interval", "barely in time"])
def test_a_client_that_sends_heartbeats_keeps_rows_and_groups_through_half_an_hour(
    caller: Caller, grace_s: float, share: float
) -> None:
    session_id = caller.open_session(grace_s)
    caller.put_rows(["held"], "a")
    claim = caller.take("a", session_id=session_id)
    group = caller.reserve("prompt", ["slow"], session_id)
    waiting = caller.apply(caller.claim_call("a"))
    pause(caller, session_id, share * grace_s)
    assert isinstance(waiting, Waiting)
    assert caller.plane.take_effects() == []
    assert caller.commit(claim.claim_id).consumed_rows == 1
    caller.put(caller.put_call(["slow"], {"a": [1]}, reservation_id=group.reservation_id))
    assert caller.finish_group(group.reservation_id).rows == 1


def test_meanwhile_a_client_that_is_silent_loses_its_rows_after_its_grace(caller: Caller) -> None:
    living, silent = caller.open_session(10.0), caller.open_session(10.0)
    caller.put_rows(["kept", "lost"], "a")
    kept, lost = caller.take("a", session_id=living), caller.take("a", session_id=silent)
    pause(caller, living, 2.5)
    assert caller.take("a").sample_ids == lost.sample_ids
    caller.plane.take_effects()
    with caller.refuses(Reason.CLAIM_FENCED):
        caller.commit(lost.claim_id)
    assert caller.commit(kept.claim_id).consumed_rows == 1
