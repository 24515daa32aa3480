"""Claims of whole groups: complete ones only, in the order in which they became complete, their rows side by side."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.core.caller import Caller
from tests.core.machine.clients import Clients

from dataplane_server.core.calls.answers import Granted, GroupPart, Waiting
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import AbandonClaim


def whole(caller: Caller, batch_size: int = 1, *fields: str, **more: object) -> tuple[str, ...]:
    """Rows of whole groups that are there, or none."""
    sizes = {"batch_size": batch_size, "min_size": 1}
    request = caller.claim_call(*(fields or ("a",)), whole_groups=True, **sizes, **more)  # type: ignore[arg-type]
    answer = caller.apply(request)
    if isinstance(answer, Waiting):
        caller.apply(AbandonClaim(answer.ticket))
        return ()
    assert sum(part.rows for part in answer.groups) == len(answer.sample_ids)
    return answer.sample_ids


def waits(caller: Caller, batch_size: int, *fields: str) -> int:
    waiting = caller.apply(caller.claim_call(*(fields or ("a",)), batch_size=batch_size, whole_groups=True))
    assert isinstance(waiting, Waiting)
    return waiting.ticket


def granted(caller: Caller) -> list[tuple[int, tuple[str, ...]]]:
    effects = [effect for effect in caller.plane.take_effects() if isinstance(effect, Granted)]
    return [(effect.ticket, effect.grant.sample_ids) for effect in effects]


@pytest.fixture
def two(caller: Caller) -> Caller:
    """Groups g (rows g1, g2) and h (h1 to h3), with a in every row and b in h."""
    caller.put_group("g", ["g1", "g2"], "a")
    caller.put_group("h", ["h1", "h2", "h3"], "a", "b")
    return caller


def test_sizes_count_groups(two: Caller) -> None:
    grant = two.take("a", batch_size=2, whole_groups=True)
    assert grant.sample_ids == ("g1", "g2", "h1", "h2", "h3")
    assert grant.groups == (GroupPart("g", 2), GroupPart("h", 3))


def test_a_claim_waits_for_as_many_groups_as_it_needs(two: Caller) -> None:
    ticket = waits(two, 3)
    two.put_group("i", ["i1"], "a")
    assert granted(two) == [(ticket, ("g1", "g2", "h1", "h2", "h3", "i1"))]


# -- order -------------------------------------------------------------------------------------------------------------


def test_groups_come_in_the_order_in_which_they_became_complete(two: Caller) -> None:
    two.put_group("i", ["i1", "i2"], "a")
    ticket = waits(two, 4, "a", "b")
    two.put_rows(["i1", "g2"], "b")
    two.put_rows(["single"], "a", "b")
    two.put_rows(["i2"], "b")
    two.put_rows(["g1"], "b")
    assert granted(two) == [(ticket, ("h1", "h2", "h3", "single", "i1", "i2", "g1", "g2"))]


# -- clear -------------------------------------------------------------------------------------------------------------


def test_a_group_that_a_clear_completes_is_ordered_by_its_remaining_rows(caller: Caller) -> None:
    assert whole(caller, order="oldest_version") == ()
    caller.put_group("g", ["g1"], "a")
    reservation = caller.reserve("h", ["h1", "h2"]).reservation_id
    caller.put(caller.put_call(["h1", "h2"], {"b": [1, 1]}, reservation_id=reservation))
    caller.put(caller.put_call(["h2"], {"a": [1]}, tags=[{"weight_version": 0}], reservation_id=reservation))
    caller.finish_group(reservation)
    caller.clear(["h1"])
    assert whole(caller, 2, order="oldest_version") == ("h2", "g1")


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_tokens", "expected"), [(0, 3), (1, 1), (14, 1), (15, 1), (16, 1), (30, 2), (31, 2), (45, 3), (1000, 3)]
)
def test_groups_are_taken_while_their_tokens_stay_within_the_bound_but_one_at_least(
    caller: Caller, max_tokens: int, expected: int
) -> None:
    for name in ("g", "h", "i"):
        ids = [f"{name}1", f"{name}2", f"{name}3"]
        reservation_id = caller.reserve(name, ids).reservation_id
        more = {"sequence_lengths": [5, 10, -1], "reservation_id": reservation_id}
        caller.put(caller.put_call(ids, {"a": [1, 1, 1]}, **more))  # type: ignore[arg-type]
        caller.finish_group(reservation_id)
    assert len(whole(caller, 3, max_tokens=max_tokens)) == 3 * expected
    assert len(whole(caller, 3)) == 3 * (3 - expected)


def test_no_claim_hands_out_more_rows_of_whole_groups_than_a_call_may_name(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    caller.register()
    ids = [[f"g{group}r{row}" for row in range(4096)] for group in range(17)]
    for group, of_group in enumerate(ids):
        reservation_id = caller.reserve(f"g{group}", of_group).reservation_id
        caller.put(caller.put_call([], {"a": [1]}, reservation_id=reservation_id, shared=True))
        caller.finish_group(reservation_id)
    assert len(whole(caller, 17)) == 65_536
    assert whole(caller, 17) == tuple(ids[16])


# -- counted by rows ---------------------------------------------------------------------------------------------------


def by_rows(caller: Caller, batch_size: int, min_size: int = 1, **more: object) -> tuple[str, ...] | int:
    """Rows of whole groups that are there, or the ticket of the claim that waits for them."""
    sizes = {"batch_size": batch_size, "min_size": min_size, "unit": "rows"}
    answer = caller.apply(caller.claim_call("a", whole_groups=True, **sizes, **more))  # type: ignore[arg-type]
    return answer.ticket if isinstance(answer, Waiting) else answer.sample_ids


def test_a_claim_that_waits_for_rows_is_served_when_that_many_are_ready_in_whole_groups(caller: Caller) -> None:
    ticket = by_rows(caller, 9, 4)
    caller.put_group("g", ["g1", "g2", "g3"], "a")
    reservation_id = caller.reserve("h", ["h1", "h2"]).reservation_id
    caller.put(caller.put_call(["h1", "h2"], {"a": [1, 1]}, reservation_id=reservation_id))
    assert granted(caller) == []
    caller.finish_group(reservation_id)
    assert granted(caller) == [(ticket, ("g1", "g2", "g3", "h1", "h2"))]


def test_a_unit_of_groups_needs_whole_groups(two: Caller) -> None:
    with two.refuses(Reason.INVALID_REQUEST, "whole_groups"):
        two.take("a", unit="groups")


# -- against a model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_history_of_groups_goes_as_the_model_says(seed: int) -> None:
    clients = Clients(random.Random(seed))
    clients.keep_to("put_group", "finish_group", "add_to_group", "put", "claim", "release", "commit", "clear")
    clients.run(200, 10**9)
