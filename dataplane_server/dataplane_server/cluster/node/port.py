"""The TCP port at which a node gives bytes to other nodes, of its arena or of a mirror; they ask by `byte_lines`.

It is a direct port whose only method is FETCH. The kernel copies from this arena to the network, and on the other node
from there into that arena. Ray's object store would copy them four times more. Bytes are not encrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dataplane_server.access.gate import OPEN_GATE
from dataplane_server.cluster.messages import BytePlace
from dataplane_server.cluster.node.arena_bytes import are_inside, runs_of
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Runs
from dataplane_server.service.grpc.value_streams import MAX_STREAMS, ValueStreams
from dataplane_server.service.local.direct_calls import DirectSession, Reading
from dataplane_server.service.local.direct_endpoint import DirectEndpoint
from dataplane_server.service.local.local_methods import LocalMethod
from dataplane_server.service.values import MAX_INLINE_BYTES
from dataplane_server.storage.arena import Arena, pieces
from rl_dataplane.v1 import local_pb2 as pb

_MOST_WAITING = 4096


class NodePort(DirectEndpoint):
    """`open`, later `close` once. arena_of: what is here of a node, by its number, or None."""

    def __init__(self, arena_of: Callable[[int], Arena | None]) -> None:
        fetch = LocalMethod("Fetch", pb.FetchRequest, self._fetch)
        super().__init__(None, None, None, {pb.LOCAL_METHOD_FETCH: fetch}, OPEN_GATE)
        self.sending = ValueStreams(MAX_STREAMS, _MOST_WAITING)  # all nodes may be on one machine
        self._arena_of = arena_of

    def open(self, host: str) -> BytePlace:
        """Listen at a port that the system chooses. OSError."""
        return BytePlace(host, self.listen(host, 0), self.nonce)

    def _fetch(self, request: pb.FetchRequest, session: DirectSession) -> pb.FetchResponse:
        arena, runs = self._arena_of(request.node), runs_of(request.runs)
        if arena is None:
            raise Refusal(Reason.NODE_LOST, f"this is not node {request.node}, or not yet", node=request.node)
        if not are_inside(arena, runs.offsets, runs.sizes):
            raise Refusal(Reason.INVALID_REQUEST, "a run is outside of the arena")
        if runs.sizes.sum() <= min(request.inline_bytes, MAX_INLINE_BYTES):
            return pb.FetchResponse(values=b"".join(pieces(arena, runs)))
        session.reading = Reading(runs, lambda some: _pieces(arena, some), lambda: None)
        return pb.FetchResponse()

    async def close(self, *, keep: bool = False) -> None:
        """Close the port and all connections. No thread uses an arena afterwards."""
        await self.drain(0.0)
        await super().close()


def _pieces(arena: Arena, runs: Runs) -> Sequence[memoryview]:
    try:
        return pieces(arena, runs)
    except ValueError:
        raise ConnectionError("the mirror was removed") from None
