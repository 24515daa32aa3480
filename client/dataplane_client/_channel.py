"""How channels are opened: addresses and settings."""

from __future__ import annotations

import os

import grpc

from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from rl_dataplane.v1.frames import keep_message_memory

_MAX_MESSAGE_BYTES = 20 << 20
_MAX_PORT = 65_535

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),  # finds within half a minute that a host has vanished
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.http2.bdp_probe", 0),  # gRPC's own estimate buffers far more of a stream than is being copied
    ("grpc.http2.lookahead_bytes", 4 << 20),  # two chunks
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.enable_retries", 0),  # the client's own retries keep the request_id and know the deadline
    ("grpc.use_local_subchannel_pool", 1),  # each client of a process has a connection of its own
)


def target_or_default(target: str | None) -> str:
    """The address, or that in the environment variable DATAPLANE_SERVER."""
    found = target if target is not None else os.environ.get("DATAPLANE_SERVER")
    if not found and target is None:
        raise InvalidArgumentError(
            'connect: no address: pass one, such as connect("unix:///run/dataplane.sock"), or set the environment '
            "variable DATAPLANE_SERVER"
        )
    return found or ""


def checked_target(target: str) -> str:
    """The address in gRPC's form. Raises InvalidArgumentError (a ValueError) unless it is unix:///path or host:port."""
    if not isinstance(target, str):
        raise UnsupportedTypeError(
            f"a server's address is a str, unix:///path or host:port; got {type(target).__name__}"
        )
    if target.startswith("unix:"):
        path = target.removeprefix("unix:").removeprefix("//")
        if path.startswith("/"):
            return f"unix://{path}"
    else:
        host, separator, port = target.rpartition(":")
        if host and separator and port.isdecimal() and "/" not in target:
            if not 1 <= int(port) <= _MAX_PORT:
                raise InvalidArgumentError(f"{target!r} is not an address: a port is 1 to {_MAX_PORT}")
            return target
    raise InvalidArgumentError(f"{target!r} is not an address: write unix:///path or host:port")


def open_channel(target: str) -> grpc.Channel:
    """A channel without encryption; it connects with the first call. Raises ValueError for a malformed address."""
    keep_message_memory()
    return grpc.insecure_channel(checked_target(target), options=CHANNEL_OPTIONS)


def open_aio_channel(target: str) -> grpc.aio.Channel:
    """The same for asyncio."""
    keep_message_memory()
    return grpc.aio.insecure_channel(checked_target(target), options=CHANNEL_OPTIONS)
