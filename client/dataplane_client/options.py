"""The settings of a client."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass, fields
from typing import Literal, get_args

Transport = Literal["auto", "shm", "grpc"]

_MAX_CHUNK_BYTES = 16 << 20
_MAX_NAME_BYTES = 256


@dataclass(frozen=True)
class ClientOptions:
    """Settings of one client; times in seconds, sizes in bytes.

    transport: how values travel. "auto": through memory if the server shares it with this host, otherwise over gRPC;
        "shm": through memory, or PreconditionError; "grpc": over gRPC.
    timeout_s: the deadline of a call that names none.
    connect_timeout_s: how long `connect` waits for the server.
    chunk_bytes: size of the chunks in which values are sent; 1 to 4 MiB is best, servers accept at most 16 MiB.
    first_backoff_s, max_backoff_s: pauses between attempts while the server cannot be reached. Each is twice the one
        before, reduced by a random part of up to a half, so that clients do not return all at once.
    session_grace_s: after how long without a heartbeat from this process (it was killed or stopped, or cannot reach the
        server) its session expires and the rows that it has claimed go to other clients; 0.1 s to 1 h. Heartbeats are
        sent at least three times as often.
    client_name: the name of this client in the history of samples; at most 256 bytes, "" for host:pid.
    """

    transport: Transport = "auto"
    timeout_s: float = 60.0
    connect_timeout_s: float = 30.0
    chunk_bytes: int = 2 << 20
    first_backoff_s: float = 0.02
    max_backoff_s: float = 1.0
    session_grace_s: float = 10.0
    client_name: str = ""

    def __post_init__(self) -> None:
        if self.transport not in get_args(Transport):
            raise ValueError(f"transport must be one of {get_args(Transport)}, got {self.transport!r}")
        if len(self.client_name.encode()) > _MAX_NAME_BYTES:
            raise ValueError(f"client_name must have at most {_MAX_NAME_BYTES} bytes, got {self.client_name!r}")
        for setting in fields(self):
            if setting.name in ("transport", "client_name"):
                continue
            value = getattr(self, setting.name)
            if not 0 < value < math.inf:
                raise ValueError(f"{setting.name} must be positive and finite, got {value!r}")
            if setting.name == "chunk_bytes" and not (isinstance(value, int) and value <= _MAX_CHUNK_BYTES):
                raise ValueError(f"chunk_bytes must be an int of at most {_MAX_CHUNK_BYTES}, got {value!r}")

    @property
    def caller(self) -> str:
        """The name by which the server knows this process."""
        return self.client_name or f"{socket.gethostname()}:{os.getpid()}"
