"""Calls over a server's local socket, values through the memory that it shares: the same calls as `grpc_calls`.

Each connection carries one call at a time; idle ones are kept for the next calls. A call that fails half-way, by a
deadline or because its caller was cancelled, takes its connection with it, which cancels it on the server.
"""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message
from google.rpc import status_pb2

from dataplane_client._async.runtime import LocalConnection, apart, sleep
from dataplane_client._deadline import Deadline
from dataplane_client._error_table import refused
from dataplane_client._layouts import column_layouts, int64s
from dataplane_client._leased_views import leased_columns
from dataplane_client._lent_room import fill_runs, joined, size_of
from dataplane_client._local_frames import request_frame
from dataplane_client._local_methods import LOCAL_METHODS, LOCAL_WRITES
from dataplane_client._placement import Destination, PlacedColumn, ReadBuffers, fitting
from dataplane_client._shared_arena import SharedArena
from dataplane_client.columns_layout import WireColumn
from dataplane_client.errors import DeadlineError, InternalError, InvalidArgumentError, UnavailableError
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb

INLINE_BYTES = 64 << 10
"""Values of up to this many bytes travel in the message: copying them twice costs less than another call."""

_IDLE_CONNECTIONS = 64
_CROWDED = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)  # the server's backlog is full, or we have no descriptor left
_CROWDED_PAUSE_S = 0.01
_LONG_COPY_BYTES = 2 << 20

Response = TypeVar("Response", bound=Message)


class AsyncLocalCalls:
    """Calls of one session."""

    def __init__(self, target: str, arena: SharedArena) -> None:
        self._target = target
        self._arena = arena
        self._idle: deque[LocalConnection] = deque()
        self._busy: set[LocalConnection] = set()
        self._closed = False

    async def close(self) -> None:
        """End calls under way. What views of the arena still hold stays held."""
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

    async def write(
        self, verb: str, header: Message, columns: Sequence[WireColumn], timeout_s: float, traceparent: str = ""
    ) -> Any:
        """Put or commit: in one call when the values are small, else into room that the server lends."""
        deadline, handle, size_bytes = Deadline(timeout_s), self._arena.next_handle(), size_of(columns)
        number, message = LOCAL_WRITES[verb]
        values = joined(columns) if size_bytes <= INLINE_BYTES else None
        request = message(header=header, handle=handle, values=values)
        held: list[LocalConnection] = []  # a server that begins to drain meanwhile would not let us open another
        try:
            written = await self._call(verb, number, request, pb.LocalWriteResponse, deadline, traceparent, held)
            if written.HasField("reservation"):
                await _copied(partial(self._fill, written.reservation, columns), size_bytes)
                number, finish = pb.LOCAL_METHOD_FINISH_WRITE, pb.FinishWriteRequest(handle=handle)
                written = await self._call(verb, number, finish, pb.LocalWriteResponse, deadline, traceparent, held)
        except BaseException:
            self._arena.let_go(handle)  # nobody writes there any more
            raise
        finally:
            for connection in held:
                self._keep(connection)
        return written.commit if written.HasField("commit") else written.put

    def _fill(self, room: pb.ArenaRuns, columns: Sequence[WireColumn]) -> None:
        try:
            fill_runs(self._arena.writable, int64s(room.offsets), int64s(room.sizes), columns)
        except ValueError as error:
            raise InternalError(f"the server at {self._target} lent room that does not fit: {error}") from None

    async def read(
        self, request: plane_pb.ReadColumnsRequest, destination: Destination, timeout_s: float, traceparent: str = ""
    ) -> list[PlacedColumn]:
        """Read columns."""
        handle = self._arena.next_handle()
        message = pb.LocalReadRequest(request=request, handle=handle, inline_bytes=INLINE_BYTES)
        n_rows, held = len(request.sample_ids), True
        try:
            number, deadline = pb.LOCAL_METHOD_READ, Deadline(timeout_s)
            found = await self._call("ReadColumns", number, message, pb.LocalReadResponse, deadline, traceparent)
            held = found.HasField("lease")
            layouts = column_layouts(found.header, request)
            if not held:
                return _unpacked(found.values, ReadBuffers(layouts, n_rows, destination), self._target)
            with fitting(self._target):
                runs = (int64s(found.lease.offsets), int64s(found.lease.sizes))
                leased = leased_columns(self._arena, handle, layouts, n_rows, *runs) if destination.views else None
            if leased is not None:
                held = False  # by us; the views let go of it
                return leased
            buffers = ReadBuffers(layouts, n_rows, destination)
            with fitting(self._target):
                copy = partial(buffers.copy_runs, self._arena.readable, *runs)
                await _copied(copy, buffers.size_bytes)
            return buffers.columns
        finally:
            if held:
                self._arena.let_go(handle)

    # -- connections ---------------------------------------------------------------------------------------------------

    async def _call(
        self,
        verb: str,
        number: int,
        request: Message,
        response: type[Response],
        deadline: Deadline,
        traceparent: str,
        held: list[LocalConnection] | None = None,
    ) -> Response:
        """held: takes a connection out, if there is one, and puts that of the call in when it has its answer."""
        try:
            frame = request_frame(number, request, traceparent if self._arena.traces else "")
        except ValueError as error:
            raise InvalidArgumentError(f"{verb} at {self._target}: {error}") from None
        self._arena.let_go()  # what could not be said when it was let go of
        try:
            outcome, body = await self._exchanged(frame, deadline, held)
        except TimeoutError:
            raise DeadlineError(f"{verb} at {self._target}: no answer in time") from None
        except OSError as error:
            raise UnavailableError(f"{verb} at {self._target}: the local connection broke: {error}") from None
        if outcome == pb.LOCAL_OUTCOME_ERROR:
            raise refused(status_pb2.Status.FromString(body), verb, self._target)
        return response.FromString(body)

    async def _exchanged(
        self, frame: bytes, deadline: Deadline, held: list[LocalConnection] | None
    ) -> tuple[int, bytes]:
        connection = held.pop() if held else await self._connection(deadline)
        self._busy.add(connection)
        try:
            if self._closed:
                raise ConnectionError("it was closed")
            answer = await connection.exchange(frame, deadline.left_s)
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if held is None:
            self._keep(connection)
        else:
            held.append(connection)
        return answer

    def _keep(self, connection: LocalConnection) -> None:
        if len(self._idle) >= _IDLE_CONNECTIONS:
            connection.close()
            return
        self._idle.append(connection)
        if self._closed:  # perhaps since somebody last looked
            self._close_idle()

    async def _opened(self, deadline: Deadline) -> LocalConnection:
        """A new connection. Many callers at once wait here for one another, which says nothing against the session."""
        while True:
            try:
                return await LocalConnection.open(self._arena.address, deadline.left_s)
            except OSError as error:
                if error.errno not in _CROWDED or not deadline.left_s:
                    raise
            await sleep(_CROWDED_PAUSE_S)

    async def _connection(self, deadline: Deadline) -> LocalConnection:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        connection = await self._opened(deadline)
        try:
            join = request_frame(pb.LOCAL_METHOD_JOIN, pb.JoinRequest(session=self._arena.token))
            outcome, _ = await connection.exchange(join, deadline.left_s)
            if outcome == pb.LOCAL_OUTCOME_ERROR:
                raise ConnectionError("the server has ended the session")
        except BaseException:
            connection.close()
            raise
        return connection


async def _copied(copy: Callable[[], None], size_bytes: int) -> None:
    """Copy; what takes longer than a call does not hold up the loop."""
    if size_bytes > _LONG_COPY_BYTES:
        await apart(copy)
    else:
        copy()


def _unpacked(values: bytes, buffers: ReadBuffers, target: str) -> list[PlacedColumn]:
    with fitting(target):
        buffers.copy_runs(np.frombuffer(values, np.uint8), np.zeros(1, np.int64), np.array([len(values)], np.int64))
    return buffers.columns
