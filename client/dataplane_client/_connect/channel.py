"""How channels are opened: addresses and settings."""

from __future__ import annotations

import os
from typing import Any

import grpc

from dataplane_client._connect.options import Credentials
from dataplane_client._connect.secured import Secured
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from rl_dataplane.v1.data_plane_pb2_grpc import DataPlaneServiceStub
from rl_dataplane.v1.frames import keep_message_memory

_MAX_MESSAGE_BYTES = 20 << 20
_MAX_PORT = 65_535
RAY_SCHEME = "ray://"

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),  # finds within half a minute that a host has vanished
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # of the ping itself: half-open is found in 30 s, not 90
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
    """The address in gRPC's form, or ray://NAME. Raises InvalidArgumentError (a ValueError) for anything else."""
    if not isinstance(target, str):
        raise UnsupportedTypeError(
            f"a server's address is a str, unix:///path, host:port or ray://NAME; got {type(target).__name__}"
        )
    if not target.startswith(RAY_SCHEME):
        return grpc_target(target)
    name = target.removeprefix(RAY_SCHEME)
    if not name or "/" in name or ":" in name:
        raise InvalidArgumentError(
            f"{target!r} is not an address: write ray://NAME with the name of the data plane in this Ray cluster"
        )
    return target


def grpc_target(target: str) -> str:
    """The address in gRPC's form. Raises InvalidArgumentError (a ValueError) unless it is unix:///path or host:port."""
    if target.startswith(RAY_SCHEME):
        raise InvalidArgumentError(
            f"{target!r} is an address for connect() in a Ray process: write the coordinator's gRPC address, host:port"
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


def open_channel(target: str, secured: Secured) -> grpc.Channel:
    """A channel, which connects with the first call. Raises ValueError for a malformed address."""
    channel: grpc.Channel = _opened(grpc, target, secured)
    return channel


def open_aio_channel(target: str, secured: Secured) -> grpc.aio.Channel:
    """The same for asyncio."""
    channel: grpc.aio.Channel = _opened(grpc.aio, target, secured)
    return channel


def _opened(kind: Any, target: str, secured: Secured) -> Any:
    keep_message_memory()
    options, credentials = CHANNEL_OPTIONS + secured.channel_options, secured.channel_credentials()
    if credentials is None:
        return kind.insecure_channel(grpc_target(target), options)
    return kind.secure_channel(grpc_target(target), credentials, options)


class Connection:
    """A channel, and a stub whose calls bring what lets them in (`secured`). Raises what `open_channel` raises."""

    def __init__(self, target: str, credentials: Credentials | None) -> None:
        self.target = target
        self.secured = Secured(target, credentials)
        self._channel = open_channel(target, self.secured)
        self.stub: Any = _AuthorizedStub(DataPlaneServiceStub(self._channel), self.secured)

    def close(self) -> None:
        self._channel.close()


class _AuthorizedStub:
    def __init__(self, stub: object, secured: Secured) -> None:
        self._stub = stub
        self._secured = secured

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._stub, verb)
        return lambda request, timeout=None: call(request, timeout=timeout, metadata=self._secured.metadata())
