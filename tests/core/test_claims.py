"""Claims: which rows a task gets, in which order, and who is served first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Effect, Granted, Waiting
from dataplane_server.core.calls.refusal import Reason
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


# -- who is served first -----------------------------------------------------------------------------------------------


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
