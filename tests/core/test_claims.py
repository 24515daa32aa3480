"""Claims: which rows a task gets, in which order, and who is served first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Effect, Failed, Granted, ReleaseResult, Waiting
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import AbandonClaim, GiveUpClaim


def waits(caller: Caller, *fields: str, batch_size: int = 1, min_size: int | None = None, task: str = "train") -> int:
    waiting = caller.apply(caller.claim_call(*fields, batch_size=batch_size, min_size=min_size, task=task))
    assert isinstance(waiting, Waiting)
    return waiting.ticket


def granted(effects: Sequence[Effect]) -> list[tuple[int, tuple[str, ...]]]:
    assert all(isinstance(effect, Granted) for effect in effects)
    return [(effect.ticket, effect.grant.sample_ids) for effect in effects if isinstance(effect, Granted)]


# -- which rows, in which order ----------------------------------------------------------------------------------------


def test_rows_come_in_the_order_in_which_they_became_ready(caller: Caller) -> None:
    caller.apply(AbandonClaim(waits(caller, "a", "b")))
    caller.put_rows(["s1", "s2", "s3"], "a")
    caller.put_rows(["s3"], "b")
    caller.put_rows(["s2", "s1"], "b")
    assert caller.take("a", "b", batch_size=3).sample_ids == ("s3", "s2", "s1")


def test_rows_ready_before_their_fields_were_first_asked_for_come_in_order_of_arrival(caller: Caller) -> None:
    caller.put_rows(["s3", "s1", "s2"], "a")
    caller.put_rows(["s2", "s1", "s3"], "b")
    assert caller.take("b", batch_size=3).sample_ids == ("s3", "s1", "s2")


def test_a_claim_waits_while_its_least_is_not_there_and_takes_nothing(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    ticket = waits(caller, "a", batch_size=5, min_size=2)
    assert caller.plane.partition_info("p").tasks[0].untaken_rows == 1
    caller.put_rows(["s2", "s3", "s4", "s5", "s6", "s7"], "a")
    assert granted(caller.plane.take_effects()) == [(ticket, ("s1", "s2", "s3", "s4", "s5"))]


def test_a_row_is_handed_to_a_task_once_though_it_asks_for_different_fields(caller: Caller) -> None:
    caller.put_rows(["s1", "s2"], "a", "b")
    caller.take("a")
    assert caller.take("b").sample_ids == ("s2",)
    waits(caller, "a", "b")


# -- given back --------------------------------------------------------------------------------------------------------


def test_released_rows_come_first_and_in_their_order(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3", "s4"], "a")
    grant = caller.take("a", batch_size=2)
    assert caller.release(grant.claim_id) == ReleaseResult(2)
    assert caller.take("a", batch_size=3).sample_ids == ("s1", "s2", "s3")


def test_the_claim_released_last_comes_first(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a")
    first, second = caller.take("a"), caller.take("a")
    caller.release(first.claim_id)
    caller.release(second.claim_id)
    assert caller.take("a", batch_size=3).sample_ids == ("s2", "s1", "s3")


# -- who is served first -----------------------------------------------------------------------------------------------


def test_claims_for_the_same_rows_are_served_first_come_first_served(caller: Caller) -> None:
    tickets = [waits(caller, "a", batch_size=2, min_size=1) for _ in range(3)]
    caller.put_rows(["s1", "s2", "s3"], "a")
    assert granted(caller.plane.take_effects()) == [(tickets[0], ("s1", "s2")), (tickets[1], ("s3",))]


def test_of_claims_for_different_fields_the_one_that_has_waited_longest_is_served(caller: Caller) -> None:
    first, _ = [caller.apply(caller.claim_call(field)) for field in ("b", "a")]
    assert isinstance(first, Waiting)
    caller.put_rows(["s1"], "a", "b")
    (granted,) = caller.plane.take_effects()
    assert (type(granted), getattr(granted, "ticket", None)) == (Granted, first.ticket)


def test_a_small_claim_does_not_overtake_a_large_one(caller: Caller) -> None:
    large = waits(caller, "a", batch_size=3)
    small = waits(caller, "a")
    caller.put_rows(["s1", "s2"], "a")
    assert caller.plane.take_effects() == []
    last = waits(caller, "a")
    caller.put_rows(["s3", "s4"], "a")
    assert granted(caller.plane.take_effects()) == [(large, ("s1", "s2", "s3")), (small, ("s4",))]
    caller.apply(AbandonClaim(last))


def test_a_claim_that_cannot_be_filled_blocks_nobody_who_wants_other_fields(caller: Caller) -> None:
    waits(caller, "a", "b", batch_size=64)
    assert caller.put_rows(["s1"], "a").created_rows == 1
    assert caller.take("a").sample_ids == ("s1",)


@pytest.mark.parametrize("leave", [pytest.param(True, id="gave up"), pytest.param(False, id="is gone")])
def test_those_behind_a_claim_that_left_the_line_are_served(caller: Caller, leave: bool) -> None:
    large = waits(caller, "a", batch_size=3)
    small = waits(caller, "a")
    caller.put_rows(["s1"], "a")
    if leave:
        caller.apply(GiveUpClaim(large))
    else:
        caller.apply(AbandonClaim(large))
    assert granted(caller.plane.take_effects()) == [(small, ("s1",))]


def test_abandoning_a_claim_twice_or_one_that_was_granted_changes_nothing(caller: Caller) -> None:
    ticket = waits(caller, "a")
    caller.put_rows(["s1"], "a")
    caller.plane.take_effects()
    before = caller.state()
    caller.apply(AbandonClaim(ticket))
    caller.apply(AbandonClaim(ticket))
    assert caller.state() == before


def test_a_repeated_claim_that_is_refused_has_ended_the_one_that_waits(caller: Caller) -> None:
    request = caller.claim_call("a")
    waiting = caller.apply(request)
    assert isinstance(waiting, Waiting)
    with pytest.raises(Refusal):
        caller.apply(replace(request, batch_size=0, min_size=0))
    (failed,) = caller.plane.take_effects()
    assert isinstance(failed, Failed)
    assert (failed.ticket, failed.refusal.reason) == (waiting.ticket, Reason.SUPERSEDED)
    caller.put_rows(["s1"], "a")
    assert caller.plane.take_effects() == []


def test_the_deadline_of_a_claim_is_told_with_what_was_missing(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a")
    caller.take("a")
    refusal = caller.apply(GiveUpClaim(waits(caller, "a", "b", batch_size=2)))
    assert refusal.reason is Reason.CLAIM_TIMEOUT
    for words in (
        "'p'",
        "'train'",
        "2 ready rows wanted",
        "2 of 3 resident rows",
        "2 of 2 untaken rows lack field 'b'",
    ):
        assert words in refusal.message
    assert "'a'" not in refusal.message
    assert caller.plane.totals().waiting_claims == 0


def test_claim_ids_of_two_server_lives_differ(new_caller: Callable[..., Caller]) -> None:
    ids = set()
    for incarnation in ("x", "y"):
        caller = new_caller()
        caller.plane = type(caller.plane)(incarnation=incarnation)
        caller.register()
        caller.put_rows(["s1"], "a")
        ids.add(caller.take("a").claim_id)
    assert len(ids) == 2
