"""Calls that grant something to a client's session: claims, shards, reserved groups.

A session that has expired is replaced: a call that is refused for it (SESSION_EXPIRED) changed nothing and is repeated
for a new session. If the caller does not take the answer (it was cancelled or out of time, or the connection broke for
good), the session's thread undoes the grant. A shard stays with its step, for the next call that asks for it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from dataplane_client._connect.deadline import ANSWER_MARGIN_S, WAITING_VERBS, Deadline, backoff_pauses, unanswered
from dataplane_client._connect.options import ClientOptions
from dataplane_client._connect.session import CLOSE_S, LivenessSession
from dataplane_client._requests.requests import new_request_id
from dataplane_client._verbs._sync.runtime import result_of, sleep
from dataplane_client._verbs._sync.transport import Transport
from dataplane_client.errors import (
    ClosedError,
    DataPlaneError,
    DeadlineError,
    InternalError,
    SessionExpiredError,
    UnavailableError,
)
from rl_dataplane.v1 import data_plane_pb2 as pb

T = TypeVar("T")


class Session:
    """The session of one client, and its transport. What is pickled with a client or a group: another process gets a
    session of its own, which is opened there when it is first needed.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._liveness = LivenessSession(transport.target, transport.options)

    @property
    def is_open(self) -> bool:
        """Whether this process has an open session, as far as it knows."""
        return not self.transport.closed and bool(self._liveness.session_id)

    def __reduce__(self) -> tuple[object, ...]:
        if self.transport.closed:
            raise ClosedError(f"the client of {self.transport.target} was closed and cannot be pickled")
        return reopened_session, (self.transport.target, self.transport.options)

    def close(self) -> None:
        """End the session and its thread; the server releases at once what the session held. Takes at most CLOSE_S
        seconds.
        """
        with contextlib.suppress(TimeoutError):  # the thread then ends later
            result_of(self._liveness.close(), CLOSE_S)

    def session_id(self, deadline: Deadline, stale: str = "") -> str:
        """The id of an open session, which is opened if there is none. stale: the id of an expired one, not returned.

        Raises UnavailableError when the server does not answer before the deadline, and the error with which the server
        refuses to open a session.
        """
        current = self._liveness.session_id
        if current and current != stale:
            return current
        opened = self._liveness.open_session(stale, deadline)
        try:
            return result_of(opened, deadline.left_s + ANSWER_MARGIN_S)
        except DataPlaneError:
            raise  # the server's refusal, which may be a TimeoutError
        except TimeoutError:
            late = UnavailableError(f"Session at {self.transport.target}: no answer before the deadline")
            raise unanswered(late, self._liveness.failure) from None

    def request_grant(self, verb: str, request: Any, timeout_s: float | None, taken: Callable[[Any], T]) -> T:
        """Make a call that grants something. Sets session_id and request_id of the request. taken: makes of the answer
        what gives the grant up when it is dropped; until it has, the grant is undone.
        """
        deadline = self.transport.deadline(timeout_s)
        pauses = backoff_pauses(self.transport.options)
        stale, again = "", False
        while True:
            request.session_id = self.session_id(deadline, stale)
            request.request_id = new_request_id()  # the answer to the last one would be for the expired session
            try:
                return taken(self.transport.unary(verb, request, deadline.left_s, waits=verb in WAITING_VERBS))
            except SessionExpiredError:
                pause_s = next(pauses)
                if again and deadline.left_s <= pause_s:
                    raise
            except BaseException as error:
                # AdoptClaim has an undo of its own; a request that never got its wait_timeout was never sent.
                if verb != "AdoptClaim" and request.HasField("wait_timeout") and _may_have_been_granted(error):
                    self.call_later(*_undo_of(request))
                raise
            if again:
                sleep(pause_s)
            stale, again = request.session_id, True

    def call_later(self, verb: str, request: Any) -> None:
        """Have the session's thread make a call that ends a hold, repeatedly until it is answered or the session ends.
        Does not block.
        """
        self._liveness.undo(lambda stub, timeout_s: getattr(stub, verb)(request, timeout=timeout_s))

    def call_from_finalizer(self, verb: str, request: Any) -> None:
        """As call_later, for a finalizer, which may run while any lock is held. Does nothing without a session."""
        self._liveness.undo_from_finalizer(lambda stub, timeout_s: getattr(stub, verb)(request, timeout=timeout_s))


def reopened_session(target: str, options: ClientOptions) -> Session:
    """The session for all clients of these settings that this process has unpickled, or connects later."""
    key = (os.getpid(), target, options)
    with _reopening:
        session = _reopened.get(key)
        if session is None or session.transport.closed:
            session = _reopened[key] = Session(Transport(target, options))
        return session


_reopened: weakref.WeakValueDictionary[tuple[int, str, ClientOptions], Session] = weakref.WeakValueDictionary()
_reopening = threading.Lock()


def _may_have_been_granted(error: BaseException) -> bool:
    """Whether the server may have granted, or may still grant, what a call asked for that ended with this error."""
    return (
        not isinstance(error, DataPlaneError)
        or isinstance(error, (UnavailableError, ClosedError, InternalError))
        or type(error) is DeadlineError
    )


def _undo_of(request: pb.ClaimSamplesRequest | pb.ClaimShardRequest | pb.ReserveGroupRequest) -> tuple[str, Any]:
    """The call that gives up what a request was, or may still be, granted."""
    undo_id, given_up = new_request_id(), request.request_id
    if isinstance(request, pb.ReserveGroupRequest):
        return "AbortGroup", pb.AbortGroupRequest(request_id=undo_id, reserve_request_id=given_up, reason="not taken")
    return "ReleaseClaim", pb.ReleaseClaimRequest(request_id=undo_id, claim_request_id=given_up)
