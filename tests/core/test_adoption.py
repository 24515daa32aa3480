"""Adoption: an open claim moves to another session, which holds it alone from then on."""

from __future__ import annotations

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import CloseSession


@pytest.fixture
def grown(caller: Caller) -> Caller:
    caller.put_rows(["s1", "s2", "s3", "s4"], "a")
    return caller


def test_an_adopted_claim_outlives_its_former_session(grown: Caller) -> None:
    former, heir = grown.open_session(5.0), grown.open_session(60.0)
    grant = grown.take("a", session_id=former)
    grown.adopt(grant.claim_id, heir)
    grown.apply(CloseSession(former))
    assert grown.commit(grant.claim_id).consumed_rows == 1


def test_an_adopted_claim_ends_with_its_new_session(grown: Caller) -> None:
    former, heir = grown.open_session(60.0), grown.open_session(5.0)
    grant = grown.take("a", session_id=former)
    grown.adopt(grant.claim_id, heir)
    grown.pass_time(5.0)
    with grown.refuses(Reason.CLAIM_FENCED, grant.claim_id):
        grown.commit(grant.claim_id)
    assert grown.take("a").sample_ids == ("s1",)


def test_the_heir_of_a_shard_holds_it_alone(grown: Caller) -> None:
    sessions = [grown.open_session(60.0), grown.open_session(60.0)]
    grants = [grown.take_shard("a", session_id=session_id) for session_id in sessions]
    heir = grown.open_session(5.0)
    grown.adopt(grants[0].claim_id, heir)
    grown.pass_time(5.0)
    with grown.refuses(Reason.CLAIM_FENCED):
        grown.commit(grants[0].claim_id)


@pytest.mark.parametrize("session_id", ["", "c-s99"])
def test_a_session_that_does_not_live_adopts_nothing(grown: Caller, session_id: str) -> None:
    grant = grown.take("a")
    with grown.refuses(Reason.SESSION_EXPIRED):
        grown.adopt(grant.claim_id, session_id)
    assert grown.commit(grant.claim_id).consumed_rows == 1
