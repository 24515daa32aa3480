"""The thread of a session: it opens streams of heartbeats, sends these, and undoes grants.

The thread owns all state. It sleeps on its mailbox until a message comes or a heartbeat is due. It never sleeps within
gRPC, which would wake it ten times a second. Any code may put messages, also a finalizer or a callback of gRPC.

A stream that breaks, or whose server has moved, is opened again for the same session, until the server answers that the
session has expired. The next session is opened when a caller needs one.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import grpc

from dataplane_client._connect.channel import Connection
from dataplane_client._connect.deadline import Deadline, backoff_pauses
from dataplane_client._connect.error_table import translated
from dataplane_client._connect.heartbeats import HeartbeatStream, beat_interval_s, until_next_beat_s
from dataplane_client._connect.locator import locator_of, new_future
from dataplane_client._connect.log import log_event
from dataplane_client._connect.options import ClientOptions
from dataplane_client.errors import (
    ClosedError,
    DataPlaneError,
    DeadlineError,
    SessionExpiredError,
    UnavailableError,
)
from rl_dataplane.v1 import data_plane_pb2 as pb

CLOSE_S = 2.0
"""The longest time that closing a session may take."""

_END_STREAM_S = 1.5  # for the server to end a stream that was closed; the rest of CLOSE_S is for the thread
_FIND_S = 1.0
_UNDO_S = 1.0
_MAX_UNDOS = 1 << 17
"""Grants that wait to be undone: more than all claims of a server with the usual limits."""

Undo = Callable[[Any, float], object]
"""Undoes a grant by a call of a stub, with the given timeout in seconds. May be called repeatedly."""


@dataclass(frozen=True)
class Waiter:
    """A caller that waits for a session other than `stale`."""

    stale: str
    deadline: Deadline
    session_id: Future[str]


class Close:
    """A message: end the session."""


class SessionThread:
    """The thread of a session. It starts with the first message that is posted to it."""

    def __init__(self, target: str, options: ClientOptions) -> None:
        self.session_id = ""
        self.failure: DataPlaneError | None = None
        self.mailbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.pid = os.getpid()
        self._target = target
        self._locator = locator_of(target)
        self._options = options
        self._connection: Connection | None = None
        self._posting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._done: Future[None] = new_future()
        self._closing = False
        self._stream: HeartbeatStream | None = None
        self._grace_s = 0.0
        self._interval_s = 0.0
        self._due = 0.0  # of the next heartbeat, or of the next attempt to open
        self._pauses = backoff_pauses(options)
        self._waiters: list[Waiter] = []
        self._undos: deque[Undo] = deque(maxlen=_MAX_UNDOS)
        self._undo_due = 0.0

    # -- from any thread -----------------------------------------------------------------------------------------------

    def post(self, message: object) -> bool:
        """Give the thread a message. Returns False if the thread is ending."""
        with self._posting:
            if self._closing:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="dataplane-session", daemon=True)
                thread.start()  # raises RuntimeError where the system has no thread left
                self._thread = thread
                _started[id(self)] = self
            self.mailbox.put(message)
            return True

    def close(self) -> Future[None]:
        """End the thread. The future is done when it has ended."""
        with self._posting:
            if not self._closing:
                self._closing = True
                if self._thread is None:
                    self._done.set_result(None)
        self.mailbox.put(Close())
        stream = self._stream
        if stream is not None and not stream.opened:
            stream.call.cancel()
        return self._done

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._receive():
                self._do_what_is_due()
            self._close_session()
        finally:
            self._fail_waiters()
            if self._connection is not None:
                self._connection.close()
            self._done.set_result(None)

    def _connect(self) -> Connection:
        """The connection for the next stream: another one once the server's address or certificates have changed."""
        target, connection = self._locator.wait(_FIND_S).grpc_target, self._connection
        if connection is None or connection.target != target or connection.secured.is_outdated():
            former, connection = connection, Connection(target, self._options.credentials)
            self._connection = connection
            if former is not None:
                former.close()
        return connection

    def _has_moved(self) -> bool:
        """Whether the server is known to be elsewhere. Streams to a host that is gone do not end at once."""
        return self._connection is not None and self._connection.target != self._locator.place.grpc_target

    def _receive(self) -> bool:
        """Wait for a message, or until something is due. Returns False when the session is to end."""
        due = self._next_due()
        try:
            message = self.mailbox.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
        except queue.Empty:
            return True
        if isinstance(message, Waiter):
            self._on_waiter(message)
        elif isinstance(message, HeartbeatStream):
            self._on_stream_end(message)
        elif callable(message):
            self._undos.append(message)
        return not isinstance(message, Close)

    def _next_due(self) -> float | None:
        due = [self._due] if self._stream is not None or self.session_id or self._waiters else []
        return min([*due, self._undo_due] if self._undos and self.session_id else due, default=None)

    def _on_waiter(self, waiter: Waiter) -> None:
        if waiter.stale and waiter.stale == self.session_id:
            self._lose_session("it has expired")
        if self.session_id:
            waiter.session_id.set_result(self.session_id)
            return
        if not self._waiters:
            self._due = 0.0
        self._waiters.append(waiter)

    def _on_stream_end(self, stream: HeartbeatStream) -> None:
        if stream is not self._stream:
            return  # this thread has ended it
        error = stream.error(self._target)
        self._drop_stream()
        if isinstance(error, SessionExpiredError):
            self._lose_session(error.message)
        else:
            self._pause()

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        if self._stream is not None and self._has_moved():
            self._drop_stream()
            self._due = now
        if self._stream is None and (self.session_id or self._waiters) and now >= self._due:
            self._open()
        elif self._stream is not None and now >= self._due:
            self._stream.beat()
            self._due = now + until_next_beat_s(self._grace_s, time.time())
        if not self.session_id and not self._waiters:
            self._undos.clear()  # their grants have ended with the session
        elif self._undos and self.session_id and self._connection is not None and now >= self._undo_due:
            self._undo_oldest(self._connection.stub)

    def _open(self) -> None:
        """Open a session, or a new stream for the open one."""
        try:
            stream = self._stream = self._new_stream()
        except DataPlaneError as unknown:  # where the server is
            self._on_refusal(unknown)
            return
        if self._closing:  # close() was called before there was a stream to cancel
            stream.call.cancel()
        try:
            answer = stream.answer()
        except (grpc.RpcError, StopIteration):
            error = stream.error(self._target)
            self._drop_stream()
            self._on_refusal(error)
            return
        self.session_id, self.failure = answer.session_id, None
        self._grace_s = answer.grace.ToNanoseconds() / 1e9
        self._interval_s = beat_interval_s(self._grace_s)
        self._due = time.monotonic() + until_next_beat_s(self._grace_s, time.time())
        self._pauses = backoff_pauses(self._options)
        for waiter in self._waiters:
            waiter.session_id.set_result(self.session_id)
        self._waiters.clear()
        stream.post_end(self.mailbox)

    def _new_stream(self) -> HeartbeatStream:
        """Raises DataPlaneError while it is not known where the server is."""
        opening = pb.OpenSession(session_id=self.session_id, client_name=self._options.caller)
        opening.grace.FromNanoseconds(int(self._options.session_grace_s * 1e9))
        return HeartbeatStream(self._connect().stub, opening)

    def _on_refusal(self, error: DataPlaneError) -> None:
        """Handle that no stream could be opened."""
        if self.session_id and isinstance(error, SessionExpiredError):
            self._lose_session(error.message)
            return
        pause_s = self._pause()
        again = self.session_id or _is_transient(error)
        failed = [waiter for waiter in self._waiters if not again or waiter.deadline.left_s <= pause_s]
        self._waiters = [waiter for waiter in self._waiters if waiter not in failed]
        self.failure = error if self._waiters else None
        for waiter in failed:
            waiter.session_id.set_exception(error)

    def _pause(self) -> float:
        self._locator.doubt()
        pause_s = next(self._pauses)
        if self._interval_s:
            pause_s = min(pause_s, self._interval_s)  # a short grace leaves little time
        self._due = time.monotonic() + pause_s
        return pause_s

    def _lose_session(self, why: str) -> None:
        log_event(logging.WARNING, "session_lost", session=self.session_id, server=self._target, why=why)
        self._drop_stream()
        self.session_id = ""
        self._interval_s = self._due = 0.0

    def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()

    def _undo_oldest(self, stub: Any) -> None:
        """Undo the grant that has waited longest; heartbeats are late by at most half an interval."""
        timeout_s = min(_UNDO_S, self._interval_s) / 2
        try:
            self._undos[0](stub, timeout_s)
        except grpc.RpcError as error:
            refusal = translated(error, "undoing a grant", self._target)
            if _is_transient(refusal):
                self._undo_due = time.monotonic() + timeout_s
                return
            log_event(logging.INFO, "nothing_to_take_back", server=self._target, why=refusal)
        self._undos.popleft()

    def _close_session(self) -> None:
        """Have the server end the session: on the open stream, or on others while connections to it break."""
        deadline, pauses = Deadline(_END_STREAM_S), backoff_pauses(self._options)
        stream, self._stream = self._stream, None
        while self.session_id:
            if stream is None:
                try:
                    stream = self._new_stream()
                except DataPlaneError:  # where the server is
                    return
                stream.post_end(self.mailbox)
            stream.close()
            ended = self._await_end(stream, deadline)
            again = ended and stream.broke_off
            stream.end()
            pause_s = next(pauses)
            if not again or deadline.left_s <= pause_s:
                return
            time.sleep(pause_s)
            stream = None

    def _await_end(self, stream: HeartbeatStream, deadline: Deadline) -> bool:
        """Wait for the end of a stream that was closed. Returns False at the deadline."""
        message: object = None
        while message is not stream:
            try:
                message = self.mailbox.get(timeout=deadline.left_s)
            except queue.Empty:
                return False
            if isinstance(message, Waiter):
                self._waiters.append(message)
        return True

    def _fail_waiters(self) -> None:
        """Accept no more messages, and fail the callers that still wait."""
        with self._posting:
            self._closing = True
        self._drop_stream()
        self.session_id = ""
        while not self.mailbox.empty():
            message = self.mailbox.get()
            if isinstance(message, Waiter):
                self._waiters.append(message)
        for waiter in self._waiters:
            waiter.session_id.set_exception(ClosedError(f"session at {self._target}: the client was closed"))


def _is_transient(error: DataPlaneError) -> bool:
    """Whether the server could not be reached, rather than refused the call."""
    return isinstance(error, UnavailableError) or type(error) is DeadlineError


_started: weakref.WeakValueDictionary[int, SessionThread] = weakref.WeakValueDictionary()


def own_threads() -> list[SessionThread]:
    """The session threads of this process. A forked child also inherits its parent's entries.

    The references are copied at once, because threads start and end meanwhile.
    """
    threads = [reference() for reference in _started.valuerefs()]
    return [thread for thread in threads if thread is not None and thread.pid == os.getpid()]
