"""Calls without an end of their own: they end for a reason, once, when the server says so."""

from __future__ import annotations

import asyncio

import pytest

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.endless import EndlessCalls

DRAINING = Refusal(Reason.DRAINING, "the server is shutting down")
TAKEN_OVER = Refusal(Reason.SUPERSEDED, "another stream took this one's place")


async def begun(calls: EndlessCalls) -> asyncio.Task[object]:
    """A call that waits for ever."""

    async def call() -> None:
        with calls.running():
            await asyncio.get_running_loop().create_future()

    task: asyncio.Task[object] = asyncio.create_task(call())
    await asyncio.sleep(0)
    return task


async def test_a_call_ends_with_the_first_reason_that_it_is_given_and_others_go_on() -> None:
    calls = EndlessCalls()
    task, other = await begun(calls), await begun(calls)
    calls.end(task, TAKEN_OVER)
    calls.end(task, DRAINING)
    with pytest.raises(Refusal) as caught:
        await task
    assert caught.value is TAKEN_OVER
    assert not other.done()
    other.cancel()


async def test_a_call_ends_after_the_message_that_it_sends_and_not_within() -> None:
    calls, sent, told = EndlessCalls(), asyncio.Event(), []

    async def call() -> None:
        with calls.running():
            await calls.write(sent.wait())
            told.append("went on")

    task: asyncio.Task[object] = asyncio.create_task(call())
    await asyncio.sleep(0)
    calls.end(task, TAKEN_OVER)
    await asyncio.sleep(0)
    assert not task.done()
    sent.set()
    with pytest.raises(Refusal) as caught:
        await task
    assert caught.value is TAKEN_OVER
    assert not told


async def test_a_caller_that_goes_away_does_not_wait_for_its_message() -> None:
    calls = EndlessCalls()

    async def call() -> None:
        with calls.running():
            await calls.write(asyncio.get_running_loop().create_future())

    task: asyncio.Task[object] = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
