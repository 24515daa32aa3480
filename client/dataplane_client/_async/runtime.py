"""What differs between the asynchronous client and its blocking twin beyond the words async and await."""

from __future__ import annotations

import asyncio

import grpc

from dataplane_client._channel import CHANNEL_OPTIONS, checked_target

CALL_ENDED = (grpc.RpcError, asyncio.CancelledError)
"""What a call that fails raises. grpc.aio cancels whoever waits for a call when the channel is closed."""


def open_channel(target: str) -> grpc.aio.Channel:
    """A channel without encryption; nothing is sent before the first call."""
    return grpc.aio.insecure_channel(checked_target(target), options=CHANNEL_OPTIONS)


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)
