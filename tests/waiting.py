"""Waits for what another thread, task or process is about to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_ENOUGH_S = 200.0
"""For a busy machine."""


def eventually(holds: Callable[[], T]) -> T:
    """Wait until something holds, and return it. AssertionError if it never does."""
    deadline = time.monotonic() + _ENOUGH_S
    while not (found := holds()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.002)
    return found


async def soon(holds: Callable[[], object]) -> None:
    """Wait until something holds, while the other tasks of the event loop go on."""
    deadline = time.monotonic() + _ENOUGH_S
    while not holds():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.002)
