"""What differs between the asynchronous client and its blocking twin beyond the words async and await."""

from __future__ import annotations

import time

import grpc

from dataplane_client._channel import CHANNEL_OPTIONS, checked_target

CALL_ENDED = (grpc.RpcError, ValueError)
"""What a call that fails raises. grpc says ValueError when another thread has closed the channel."""


def open_channel(target: str) -> grpc.Channel:
    """A channel without encryption; nothing is sent before the first call."""
    return grpc.insecure_channel(checked_target(target), options=CHANNEL_OPTIONS)


def sleep(seconds: float) -> None:
    time.sleep(seconds)
