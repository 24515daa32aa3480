"""Calls of other actors, with a deadline and errors in our words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from dataplane_server.core.calls.refusal import Reason, Refusal

A = TypeVar("A")

ANSWER_S = 30.0


async def answer_of(call: Awaitable[Any], node: int, within_s: float | None = ANSWER_S) -> Any:
    """What a node's actor answers. Refusal NODE_LOST if it does not, in time. within_s: None for any time."""
    from ray.exceptions import RayError

    try:
        return await asyncio.wait_for(awaited(call), within_s)
    except asyncio.TimeoutError:
        raise Refusal(Reason.NODE_LOST, f"node {node} did not answer in {within_s} s", node=node) from None
    except RayError as error:
        raise Refusal(Reason.NODE_LOST, f"node {node} does not answer: {last_line(error)}", node=node) from None


def last_line(error: Exception) -> str:
    """What an actor raised, without Ray's trace."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


async def awaited(reference: Awaitable[A]) -> A:
    """What an actor's method answers; Ray's references are no coroutines."""
    return await reference
