"""Claims that wait: who is served first, for which rows, and what they are told at their deadline."""

from __future__ import annotations

from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Granted
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import GiveUpClaim


def test_of_claims_for_different_fields_the_one_that_has_waited_longest_is_served(caller: Caller) -> None:
    first, _ = [caller.wait(caller.claim_call(field)) for field in ("b", "a")]
    caller.put_rows(["s1"], "a", "b")
    (granted,) = caller.plane.take_effects()
    assert (type(granted), getattr(granted, "ticket", None)) == (Granted, first)


def test_the_deadline_of_a_claim_is_told_with_what_was_missing(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a")
    caller.take("a")
    waiting = caller.wait(caller.claim_call("a", "b", batch_size=2))
    refusal = caller.apply(GiveUpClaim(waiting))
    assert refusal.reason is Reason.CLAIM_TIMEOUT
    told = "'p'", "'train'", "2 ready rows wanted", "2 of 3 resident rows", "2 of 2 untaken rows lack field 'b'"
    assert [words for words in told if words not in refusal.message] == []
    assert "'a'" not in refusal.message
    assert caller.plane.totals().waiting_claims == 0


def test_a_claim_waits_for_rows_that_others_hold_or_delay(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    held = caller.take("a").claim_id
    caller.close()
    waiting = caller.wait(caller.claim_call("a"))
    caller.release(held, delay_s=5.0)
    assert caller.plane.take_effects() == []
    (granted,) = caller.pass_time(6.0)
    assert granted.ticket == waiting
