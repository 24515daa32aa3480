"""Waits for what another thread, task or process is about to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_ENOUGH_S = 200.0
"""For a busy machine."""


def eventually(holds: Callable[[], object]) -> None:
    """Wait until something holds. AssertionError if it never does."""
    deadline = time.monotonic() + _ENOUGH_S
    while not holds():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.002)


async def soon(holds: Callable[[], object]) -> None:
    """Wait until something holds, while the other tasks of the event loop go on."""
    deadline = time.monotonic() + _ENOUGH_S
    while not holds():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.002)
