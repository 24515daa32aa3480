"""Calls to a server: deadlines, retries, streams, errors. Messages go in and come out; no tensors.

Every call has a deadline. While the server cannot be reached (UNAVAILABLE) a call is repeated with growing pauses until
its deadline, always with the same request_id, so that the server applies it once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import grpc

from dataplane_client._async.runtime import CALL_ENDED, open_channel, sleep
from dataplane_client._deadline import ANSWER_MARGIN_S, Deadline, backoff_pauses
from dataplane_client._error_table import translated
from dataplane_client._layouts import ColumnAssembler
from dataplane_client.errors import ClosedError, InternalError, UnavailableError
from dataplane_client.options import ClientOptions
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc

Response = TypeVar("Response")


class AsyncTransport:
    """One channel to one server."""

    def __init__(self, target: str, options: ClientOptions) -> None:
        self.target = target
        self.options = options
        self.closed = False
        self._channel = open_channel(target)
        self._stub: Any = pb_grpc.DataPlaneServiceStub(self._channel)

    async def close(self) -> None:
        """Close the channel; calls under way end with an error. Closing twice is fine."""
        if not self.closed:
            self.closed = True
            await self._channel.close()

    async def unary(self, verb: str, request: object, timeout_s: float | None, *, waits: bool = False) -> Any:
        """Call a method with one request. waits: the request has a wait_timeout, which is set from the deadline."""

        async def attempt(left_s: float) -> Any:
            if waits:
                request.wait_timeout.FromNanoseconds(int(left_s * 1e9))  # type: ignore[attr-defined]
            margin_s = ANSWER_MARGIN_S if waits else 0.0
            return await getattr(self._stub, verb)(request, timeout=left_s + margin_s)

        return await self._attempts(verb, attempt, timeout_s)

    async def send(
        self, verb: str, header: object, frames: Callable[[], Iterator[object]], timeout_s: float | None
    ) -> Any:
        """Call a method that takes a stream; frames makes it anew for each attempt and begins with the header."""

        async def attempt(left_s: float) -> Any:
            header.wait_timeout.FromNanoseconds(int(left_s * 1e9))  # type: ignore[attr-defined]
            return await getattr(self._stub, verb)(frames(), timeout=left_s + ANSWER_MARGIN_S)

        return await self._attempts(verb, attempt, timeout_s)

    async def read(self, request: pb.ReadColumnsRequest, timeout_s: float | None) -> ColumnAssembler:
        """Read columns; the assembler is complete."""

        async def attempt(left_s: float) -> ColumnAssembler:
            assembler: ColumnAssembler | None = None
            async for frame in self._stub.ReadColumns(request, timeout=left_s):
                if assembler is None:
                    assembler = ColumnAssembler(frame.header, len(request.sample_ids))
                if frame.HasField("chunk"):
                    assembler.add(frame.chunk)
            if assembler is None:
                raise InternalError(f"ReadColumns at {self.target}: the stream had no frame")
            assembler.finish()
            return assembler

        return await self._attempts("ReadColumns", attempt, timeout_s)

    async def _attempts(
        self, verb: str, attempt: Callable[[float], Awaitable[Response]], timeout_s: float | None
    ) -> Response:
        deadline = Deadline(self.options.timeout_s if timeout_s is None else timeout_s)
        pauses = backoff_pauses(self.options)
        while True:
            self._check_open(verb)
            try:
                return await attempt(deadline.left_s)
            except CALL_ENDED as ended:
                self._check_open(verb)
                if not isinstance(ended, grpc.RpcError):
                    raise
                error = translated(ended, verb, self.target)
                pause_s = next(pauses)
                if not isinstance(error, UnavailableError) or deadline.left_s <= pause_s:
                    raise error from None
            await sleep(pause_s)

    def _check_open(self, verb: str) -> None:
        if self.closed:
            raise ClosedError(f"{verb} at {self.target}: the client was closed") from None
