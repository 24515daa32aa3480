"""A server's direct port: where it is, and the bytes of values that pass there between frames."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dataplane_client._connect.locator import NotSharedError, Place
from dataplane_client._memory.placement import ReadBuffers
from dataplane_client._values.columns_layout import WireColumn
from rl_dataplane.byte_streams import prepare_line, receive_pieces, send_pieces
from rl_dataplane.v1 import data_plane_pb2 as plane_pb

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class DirectAddress:
    """Where a port is. nonce: as the server told it over gRPC."""

    host: str
    port: int
    nonce: bytes

    @classmethod
    def of(cls, place: Place, status: plane_pb.GetServerStatusResponse) -> DirectAddress:
        """The port of the server with this status. Raises NotSharedError if there is none, or its host is unknown."""
        if not status.HasField("direct_port"):
            raise NotSharedError("the server does not open one (--direct)")
        if place.grpc_target.startswith("unix:"):
            raise NotSharedError("it is at a TCP address; connect to host:port")
        host = place.grpc_target.rpartition(":")[0].strip("[]")
        return cls(host, status.direct_port.port, status.direct_port.nonce)


def opened(address: tuple[str, int], timeout_s: float, within_s: int) -> socket.socket:
    """A connection to a host and port, which notices within some seconds that the host is gone. Blocks for timeout_s
    seconds, whose rest the addresses of the host that are left share; raises OSError.
    """
    until, failure = time.monotonic() + timeout_s, OSError()
    places = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, place) in enumerate(places):
        line = None
        try:
            line = socket.socket(family, kind, protocol)
            line.settimeout(max((until - time.monotonic()) / (len(places) - number), 1e-3))
            line.connect(place)
            prepare_line(line, within_s)
            return line
        except OSError as error:
            failure = error
            if line is not None:
                line.close()
    raise failure


def send_values(columns: Sequence[WireColumn], line: socket.socket, until: float) -> None:
    """Send the values of all columns. Blocks; raises OSError."""
    send_pieces(line, (piece for column in columns for piece in column.pieces()), until)


def receive_values(rest: bytes, buffers: ReadBuffers, line: socket.socket, until: float) -> None:
    """Fill the buffers of a read. rest: the first bytes, which have come already. Blocks; raises OSError, EOFError, and
    CorruptedError.
    """
    stream, size_bytes = buffers.stream(), buffers.size_bytes
    chunk = np.empty(max(min(size_bytes, _CHUNK_BYTES), len(rest)), np.uint8).data
    chunk[: len(rest)], filled = rest, len(rest)
    for position in range(0, size_bytes, len(chunk)):
        part = chunk[: min(len(chunk), size_bytes - position)]
        receive_pieces(line, [part[filled:]], until)
        stream.add(position, part)
        filled = 0
    stream.finish()
