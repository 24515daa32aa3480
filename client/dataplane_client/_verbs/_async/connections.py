"""Connections of local.proto, which are reused. Each carries one call at a time.

A call that fails half-way, at its deadline or because it was cancelled, closes its connection, which cancels the call
on the server.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message
from google.rpc import status_pb2

from dataplane_client._connect.deadline import Deadline
from dataplane_client._connect.error_table import translated_status
from dataplane_client._memory.direct_port import opened
from dataplane_client._memory.local_protocol import CROWDED, Address, request_frame
from dataplane_client._verbs._async.carriers import AsyncCarrier
from dataplane_client._verbs._async.runtime import LocalConnection, NoThreadError, Work, run_in_thread, sleep
from dataplane_client.errors import DataPlaneError, DeadlineError, InvalidArgumentError, UnavailableError
from rl_dataplane.v1 import local_pb2 as pb

_IDLE_CONNECTIONS = 64
_CROWDED_PAUSE_S = 0.01

Response = TypeVar("Response", bound=Message)


def _connected(address: tuple[str, int], deadline: Deadline, notice_s: int) -> LocalConnection:
    """A connection that closes itself if its caller was cancelled and never takes it."""
    return LocalConnection(opened(address, deadline.left_s, notice_s))


class AsyncConnections:
    """The connections of one session to an address."""

    def __init__(self, target: str, carrier: AsyncCarrier, address: Address) -> None:
        self._target = target
        self._carrier = carrier
        self._address = address
        self._idle: deque[LocalConnection] = deque()
        self._open: set[LocalConnection] = set()
        self._closed = False
        self._pid = os.getpid()

    async def reach(self, timeout_s: float) -> None:
        """Open a connection. Raises OSError if the address cannot be reached, or does not serve this client."""
        self.put_back(await self._take(Deadline(timeout_s)))

    async def call(
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
        """Call a method. own: at most one connection, which the call uses; the call's connection is in it afterwards.
        after: sends what follows the request.
        """
        if self._carrier.release is not None:
            self._carrier.release()  # sends handles that an earlier release could not send
        try:
            frame = request_frame(number, request, traceparent if self._carrier.traces else "")
        except ValueError as error:
            raise InvalidArgumentError(f"{verb} at {self._target}: {error}") from None
        try:
            connection = own.pop() if own else await self._take(deadline)
            try:
                outcome, body = await connection.exchange(frame, deadline.left_s, after)
            except BaseException:
                self.drop(connection)
                raise
        except (OSError, EOFError) as error:
            raise self.failure(verb, error) from None
        if own is None:
            self.put_back(connection)
        else:
            own.append(connection)
        if outcome == pb.LOCAL_OUTCOME_ERROR:
            raise translated_status(status_pb2.Status.FromString(body), verb, self._target)
        return response.FromString(body)

    def failure(self, verb: str, error: OSError | EOFError) -> DataPlaneError:
        """The error of this package for what ended the use of a connection."""
        if isinstance(error, TimeoutError) and error.errno is None:  # with one, the kernel gave the connection up
            why = str(error) if isinstance(error, NoThreadError) else "no answer before the deadline"
            return DeadlineError(f"{verb} at {self._target}: {why}")
        why = getattr(error, "strerror", None) or str(error)  # not itself: a circle would keep the arena mapped
        return UnavailableError(f"{verb} at {self._target}: the {self._carrier.transport} connection broke: {why}")

    async def _take(self, deadline: Deadline) -> LocalConnection:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        connection = await self._opened(deadline)
        self._open.add(connection)
        try:
            if self._closed:
                raise ConnectionError("it was closed")
            self._carrier.greeted(*await connection.exchange(self._carrier.greeting, deadline.left_s))
        except BaseException:
            self.drop(connection)
            raise
        return connection

    async def _opened(self, deadline: Deadline) -> LocalConnection:
        """A new connection. Waits while the server's backlog is full, as when many callers connect at once."""
        while True:
            try:
                if isinstance(self._address, str):
                    return await LocalConnection.open(self._address, deadline.left_s)
                connect = partial(_connected, self._address, deadline, self._carrier.notice_s)
                return await run_in_thread(connect, timeout_s=deadline.left_s, to_its_end=False)
            except OSError as error:
                if error.errno not in CROWDED or not deadline.left_s:
                    raise
            await sleep(_CROWDED_PAUSE_S)

    def put_back(self, connection: LocalConnection) -> None:
        """Keep a connection for the next call."""
        if len(self._idle) >= _IDLE_CONNECTIONS:
            self.drop(connection)
            return
        self._idle.append(connection)
        if self._closed:  # perhaps since the last check
            self._close_idle()

    def drop(self, connection: LocalConnection) -> None:
        """Close a connection that the caller has taken."""
        self._open.discard(connection)
        if self._pid == os.getpid():  # a forked child must not end its parent's connection
            connection.interrupt()  # while a forked child has it open, closing it here would not end it
        connection.close()

    async def close(self) -> None:
        """End calls under way."""
        self._closed = True
        for connection in list(self._open):
            connection.interrupt()
        self._close_idle()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self.drop(self._idle.pop())
