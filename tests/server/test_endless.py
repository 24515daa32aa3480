"""Calls without an end of their own: they end for a reason, once, when the server says so."""

from __future__ import annotations

import asyncio

import pytest

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.endless import EndlessCalls

TAKEN_OVER = Refusal(Reason.SUPERSEDED, "another stream took this one's place")


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
