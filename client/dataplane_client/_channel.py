"""How channels are opened: addresses and settings."""

from __future__ import annotations

import grpc

from rl_dataplane.v1.frames import keep_message_memory

_MAX_MESSAGE_BYTES = 20 << 20

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


def checked_target(target: str) -> str:
    """The address in gRPC's form. Raises ValueError unless it is unix:///path or host:port."""
    if target.startswith("unix:"):
        path = target.removeprefix("unix:").removeprefix("//")
        if path.startswith("/"):
            return f"unix://{path}"
    else:
        host, separator, port = target.rpartition(":")
        if host and separator and port.isdigit() and "/" not in target:
            return target
    raise ValueError(f"{target!r} is not an address: write unix:///path or host:port")


def open_channel(target: str) -> grpc.Channel:
    """A channel without encryption; it connects with the first call. Raises ValueError for a malformed address."""
    keep_message_memory()
    return grpc.insecure_channel(checked_target(target), options=CHANNEL_OPTIONS)


def open_aio_channel(target: str) -> grpc.aio.Channel:
    """The same for asyncio."""
    keep_message_memory()
    return grpc.aio.insecure_channel(checked_target(target), options=CHANNEL_OPTIONS)
