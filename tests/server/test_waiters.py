"""Coroutines that wait for tickets: woken once, by an answer, a failure, their deadline, or their caller's end."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from dataplane_server.core.calls.answers import Admitted, Failed, Grant, Granted, Reservation
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.waiters import Waiters

GRANT = Grant("c", ("a",), np.array([1]), ({},))
RESERVATION = Reservation(7, (), 0)
LATE = Refusal(Reason.CLAIM_TIMEOUT, "too late")


async def waiting(waiters: Waiters, timeout_s: float = 20.0) -> asyncio.Task[Grant]:
    """A task that waits with ticket 7."""
    waiters.expect(7)
    task = asyncio.create_task(waiters.wait(7, Grant, timeout_s, lambda ticket: LATE))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize(("kind", "effect", "answer"), [(Grant, Granted, GRANT), (Reservation, Admitted, RESERVATION)])
async def test_a_waiter_gets_the_answer_of_its_ticket(kind: Any, effect: Any, answer: object) -> None:
    waiters = Waiters()
    waiters.expect(7)
    task = asyncio.create_task(waiters.wait(7, kind, 20.0, lambda ticket: LATE))
    await asyncio.sleep(0)
    waiters.wake(effect(6, answer))
    waiters.wake(effect(7, answer))
    assert await task is answer


async def test_a_failure_is_raised_where_it_is_awaited() -> None:
    waiters = Waiters()
    task = await waiting(waiters)
    waiters.wake(Failed(7, LATE))
    with pytest.raises(Refusal, match="too late"):
        await task


async def test_at_its_deadline_a_waiter_gives_up_with_what_the_core_says() -> None:
    waiters = Waiters()
    waiters.expect(7)
    with pytest.raises(Refusal, match="too late"):
        await waiters.wait(7, Grant, 0.0, lambda ticket: LATE)


async def test_an_answer_goes_before_a_later_deadline_and_a_second_answer_is_ignored() -> None:
    waiters = Waiters()
    task = await waiting(waiters, 0.5)
    waiters.wake(Granted(7, GRANT))
    waiters.wake(Failed(7, LATE))
    assert await task is GRANT
    await asyncio.sleep(0.6)


async def test_effects_for_nobody_are_ignored() -> None:
    waiters = Waiters()
    for effect in (Granted(1, GRANT), Failed(2, LATE), Admitted(3, RESERVATION)):
        waiters.wake(effect)


async def test_a_cancelled_waiter_frees_its_ticket() -> None:
    waiters = Waiters()
    task = await waiting(waiters)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    waiters.wake(Granted(7, GRANT))
    again = await waiting(waiters)
    waiters.wake(Granted(7, GRANT))
    assert await again is GRANT


async def test_an_answer_of_the_wrong_kind_is_a_defect() -> None:
    waiters = Waiters()
    task = await waiting(waiters)
    waiters.wake(Admitted(7, RESERVATION))
    with pytest.raises(TypeError, match="ticket 7 was answered with Reservation, not Grant"):
        await task
