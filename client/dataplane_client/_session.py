"""The session of a client: a stream of heartbeats, kept by a thread of its own.

What the server hands to a client belongs to its session, which lives as long as the server hears of it. So heartbeats
do not depend on what the caller is doing: they have a thread and a channel of their own, and go on while the caller's
event loop or its other threads are busy. They end when the process does, is stopped, or cannot reach the server; then
rows go to others.

The thread owns all state. It sleeps on its mailbox until a message comes or a heartbeat is due, and never within gRPC,
which would wake it ten times a second. Messages can be put from anywhere, also from a finalizer or a callback of gRPC.

A stream that breaks is opened anew, to go on with the same session, until the server says that the session is dead.
Then there is none until somebody asks for one. A forked child has nothing of its parent's: it opens a session of its
own.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import grpc

from dataplane_client._channel import open_channel
from dataplane_client._deadline import Deadline, backoff_pauses
from dataplane_client._error_table import translated
from dataplane_client._log import log_event
from dataplane_client.errors import (
    ClosedError,
    DataPlaneError,
    DeadlineError,
    SessionExpiredError,
    UnavailableError,
)
from dataplane_client.options import ClientOptions
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc

CLOSE_S = 2.0
"""How long closing a session may take."""

_ENDING_S = 1.5  # for the server to end a stream that was closed; the rest of CLOSE_S is for the thread
_UNDO_S = 1.0
_MAX_UNDOS = 1024

_BEATS_A_GRACE = 3
_BEAT_TIMES_S = 0.5
_SHORT_INTERVAL_S = 1.0

Undo = Callable[[Any, float], object]
"""One or two calls of a stub, each of at most so many seconds, that take something back. May be made repeatedly."""


@dataclass(frozen=True)
class _Want:
    """A caller waits for a session that is not `stale`."""

    stale: str
    deadline: Deadline
    session_id: Future[str]


class _Close:
    """The session is to end."""


class LivenessSession:
    """The session of one client, opened when it is first wanted. Used by any thread."""

    def __init__(self, target: str, options: ClientOptions) -> None:
        self._target = target
        self._options = options
        self._keepers: dict[int, _Keeper] = {}  # by process

    @property
    def session_id(self) -> str:
        """The session that lives as far as is known; empty when there is none."""
        keeper = self._keepers.get(os.getpid())
        return "" if keeper is None else keeper.session_id

    def open_session(self, stale: str, deadline: Deadline) -> Future[str]:
        """The id of a session, which is opened if there is none; one that was found to be dead is given as stale.

        At the deadline the future holds an UnavailableError, if by then the server was found not to answer.
        """
        want = _Want(stale, deadline, _future())
        if not self._keeper().post(want):
            want.session_id.set_exception(ClosedError(f"session at {self._target}: the client was closed"))
        return want.session_id

    def undo(self, undo: Undo) -> None:
        """Have something taken back now, or later when the server cannot be reached now; at the latest it ends with the
        session. Does not block.
        """
        self._keeper().post(undo)

    def close(self) -> Future[None]:
        """End the session, so that the server gives back at once what it holds. Done when the thread is; within about
        CLOSE_S seconds.
        """
        return self._keeper().close()

    def _keeper(self) -> _Keeper:
        pid = os.getpid()
        keeper = self._keepers.get(pid)
        if keeper is None:
            keeper = self._keepers.setdefault(pid, _Keeper(self._target, self._options))
            weakref.finalize(self, keeper.mailbox.put, _Close()).atexit = False  # for clients that nobody closes
        return keeper


class _Keeper:
    """The thread that keeps a session, from the first message that is posted to it."""

    def __init__(self, target: str, options: ClientOptions) -> None:
        self.session_id = ""
        self.mailbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.pid = os.getpid()
        self._target = target
        self._options = options
        self._posting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._done: Future[None] = _future()
        self._closing = False
        self._stream: _Stream | None = None
        self._grace_s = 0.0
        self._interval_s = 0.0
        self._due = 0.0  # of the next heartbeat, or of the next attempt to open
        self._pauses = backoff_pauses(options)
        self._wants: list[_Want] = []
        self._undos: deque[Undo] = deque(maxlen=_MAX_UNDOS)
        self._undo_due = 0.0

    # -- from any thread -----------------------------------------------------------------------------------------------

    def post(self, message: object) -> bool:
        """Give the thread a message; whether it is there to read it."""
        with self._posting:
            if self._closing:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dataplane-session", daemon=True)
                self._thread.start()
                _keepers[id(self)] = self
            self.mailbox.put(message)
            return True

    def close(self) -> Future[None]:
        """Have the thread end; done when it has."""
        with self._posting:
            if not self._closing:
                self._closing = True
                if self._thread is None:
                    self._done.set_result(None)
        self.mailbox.put(_Close())
        stream = self._stream
        if stream is not None and not stream.opened:
            stream.call.cancel()
        return self._done

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        channel = open_channel(self._target)
        try:
            stub: Any = pb_grpc.DataPlaneServiceStub(channel)
            while self._received():
                self._work(stub)
            self._close_session()
        finally:
            self._end()
            channel.close()
            self._done.set_result(None)

    def _received(self) -> bool:
        """Wait for a message or for what is due; whether to go on."""
        due = self._next_due()
        try:
            message = self.mailbox.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
        except queue.Empty:
            return True
        if isinstance(message, _Want):
            self._on_want(message)
        elif isinstance(message, _Stream):
            self._on_end(message)
        elif callable(message):
            self._undos.append(message)
        return not isinstance(message, _Close)

    def _next_due(self) -> float | None:
        due = [self._due] if self._stream is not None or self.session_id or self._wants else []
        return min([*due, self._undo_due] if self._undos else due, default=None)

    def _on_want(self, want: _Want) -> None:
        if want.stale and want.stale == self.session_id:
            self._lose("it has died")
        if self.session_id:
            want.session_id.set_result(self.session_id)
            return
        if not self._wants:
            self._due = 0.0
        self._wants.append(want)

    def _on_end(self, stream: _Stream) -> None:
        """A stream has ended, by itself if it is still ours."""
        if stream is not self._stream:
            return
        error = stream.error(self._target)
        self._drop_stream()
        if isinstance(error, SessionExpiredError):
            self._lose(error.message)
        else:
            self._pause()

    def _work(self, stub: Any) -> None:
        now = time.monotonic()
        if self._stream is None and (self.session_id or self._wants) and now >= self._due:
            self._open(stub)
        elif self._stream is not None and now >= self._due:
            self._stream.beat()
            self._due = now + until_next_beat_s(self._grace_s, time.time())
        if not self.session_id:
            self._undos.clear()  # what they would take back has ended with the session
        elif self._undos and now >= self._undo_due:
            self._take_back(stub)

    def _open(self, stub: Any) -> None:
        """Open a session, or go on with the one that there is."""
        opening = pb.OpenSession(session_id=self.session_id, client_name=self._options.caller)
        opening.grace.FromNanoseconds(int(self._options.session_grace_s * 1e9))
        stream = self._stream = _Stream(stub, opening)
        if self._closing:  # since the last message; nobody else would end the call
            stream.call.cancel()
        try:
            answer = stream.answer()
        except (grpc.RpcError, StopIteration):
            error = stream.error(self._target)
            self._drop_stream()
            self._on_refusal(error)
            return
        self.session_id = answer.session_id
        self._grace_s = answer.grace.ToNanoseconds() / 1e9
        self._interval_s = beat_interval_s(self._grace_s)
        self._due = time.monotonic() + until_next_beat_s(self._grace_s, time.time())
        self._pauses = backoff_pauses(self._options)
        for want in self._wants:
            want.session_id.set_result(self.session_id)
        self._wants.clear()
        stream.tell_end(self.mailbox)

    def _on_refusal(self, error: DataPlaneError) -> None:
        """No session could be opened, or gone on with."""
        if self.session_id and isinstance(error, SessionExpiredError):
            self._lose(error.message)
            return
        pause_s = self._pause()
        again = self.session_id or _may_pass(error)
        failed = [want for want in self._wants if not again or want.deadline.left_s <= pause_s]
        self._wants = [want for want in self._wants if want not in failed]
        for want in failed:
            want.session_id.set_exception(error)

    def _pause(self) -> float:
        pause_s = next(self._pauses)
        if self._interval_s:
            pause_s = min(pause_s, self._interval_s)  # a short grace leaves little time
        self._due = time.monotonic() + pause_s
        return pause_s

    def _lose(self, why: str) -> None:
        log_event(logging.WARNING, "session_lost", session=self.session_id, server=self._target, why=why)
        self._drop_stream()
        self.session_id = ""
        self._interval_s = self._due = 0.0

    def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()

    def _take_back(self, stub: Any) -> None:
        """Take back what has waited longest, by two calls at most; heartbeats are late by no more than an interval."""
        timeout_s = min(_UNDO_S, self._interval_s) / 2
        try:
            self._undos[0](stub, timeout_s)
        except grpc.RpcError as error:
            refusal = translated(error, "taking back", self._target)
            if _may_pass(refusal):
                self._undo_due = time.monotonic() + timeout_s
                return
            log_event(logging.INFO, "nothing_to_take_back", server=self._target, why=refusal)
        self._undos.popleft()

    def _close_session(self) -> None:
        if self._stream is None:
            return
        self._stream.close()
        deadline = Deadline(_ENDING_S)
        message: object = None
        while message is not self._stream:
            try:
                message = self.mailbox.get(timeout=deadline.left_s)
            except queue.Empty:
                return
            if isinstance(message, _Want):
                self._wants.append(message)

    def _end(self) -> None:
        """Leave nobody waiting."""
        with self._posting:
            self._closing = True
        self._drop_stream()
        self.session_id = ""
        while not self.mailbox.empty():
            message = self.mailbox.get()
            if isinstance(message, _Want):
                self._wants.append(message)
        for want in self._wants:
            want.session_id.set_exception(ClosedError(f"session at {self._target}: the client was closed"))


class _Stream:
    """One stream of heartbeats. Its own end is the message that it puts into a mailbox."""

    def __init__(self, stub: Any, opening: pb.OpenSession) -> None:
        self._requests: queue.SimpleQueue[pb.SessionRequest | None] = queue.SimpleQueue()
        self._requests.put(pb.SessionRequest(open=opening))
        self.opened = False
        requests: Iterator[pb.SessionRequest] = iter(self._requests.get, None)
        self.call: Any = stub.Session(requests)

    def answer(self) -> pb.SessionResponse:
        """Wait for the first response, which is the only one. Raises RpcError or StopIteration when there is none."""
        response: pb.SessionResponse = next(self.call)
        self.opened = True
        return response

    def tell_end(self, mailbox: queue.SimpleQueue[object]) -> None:
        """Put this stream into the mailbox when it has ended."""
        if not self.call.add_callback(lambda: mailbox.put(self)):
            mailbox.put(self)

    def beat(self) -> None:
        if self._requests.empty():  # else the server takes nothing in, and would learn nothing more from another
            self._requests.put(pb.SessionRequest())

    def close(self) -> None:
        """Ask the server to end the session, and then the stream."""
        self._requests.put(pb.SessionRequest(close=True))
        self._requests.put(None)

    def end(self) -> None:
        """End the stream, if it has not ended; gRPC's own thread behind it ends, too."""
        self._requests.put(None)
        self.call.cancel()

    def error(self, target: str) -> DataPlaneError:
        """Why the stream has ended. A server that ends it without a word is taken for one that breaks it."""
        if self.call.code() is grpc.StatusCode.OK:
            return UnavailableError(f"Session at {target}: the server ended the stream")
        return translated(self.call, "Session", target)


def beat_interval_s(grace_s: float) -> float:
    """The longest time between two heartbeats, in seconds. Three fit into a grace, so two may be lost or late."""
    return grace_s / _BEATS_A_GRACE


def until_next_beat_s(grace_s: float, wall_clock_s: float) -> float:
    """Seconds from now, which is `wall_clock_s` by the wall clock, until the next heartbeat; always above 0.

    All clients send at the same times of the wall clock, half a second apart: a server of a thousand clients then finds
    many heartbeats each time it wakes up, and waking up costs it more than reading them. Intervals below 1 s are too
    short for that; their heartbeats are evenly spaced.
    """
    interval_s = beat_interval_s(grace_s)
    if interval_s < _SHORT_INTERVAL_S:
        return interval_s
    return interval_s - (wall_clock_s + interval_s) % _BEAT_TIMES_S


def _may_pass(error: DataPlaneError) -> bool:
    """Whether the server could not be reached, and said nothing that is final."""
    return isinstance(error, UnavailableError) or type(error) is DeadlineError


def _future() -> Future[Any]:
    """A future that whoever waits for it cannot cancel."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


_keepers: weakref.WeakValueDictionary[int, _Keeper] = weakref.WeakValueDictionary()


def live_sessions() -> int:
    """Sessions of this process that live as far as is known."""
    return sum(bool(keeper.session_id) for keeper in _own_keepers())


def _own_keepers() -> list[_Keeper]:
    """A forked child has keepers of its parent's, too. The references are listed at once: threads come and go."""
    keepers = [reference() for reference in _keepers.valuerefs()]
    return [keeper for keeper in keepers if keeper is not None and keeper.pid == os.getpid()]


@atexit.register
def _close_all() -> None:
    """Give back what clients that nobody closed still hold, before the interpreter takes their threads away."""
    closing = [keeper.close() for keeper in _own_keepers()]
    concurrent.futures.wait(closing, CLOSE_S)
