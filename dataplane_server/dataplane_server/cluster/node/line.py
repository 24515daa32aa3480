"""The line of a node's actor to the coordinator: it says which clients are attached, what they let go, who is gone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol, cast

from google.protobuf.message import Message

from rl_dataplane.byte_streams import prepare_line
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import HEAD, frame_of

_CONNECT_S = 2.0
_MOST_BYTES = 1024
"""Of a response: it is short, or a refusal."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Where the coordinator takes calls, and what it knows this node by."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    node: int


class Owner(Protocol):
    """Hears of the state of a line."""

    def line_lost(self, line: NodeLine) -> None:
        """The coordinator has closed it, or it broke."""

    def line_full(self, *, full: bool) -> None:
        """Whether the coordinator reads slower than this node writes."""


class NodeLine(asyncio.Protocol):
    """An open line; `open` makes one. traces: whether requests of clients may carry a trace context."""

    traces = False

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, membership: Membership, owner: Owner) -> NodeLine:
        """Raises OSError or asyncio.TimeoutError if the coordinator does not take this node's line within 2 s."""
        line = cls(owner)
        try:
            await asyncio.wait_for(line._connect(membership), _CONNECT_S)
        except BaseException:
            line.close()
            raise
        return line

    async def _connect(self, to: Membership) -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, to.host, to.port)
        prepare_line(transport.get_extra_info("socket"))
        self.send(pb.LOCAL_METHOD_RELAY, pb.RelayRequest(secret=to.secret, node=to.node))
        await self._greeted

    def send(self, method: int, message: Message) -> None:
        """Say something, if the line is open."""
        if self._transport is not None:
            self._transport.write(frame_of(method, message.SerializeToString()))

    def close(self) -> None:
        """Close at once. The owner hears nothing of it."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # a socket's, so it can be written to

    def connection_lost(self, error: Exception | None) -> None:
        was_open, self._transport = self._transport is not None, None
        if not self._greeted.done():
            self._greeted.set_exception(ConnectionResetError("the coordinator closed the line"))
        elif was_open:
            self._owner.line_lost(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._greeted.done() or len(self._received) > _MOST_BYTES:
            cast("asyncio.Transport", self._transport).abort()  # nothing is said on a line but its first response
        elif len(self._received) >= HEAD.size:
            size, outcome = HEAD.unpack_from(self._received)
            if len(self._received) == HEAD.size + size:
                self._greet(outcome, self._received[HEAD.size :])

    def _greet(self, outcome: int, body: bytes) -> None:
        if outcome == pb.LOCAL_OUTCOME_UNSPECIFIED:
            self.traces = pb.RelayResponse.FromString(body).traces
            self._greeted.set_result(None)
        else:  # a coordinator that does not know this node any more
            self._greeted.set_exception(ConnectionRefusedError("the coordinator refuses the line"))

    def pause_writing(self) -> None:
        self._owner.line_full(full=True)

    def resume_writing(self) -> None:
        self._owner.line_full(full=False)
