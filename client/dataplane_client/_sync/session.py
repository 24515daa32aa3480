"""Calls that hand something out to a client, in the name of its session: claims, shards, reserved groups.

A session that has died is replaced: a call that is refused for it (SESSION_EXPIRED) changed nothing, and is made again
in the name of a new one. What an answer that nobody takes has handed out (its caller was cancelled or out of time, the
connection broke for good) is taken back by the session's thread. A shard stays with its step, for whoever asks again.
"""

from __future__ import annotations

import contextlib
from typing import Any

from dataplane_client._deadline import ANSWER_MARGIN_S, Deadline, backoff_pauses
from dataplane_client._requests import new_request_id
from dataplane_client._session import CLOSE_S, LivenessSession, Undo
from dataplane_client._sync.runtime import result_of, sleep
from dataplane_client._sync.transport import Transport
from dataplane_client.errors import (
    ClosedError,
    DataPlaneError,
    DeadlineError,
    InternalError,
    SessionExpiredError,
    UnavailableError,
)
from rl_dataplane.v1 import data_plane_pb2 as pb


class Session:
    """The session of one client, and its transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._liveness = LivenessSession(transport.target, transport.options)

    def close(self) -> None:
        """End the session and its thread; the server gives back at once what it held. Takes at most CLOSE_S seconds."""
        with contextlib.suppress(TimeoutError):  # then the thread ends by itself
            result_of(self._liveness.close(), CLOSE_S)

    def session_id(self, deadline: Deadline, stale: str = "") -> str:
        """The session's id, other than that of a dead one. It is opened where there is none.

        Raises UnavailableError when the server does not answer until the deadline, and what it refuses to open.
        """
        current = self._liveness.session_id
        if current and current != stale:
            return current
        opened = self._liveness.wanted(stale, deadline)
        try:
            return result_of(opened, deadline.left_s + ANSWER_MARGIN_S)
        except TimeoutError:
            raise UnavailableError(f"Session at {self.transport.target}: no answer in time") from None

    def hand_out(self, verb: str, request: Any, timeout_s: float | None, *, waits: bool = False) -> Any:
        """Make a call whose request has a session_id and a request_id, which are set here."""
        deadline = Deadline(self.transport.options.timeout_s if timeout_s is None else timeout_s)
        pauses = backoff_pauses(self.transport.options)
        stale, again = "", False
        while True:
            request.session_id = self.session_id(deadline, stale)
            request.request_id = new_request_id()  # an answer to an earlier one would be of the session that has died
            try:
                return self.transport.unary(verb, request, deadline.left_s, waits=waits)
            except SessionExpiredError:
                pause_s = next(pauses)
                if again and deadline.left_s <= pause_s:
                    raise
            except BaseException as error:
                if _may_have_happened(error):
                    self._liveness.undo(_undo_of(verb, request))
                raise
            if again:
                sleep(pause_s)
            stale, again = request.session_id, True

    def repeat(self, verb: str, request: Any) -> None:
        """Have the session's thread make a call that ends something, until it is answered or the session ends."""
        self._liveness.undo(lambda stub, timeout_s: getattr(stub, verb)(request, timeout=timeout_s))


def _may_have_happened(error: BaseException) -> bool:
    """Whether a call that ended so may have handed something out, or may do so yet."""
    return (
        not isinstance(error, DataPlaneError)
        or isinstance(error, (UnavailableError, ClosedError, InternalError))
        or type(error) is DeadlineError
    )


def _undo_of(verb: str, request: Any) -> Undo:
    return _undo_of_reservation(request) if verb == "ReserveGroup" else _undo_of_claim(request)


def _undo_of_claim(request: pb.ClaimSamplesRequest | pb.ClaimShardRequest) -> Undo:
    release = pb.ReleaseClaimRequest(request_id=new_request_id(), claim_request_id=request.request_id)
    return lambda stub, timeout_s: stub.ReleaseClaim(release, timeout=timeout_s)


def _undo_of_reservation(request: pb.ReserveGroupRequest) -> Undo:
    request_id = new_request_id()

    def undo(stub: Any, timeout_s: float) -> None:
        """Asking again tells the name of the reservation; one that was not made is made, for a moment."""
        reservation_id = stub.ReserveGroup(request, timeout=timeout_s).reservation_id
        abort = pb.AbortGroupRequest(request_id=request_id, reservation_id=reservation_id, reason="not taken")
        stub.AbortGroup(abort, timeout=timeout_s)

    return undo
