"""Calls of other actors, with a deadline and errors in our words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dataplane_server.core.calls.refusal import Reason, Refusal

ANSWER_S = 30.0
_LOOK_S = 0.5


class NoAnswer(Refusal):
    """Ray does not know what became of a call: the actor may still do what it was asked for."""


async def answer_of(call: Awaitable[Any], node: int, within_s: float | None = ANSWER_S) -> Any:
    """What a node's actor answers. Refusal NODE_LOST if it raises, NoAnswer if no answer comes, in time. within_s: None
    for any time.
    """
    from ray.exceptions import RayError, RayTaskError

    try:
        return await asyncio.wait_for(call, within_s)
    except asyncio.TimeoutError:
        raise NoAnswer(Reason.NODE_LOST, f"node {node} did not answer in {within_s} s", node=node) from None
    except RayError as error:
        kind, why = Refusal if isinstance(error, RayTaskError) else NoAnswer, last_line(error)
        raise kind(Reason.NODE_LOST, f"node {node} does not answer: {why}", node=node) from None


async def answer_while(holds: Callable[[], bool], call: Awaitable[Any], node: int) -> Any:
    """What a node's actor answers, however long it takes, as long as something holds. Refusal NODE_LOST."""
    answer: asyncio.Future[Any] = asyncio.ensure_future(answer_of(call, node, None))
    while not answer.done() and holds():
        await asyncio.wait({answer}, timeout=_LOOK_S)
    if not answer.done():
        answer.cancel()
        raise Refusal(Reason.NODE_LOST, f"node {node} does not answer", node=node)
    return answer.result()


def last_line(error: Exception) -> str:
    """What an actor raised, without Ray's trace."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
