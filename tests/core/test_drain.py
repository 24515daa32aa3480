"""A server that shuts down lets nobody wait, and serves what needs no waiting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Failed, PutResult, Reservation, Waiting
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import Drain


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    """A data plane of 128 bytes, half of them in row s1."""
    one: Caller = new_caller(memory_bytes=128)
    one.register()
    one.put_rows(["s1"], "a", size=64)
    return one


def failures(caller: Caller) -> list[int]:
    effects = caller.plane.take_effects()
    for effect in effects:
        assert isinstance(effect, Failed)
        assert effect.refusal.reason is Reason.DRAINING
    return [effect.ticket for effect in effects]


def test_every_claim_that_waits_ends_and_takes_no_row(caller: Caller) -> None:
    waiting = [caller.apply(caller.claim_call("a", batch_size=size)) for size in (2, 1, 1)]
    tickets = [one.ticket for one in waiting if isinstance(one, Waiting)]
    caller.apply(Drain())
    assert failures(caller) == tickets
    assert caller.plane.partition_info("p").tasks[0].untaken_rows == 1
    assert caller.plane.totals().open_claims == 0


def test_every_put_that_waits_ends_and_takes_no_room(caller: Caller) -> None:
    waiting = [caller.apply(caller.put_call([f"x{size}"], {"a": [size]})) for size in (100, 10, 20)]
    tickets = [one.ticket for one in waiting if isinstance(one, Waiting)]
    caller.apply(Drain())
    assert failures(caller) == tickets
    assert caller.used == 64
    assert caller.plane.totals().waiting_puts == 0


def test_what_need_not_wait_is_served(caller: Caller) -> None:
    reservation = caller.apply(caller.put_call(["s2"], {"a": [10]}))
    assert isinstance(reservation, Reservation)
    caller.apply(Drain())
    assert caller.finish(reservation.ticket) == PutResult(1, 10)
    assert caller.put(caller.put_call(["s3"], tags=[{"k": 1}])).created_rows == 1
    assert caller.commit(caller.take("a").claim_id).consumed_rows == 1
    assert caller.clear().cleared_rows == 3
