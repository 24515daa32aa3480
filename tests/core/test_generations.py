"""Generations: a row has one for ever, and no other row of the server ever has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller, int64
from tests.core.replayed import RecordedPlane

from dataplane_server.core.calls.answers import ClearResult
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import BeginRead, DropPartition
from dataplane_server.core.calls.values import Int64Array


def replaced(caller: Caller, *sample_ids: str) -> Int64Array:
    """The generations of rows of a byte in a, which were then cleared and put anew."""
    before = caller.put_rows(sample_ids, "a").generations
    caller.clear(sample_ids)
    caller.put_rows(sample_ids, "a")
    return before


def test_a_partition_that_was_dropped_and_registered_anew_repeats_no_generation(caller: Caller) -> None:
    before = caller.put_rows(["s1"], "a").generations[0]
    caller.apply(DropPartition(caller.request_id(), "p"))
    caller.register()
    assert caller.put_rows(["s1"], "a").generations[0] > before


def test_generations_begin_where_the_shell_says() -> None:
    caller = Caller(Limits())
    caller.plane = RecordedPlane(first_generation=10**15)
    caller.register()
    assert caller.put_rows(["s1", "s2"], "a").generations.tolist() == [10**15, 10**15 + 1]


# -- calls that speak of certain rows ----------------------------------------------------------------------------------


def read(caller: Caller, sample_ids: list[str], generations: Int64Array) -> None:
    caller.apply(BeginRead("p", sample_ids, ["a"], generations))


def put(caller: Caller, sample_ids: list[str], generations: Int64Array) -> None:
    caller.apply(caller.put_call(sample_ids, {"b": [1] * len(sample_ids)}, generations=generations))


Speak = Callable[[Caller, list[str], Int64Array], None]


@pytest.mark.parametrize("speak", [read, put])
def test_a_row_that_was_cleared_and_put_anew_is_refused_as_another_one(caller: Caller, speak: Speak) -> None:
    (kept,) = caller.put_rows(["s0"], "a").generations
    old = replaced(caller, "s1", "s2")
    with caller.refuses(Reason.ROW_REPLACED, "'p'", "'s1'", "1 more"):
        speak(caller, ["s0", "s1", "s2"], int64([kept, *old]))


def test_a_put_under_way_to_a_row_that_is_replaced_meanwhile_leaves_the_new_row_alone(caller: Caller) -> None:
    generations = caller.put_rows(["s1"], "a").generations
    reservation = caller.begin(caller.put_call(["s1"], {"b": [9]}, generations=generations))
    caller.clear(["s1"])
    caller.put_rows(["s1"], "a", size=2)
    caller.fails(Reason.ROW_REPLACED, reservation.ticket)
    assert caller.used == 2
    with caller.refuses(Reason.FIELD_NOT_PRODUCED):
        caller.read(["s1"], "b")


def test_a_clear_with_generations_leaves_rows_that_are_others_or_gone(caller: Caller) -> None:
    old = replaced(caller, "s1")
    (s2, s3) = caller.put_rows(["s2", "s3"], "a", size=7).generations
    caller.clear(["s3"])
    assert caller.clear(["s1", "s2", "s3"], generations=int64([old[0], s2, s3])) == ClearResult(1, 7)
    assert caller.plane.partition_info("p").rows == 1
