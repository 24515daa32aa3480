"""What is told of one sample, on a data plane to which things happen."""

from __future__ import annotations

from tests.core.caller import Caller

from dataplane_server.core.calls.answers import ResidentSample
from dataplane_server.core.calls.refusal import Reason


def resident(caller: Caller, sample_id: str) -> ResidentSample:
    found = caller.plane.sample("p", sample_id).resident
    assert found is not None
    return found


def whats(caller: Caller, sample_id: str) -> list[str]:
    return [event.what for event in caller.plane.sample("p", sample_id).events]


def test_what_happened_is_told_oldest_first_with_time_and_claim(caller: Caller) -> None:
    caller.now = 10.0
    caller.put(caller.put_call(["s"], {"a": [1]}, caller="worker"))
    caller.now = 11.0
    session_id = caller.open_session()
    claim = caller.take("a", session_id=session_id)
    caller.now = 12.0
    caller.commit(claim.claim_id)
    events = caller.plane.sample("p", "s").events
    assert [(event.at, event.what, event.who, event.task, event.claim_id) for event in events] == [
        (10.0, "put", "worker", "", ""),
        (11.0, "claimed", "client", "train", claim.claim_id),
        (12.0, "committed", "client", "train", claim.claim_id),
    ]
    assert events[0].fields == ("a",)


def test_a_delivery_whose_session_died_expires_and_its_row_is_delivered_again(caller: Caller) -> None:
    caller.put_rows(["s"], "a")
    lost = caller.take("a", session_id=caller.open_session(grace_s=1.0))
    caller.pass_time(2.0)
    caller.plane.take_effects()
    caller.take("a")
    with caller.refuses(Reason.CLAIM_FENCED):
        caller.commit(lost.claim_id)
    assert whats(caller, "s") == ["put", "claimed", "expired", "claimed", "fenced"]


def test_a_row_that_failed_too_often_tells_why(caller: Caller) -> None:
    caller.register(max_deliveries=1)
    caller.put_rows(["s"], "a")
    caller.release(caller.take("a").claim_id, reason="NaN in the loss")
    events = caller.plane.sample("p", "s").events
    assert [event.what for event in events] == ["put", "claimed", "released", "dead_letter"]
    assert events[2].reason == "NaN in the loss"


def test_the_story_outlives_the_row_and_goes_on_with_the_next_of_its_id(caller: Caller) -> None:
    first = caller.put_rows(["s"], "a").generations
    caller.clear(["s"])
    assert caller.plane.sample("p", "s").resident is None
    assert whats(caller, "s") == ["put", "cleared"]
    second = caller.put_rows(["s"], "a").generations
    assert resident(caller, "s").generation == int(second[0]) > int(first[0])
    assert whats(caller, "s") == ["put", "cleared", "put"]
