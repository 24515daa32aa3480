"""Room for puts: never more than the budget, first come first served, given when rows are cleared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Admitted, CommitResult, Effect, PutResult, Reservation, Waiting
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import AbortWrite, DropPartition, GiveUpWrite, PutSamples


@pytest.fixture
def full(new_caller: Callable[..., Caller]) -> Caller:
    """A data plane of 256 bytes, all in use by rows s1 to s4, 64 bytes each."""
    caller: Caller = new_caller(memory_bytes=256)
    caller.register()
    caller.put_rows(["s1", "s2", "s3", "s4"], "a", size=64)
    return caller


def waits(caller: Caller, size: int) -> int:
    waiting = caller.apply(put_of(caller, size))
    assert isinstance(waiting, Waiting)
    return waiting.ticket


def put_of(caller: Caller, size: int) -> PutSamples:
    request_id = caller.request_id()
    return caller.put_call([f"new-{request_id}"], {"a": [size]})


def admitted(effects: list[Effect]) -> list[int]:
    assert all(isinstance(effect, Admitted) for effect in effects)
    return [effect.ticket for effect in effects]


def test_a_put_that_waits_is_admitted_when_rows_are_cleared(full: Caller) -> None:
    ticket = waits(full, 100)
    full.clear(["s1"])
    assert full.plane.take_effects() == []
    full.clear(["s2"])
    (effect,) = full.plane.take_effects()
    assert isinstance(effect, Admitted)
    assert effect.ticket == effect.reservation.ticket == ticket
    assert effect.reservation.size_bytes == 100
    assert full.finish(ticket) == PutResult(1, 100)


def test_puts_are_admitted_in_the_order_in_which_they_came(full: Caller) -> None:
    tickets = [waits(full, size) for size in (64, 32, 64)]
    full.clear()
    assert admitted(full.plane.take_effects()) == tickets


def test_a_small_put_does_not_overtake_a_large_one(full: Caller) -> None:
    large, small = waits(full, 190), waits(full, 1)
    full.clear(["s1", "s2"])
    assert full.plane.take_effects() == []
    assert isinstance(full.apply(put_of(full, 1)), Waiting)
    full.clear(["s3", "s4"])
    assert admitted(full.plane.take_effects())[:2] == [large, small]


def test_a_put_without_bytes_waits_for_nobody(full: Caller) -> None:
    waits(full, 64)
    assert full.put(full.put_call(["s1"], tags=[{"k": 1}])) == PutResult(0, 0)
    assert full.put(full.put_call(["s9"], {"a": [0]})) == PutResult(1, 0)


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(lambda caller, ticket: caller.apply(GiveUpWrite(ticket)), id="gave up"),
        pytest.param(lambda caller, ticket: caller.apply(AbortWrite(ticket)), id="was aborted"),
    ],
)
def test_those_behind_a_put_that_left_the_line_are_served(full: Caller, leave: Callable[[Caller, int], None]) -> None:
    full.clear(["s1"])
    head, second, third = waits(full, 200), waits(full, 30), waits(full, 65)
    leave(full, head)
    assert admitted(full.plane.take_effects()) == [second]
    assert full.plane.totals().waiting_puts == 1
    leave(full, third)
    assert full.plane.totals().waiting_puts == 0


@pytest.mark.parametrize(
    "free",
    [
        pytest.param(lambda caller: caller.clear(["s1"]), id="clear"),
        pytest.param(lambda caller: caller.apply(DropPartition(caller.request_id(), "p")), id="drop"),
        pytest.param(lambda caller: caller.put(caller.put_call(["s1"], {"a": [0]})), id="overwrite"),
    ],
)
def test_whatever_frees_bytes_admits_who_waits(full: Caller, free: Callable[[Caller], object]) -> None:
    full.register(partition_id="q")
    waiting = full.apply(full.put_call(["x"], {"a": [64]}, partition_id="q"))
    assert isinstance(waiting, Waiting)
    free(full)
    assert admitted(full.plane.take_effects()) == [waiting.ticket]


def commit_waits(caller: Caller, size: int) -> int:
    """A commit with so many bytes for the next row."""
    waiting = caller.apply(caller.commit_call(caller.take("a").claim_id, {"b": [size]}))
    assert isinstance(waiting, Waiting)
    return waiting.ticket


def write_back_waits(caller: Caller, size: int) -> int:
    """A put of so many bytes to the next row, in the name of a claim that holds it."""
    grant = caller.take("a")
    waiting = caller.apply(caller.put_call(grant.sample_ids, {"b": [size]}, claim_id=grant.claim_id))
    assert isinstance(waiting, Waiting)
    return waiting.ticket


CLAIMED = [pytest.param(commit_waits, id="commit"), pytest.param(write_back_waits, id="write-back")]


@pytest.mark.parametrize("wait", CLAIMED)
def test_a_write_in_the_name_of_a_claim_goes_ahead_of_all_puts_that_wait(
    full: Caller, wait: Callable[[Caller, int], int]
) -> None:
    puts = [waits(full, 64), waits(full, 1)]
    claimed = wait(full, 64)
    full.clear(["s4"])
    assert admitted(full.plane.take_effects()) == [claimed]
    full.clear(["s3"])
    assert admitted(full.plane.take_effects()) == puts[:1]


@pytest.mark.parametrize("wait", CLAIMED)
def test_a_put_does_not_overtake_a_write_in_the_name_of_a_claim_that_is_too_large_yet(
    full: Caller, wait: Callable[[Caller, int], int]
) -> None:
    claimed = wait(full, 128)
    full.clear(["s4"])
    put = waits(full, 1)
    assert full.plane.take_effects() == []
    full.clear(["s3"])
    assert admitted(full.plane.take_effects()) == [claimed]
    full.apply(AbortWrite(claimed))
    assert admitted(full.plane.take_effects()) == [put]


def test_a_write_in_the_name_of_a_claim_passes_puts_that_wait_when_there_is_room_for_it(full: Caller) -> None:
    claim_id = full.take("a").claim_id
    full.clear(["s4"])
    put = waits(full, 100)
    reservation = full.apply(full.commit_call(claim_id, {"b": [20]}))
    assert isinstance(reservation, Reservation)
    assert full.finish(reservation.ticket) == CommitResult(1)
    full.clear(["s2", "s3"])
    assert admitted(full.plane.take_effects()) == [put]


def test_as_many_writes_in_the_name_of_claims_may_wait_as_puts(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=64, max_waiting_puts=2)
    caller.register()
    caller.put_rows([f"s{i}" for i in range(8)], "a", size=8)
    tickets = [waits(caller, 1), waits(caller, 1), commit_waits(caller, 1), write_back_waits(caller, 1)]
    with caller.refuses(Reason.LIMIT_REACHED, "2 puts"):
        caller.apply(put_of(caller, 1))
    commit = caller.commit_call(caller.take("a").claim_id, {"b": [1]})
    with caller.refuses(Reason.LIMIT_REACHED, "2 puts"):
        caller.apply(commit)
    assert caller.plane.totals().waiting_puts == 4
    refusal = caller.apply(GiveUpWrite(tickets[3]))
    assert "holds 1 bytes" in refusal.message
    assert "3 other puts wait" in refusal.message


def test_the_deadline_of_a_put_is_told_with_the_room_there_is(full: Caller) -> None:
    full.put(full.put_call(["s4"], {"a": [0]}))
    first = waits(full, 100)
    waits(full, 1)
    refusal = full.apply(GiveUpWrite(first))
    assert refusal.reason is Reason.NO_SPACE
    for words in ("holds 100 bytes", "64 bytes of the memory budget of 256 bytes", "1 other puts wait"):
        assert words in refusal.message
    numbers = {"size_bytes": "100", "free_bytes": "64", "memory_budget_bytes": "256"}
    assert refusal.metadata == {**numbers, "cause": "consumer_gone"}
    full.plane.take_effects()
