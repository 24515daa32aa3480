"""Room for puts: never more than the budget, first come first served, given when rows are cleared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Admitted, Effect, Reservation, Waiting
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import AbortWrite, GiveUpWrite


@pytest.fixture
def full(new_caller: Callable[..., Caller]) -> Caller:
    """A data plane of 256 bytes, all in use by rows s1 to s4, 64 bytes each."""
    caller: Caller = new_caller(memory_bytes=256)
    caller.register()
    caller.put_rows(["s1", "s2", "s3", "s4"], "a", size=64)
    return caller


def waits(caller: Caller, size: int) -> int:
    return caller.wait(caller.put_call([f"new-{caller.request_id()}"], {"a": [size]}))


def admitted(effects: list[Effect]) -> list[int]:
    assert all(isinstance(effect, Admitted) for effect in effects)
    return [effect.ticket for effect in effects]


def test_the_deadline_of_a_put_is_told_with_the_room_there_is(full: Caller) -> None:
    full.put(full.put_call(["s4"], {"a": [0]}))
    first = waits(full, 100)
    waits(full, 101)
    refusal = full.apply(GiveUpWrite(first))
    assert refusal.reason is Reason.NO_SPACE
    for words in ("holds 100 bytes", "64 bytes of the memory budget of 256 bytes", "1 other puts wait"):
        assert words in refusal.message
    numbers = {"size_bytes": "100", "free_bytes": "64", "memory_budget_bytes": "256"}
    assert refusal.metadata == {**numbers, "cause": "consumer_gone"}
    full.plane.take_effects()


def test_a_small_put_does_not_wait_behind_a_large_one_for_which_there_is_no_space(full: Caller) -> None:
    full.put(full.put_call(["s4"], {"a": [0]}))
    large = waits(full, 128)
    full.apply(full.put_call(["small"], {"a": [16]}))  # there is space for it, so it gets a reservation
    behind = waits(full, 129)
    full.clear(["s3"])
    assert admitted(full.plane.take_effects()) == []
    full.clear(["s2"])
    assert admitted(full.plane.take_effects()) == [large]
    full.clear(["s1"])
    assert admitted(full.plane.take_effects()) == []
    full.apply(GiveUpWrite(behind))


def test_small_puts_that_are_served_together_pass_a_large_one_by_no_more_than_it_asks_for(full: Caller) -> None:
    large, first, second, third = (waits(full, size) for size in (128, 64, 64, 64))
    full.clear(["s1"])
    assert admitted(full.plane.take_effects()) == [first]
    full.clear(["s2", "s4"])  # there is space for both, apart from each other
    assert admitted(full.plane.take_effects()) == [second]
    full.clear(["s3"])
    assert admitted(full.plane.take_effects()) == [large]
    full.apply(AbortWrite(first))
    assert admitted(full.plane.take_effects()) == [third]


def test_a_commit_that_fits_goes_on_though_as_many_wait_as_may(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=256, max_waiting_puts=1)
    caller.register()
    caller.put_rows(["s1", "s2"], "a", size=64)
    large, small = (caller.take("a").claim_id for _ in range(2))
    waiting = caller.wait(caller.commit_call(large, {"b": [200]}))
    caller.finish(caller.begin(caller.commit_call(small, {"b": [8]})).ticket)
    caller.apply(GiveUpWrite(waiting))


@pytest.mark.parametrize("size", [1, 16, 64])
def test_no_stream_of_small_puts_starves_a_large_one(full: Caller, size: int) -> None:
    """There are 64 bytes for small ones. Each is cleared at once, and they never make room for the large one."""
    full.clear(["s1"])
    large, passed = waits(full, 128), 0
    for number in range(1000):
        outcome = full.apply(full.put_call([f"small-{number}"], {"a": [size]}))
        if isinstance(outcome, Waiting):
            break
        assert isinstance(outcome, Reservation)
        full.finish(outcome.ticket)
        full.clear([f"small-{number}"])
        assert admitted(full.plane.take_effects()) == []
        passed += size
    assert isinstance(outcome, Waiting)
    assert passed == 128
    full.clear(["s2"])
    assert admitted(full.plane.take_effects()) == [large]
    full.clear(["s3"])
    assert admitted(full.plane.take_effects()) == [outcome.ticket]
