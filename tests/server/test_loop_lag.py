"""How late the event loop is: a stall counts for each wake-up that was due in it."""

from __future__ import annotations

import asyncio
import time

from dataplane_server.observe.loop_lag import LoopLag


async def test_a_stall_is_reported_for_each_wake_up_that_it_held_up() -> None:
    late: list[float] = []
    lag = LoopLag(late.append)
    lag.start()
    time.sleep(0.6)  # noqa: ASYNC251  # the stall: two wake-ups were due in it
    await asyncio.sleep(0.1)
    lag.stop()
    assert late[0] > 0.3
    assert len(late) >= 2
