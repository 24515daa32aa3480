"""Calls by frames of local.proto, over connections that are reused. The base of `local_calls` and `direct_calls`.

A connection carries one call at a time. A call that fails half-way, at its deadline or because it was cancelled,
closes its connection, which cancels the call on the server.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, TypeVar

from google.protobuf.message import Message
from google.rpc import status_pb2

from dataplane_client._connect.deadline import Deadline
from dataplane_client._connect.error_table import translated_status
from dataplane_client._memory.local_protocol import LOCAL_METHODS, request_frame
from dataplane_client._verbs._async.runtime import LocalConnection, Work
from dataplane_client.errors import DataPlaneError, DeadlineError, InvalidArgumentError, UnavailableError
from rl_dataplane.v1 import local_pb2 as pb

_IDLE_CONNECTIONS = 64

Response = TypeVar("Response", bound=Message)


class AsyncFrameCalls(ABC):
    """The calls of one client. traces: whether requests may carry a trace context."""

    transport: Literal["shm", "direct"]

    def __init__(self, target: str, *, traces: bool) -> None:
        self._target = target
        self._traces = traces
        self._idle: deque[LocalConnection] = deque()
        self._busy: set[LocalConnection] = set()
        self._closed = False

    async def close(self) -> None:
        """End calls under way. Views of the arena keep their leases."""
        self._closed = True
        for connection in list(self._busy):
            connection.interrupt()
        self._close_idle()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    async def unary(self, verb: str, request: Message, timeout_s: float, traceparent: str = "") -> Any:
        """Call a method with one request."""
        number, response = LOCAL_METHODS[verb]
        return await self._call(verb, number, request, response, Deadline(timeout_s), traceparent)

    async def _call(
        self,
        verb: str,
        number: int,
        request: Message,
        response: type[Response],
        deadline: Deadline,
        traceparent: str,
        own: list[LocalConnection] | None = None,
        after: Work | None = None,
    ) -> Response:
        """own: at most one connection, which the call uses; the call's connection is in it afterwards. after: sends
        what follows the request.
        """
        try:
            frame = request_frame(number, request, traceparent if self._traces else "")
        except ValueError as error:
            raise InvalidArgumentError(f"{verb} at {self._target}: {error}") from None
        try:
            outcome, body = await self._exchange(frame, deadline, own, after)
        except (OSError, EOFError) as error:
            raise self._failed(verb, error) from None
        if outcome == pb.LOCAL_OUTCOME_ERROR:
            raise translated_status(status_pb2.Status.FromString(body), verb, self._target)
        return response.FromString(body)

    def _failed(self, verb: str, error: OSError | EOFError) -> DataPlaneError:
        """The error of this package for what ended the use of a connection."""
        if isinstance(error, TimeoutError):
            return DeadlineError(f"{verb} at {self._target}: no answer before the deadline")
        why = getattr(error, "strerror", None) or str(error)  # not itself: a circle would keep the arena mapped
        return UnavailableError(f"{verb} at {self._target}: the {self._kind} connection broke: {why}")

    async def _exchange(
        self, frame: bytes, deadline: Deadline, own: list[LocalConnection] | None, after: Work | None
    ) -> tuple[int, bytes]:
        connection = own.pop() if own else await self._take_connection(deadline)
        with self._using(connection):
            answer = await connection.exchange(frame, deadline.left_s, after)
        if own is None:
            self._put_back(connection)
        else:
            own.append(connection)
        return answer

    @contextlib.contextmanager
    def _using(self, connection: LocalConnection) -> Iterator[None]:
        """A block that uses a connection. If it raises, the connection is closed."""
        self._busy.add(connection)
        try:
            if self._closed:
                raise ConnectionError("it was closed")
            yield
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)

    def _put_back(self, connection: LocalConnection) -> None:
        if len(self._idle) >= _IDLE_CONNECTIONS:
            connection.close()
            return
        self._idle.append(connection)
        if self._closed:  # perhaps since the last check
            self._close_idle()

    async def _take_connection(self, deadline: Deadline) -> LocalConnection:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        connection = await self._open_connection(deadline)
        try:
            await self._begin(connection, deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    # -- what differs --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _kind(self) -> str:
        """Of a connection, in errors."""

    @abstractmethod
    async def _open_connection(self, deadline: Deadline) -> LocalConnection:
        """A new connection. OSError."""

    @abstractmethod
    async def _begin(self, connection: LocalConnection, deadline: Deadline) -> None:
        """Make a new connection one for calls. OSError."""
