"""What differs between the asynchronous client and its blocking twin beyond the words async and await."""

from __future__ import annotations

import time

import grpc

from dataplane_client._channel import CHANNEL_OPTIONS, checked_target


def open_channel(target: str) -> grpc.Channel:
    """A channel without encryption; nothing is sent before the first call."""
    return grpc.insecure_channel(checked_target(target), options=CHANNEL_OPTIONS)


def sleep(seconds: float) -> None:
    time.sleep(seconds)
