"""A connection to the coordinator's relay port, which carries the frames of one connection of a client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol, cast

from dataplane_server.cluster.node.frame_buffer import FrameBuffer
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import HEAD, MAX_BODY_BYTES

_CONNECT_S = 2.0


@dataclass(frozen=True, slots=True)
class Relay:
    """Where the coordinator relays frames, and what it knows this node by."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    node: int


class Client(Protocol):
    """The client's side of the relay."""

    def answered(self, frame: bytes) -> None:
        """The coordinator's next response, with its head."""

    def upstream_lost(self) -> None:
        """The coordinator has closed the connection, or it broke."""

    def upstream_full(self, *, full: bool) -> None:
        """Whether the coordinator reads slower than requests come."""


class Upstream(asyncio.Protocol):
    """Begins with RELAY, whose response is the first that the client side gets. Then it carries whole frames."""

    def __init__(self, client: Client) -> None:
        self._client: Client | None = client  # None once the client side has left
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, relay: Relay, client: Client, *, attaches: bool) -> Upstream:
        """Raises OSError or asyncio.TimeoutError if the coordinator cannot be reached within 2 s."""
        upstream = cls(client)
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.create_connection(lambda: upstream, relay.host, relay.port), _CONNECT_S)
        request = pb.RelayRequest(secret=relay.secret, node=relay.node, attaches=attaches)
        upstream.send(frame_of(pb.LOCAL_METHOD_RELAY, request.SerializeToString()))
        return upstream

    def send(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def end(self) -> None:
        """Tell the coordinator that the client is gone, and close."""
        self.send(frame_of(pb.LOCAL_METHOD_CLIENT_GONE, b""))
        self._leave().close()

    def abandon(self) -> None:
        """Close without a word: the client may live on."""
        self._leave().abort()

    def _leave(self) -> asyncio.Transport:
        self._client = None
        return cast("asyncio.Transport", self._transport)

    def pause(self) -> None:
        """Read no more responses for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # a socket's, so it can be written to

    def connection_lost(self, error: Exception | None) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.upstream_lost()

    def data_received(self, data: bytes) -> None:
        self._frames.add(data)
        try:
            while self._client is not None and (frame := self._frames.take(MAX_BODY_BYTES)) is not None:
                self._client.answered(frame)
        except ValueError:  # this is no coordinator
            cast("asyncio.Transport", self._transport).abort()

    def pause_writing(self) -> None:
        if self._client is not None:
            self._client.upstream_full(full=True)

    def resume_writing(self) -> None:
        if self._client is not None:
            self._client.upstream_full(full=False)


def frame_of(number: int, body: bytes) -> bytes:
    """A frame. number: LocalMethod or LocalOutcome."""
    return HEAD.pack(len(body), number) + body
