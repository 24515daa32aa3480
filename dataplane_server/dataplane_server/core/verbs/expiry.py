"""What happens because time passes: sessions expire, delays end, deadlines of groups pass.

Sessions that hold nothing make room: when there are as many as may be, those that have been silent for longest, and for
longer than the default grace, expire for a new one.

What a session held is released in this order: its queued calls first, so that nothing new is granted to it, then its
claims, then its groups. When several sessions expire at once, the queued calls of all of them end before any row is
released, or a row of the first could be granted to a claim of the second.
"""

from __future__ import annotations

import heapq

from dataplane_server.core.calls.answers import SessionExpired, SessionInfo
from dataplane_server.core.calls.requests import CloseSession, OpenSession
from dataplane_server.core.state.delays import Due
from dataplane_server.core.state.sessions import Session
from dataplane_server.core.state.state import State
from dataplane_server.core.verbs.claim_queue import ClaimQueue
from dataplane_server.core.verbs.claims import Claims
from dataplane_server.core.verbs.flow import Flow
from dataplane_server.core.verbs.groups import Groups

_EXPIRED_TOGETHER = 64
"""Sessions that make room at once: to find one takes as long."""


class Expiry:
    """Ends sessions and delays. `now` is monotonic, in seconds."""

    def __init__(self, state: State, queue: ClaimQueue, claims: Claims, groups: Groups, flow: Flow) -> None:
        self._state = state
        self._flow = flow
        self._queue = queue
        self._claims = claims
        self._groups = groups

    def open(self, call: OpenSession, now: float) -> SessionInfo:
        """Open or resume a session. Refusals as `Sessions.open`."""
        if not call.session_id and len(self._state.sessions) >= self._state.limits.max_sessions:
            self._state.sessions.checked_grace(call)
            self._make_room(now)
        return self._state.sessions.open(call, now)

    def _make_room(self, now: float) -> None:
        """Expire sessions that hold nothing and wait for nothing."""
        busy = {*self._groups.sessions(), *self._queue.sessions(), *self._flow.sessions()}
        most_s = self._state.limits.default_grace_s
        idle = [
            session
            for session in self._state.sessions
            if not session.claims and session.silent_s(now) > most_s and session.session_id not in busy
        ]
        for session in heapq.nlargest(_EXPIRED_TOGETHER, idle, key=lambda session: session.silent_s(now)):
            self._state.sessions.expire(session, now)
            self.expire(session, now)

    def close(self, call: CloseSession, now: float) -> None:
        session = self._state.sessions.close(call.session_id, now)
        if session is not None:
            self._fail_calls(session)
            self._release(session, expired=False)

    def expired(self, now: float, stalled_s: float) -> list[Session]:
        """The sessions that expire now. Their queued calls have failed."""
        expired = self._state.sessions.expired(now, stalled_s)
        for session in expired:
            self._fail_calls(session)
        return expired

    def _fail_calls(self, session: Session) -> None:
        self._queue.fail_session(session.session_id)
        self._flow.fail_session(session.session_id)

    def expire(self, session: Session, now: float) -> None:
        """Release what an expired session held."""
        claims, rows, groups = self._release(session, expired=True)
        of_session = (session.session_id, session.client_name, session.silent_s(now))
        self._state.effects.append(SessionExpired(-1, *of_session, claims, rows, groups))

    def end_delay(self, due: Due) -> None:
        """Return rows whose delay is over to their task, first in the queue."""
        partition = self._state.partitions.get(due.partition_id)
        if partition is not None and due.task in partition.tasks:
            partition.tasks[due.task].end_delay(due.slots, due.at)

    @property
    def next_due(self) -> float | None:
        state = self._state
        dues = (state.sessions.next_due, state.delays.next_due, state.deadlines.next_due, self._flow.next_due)
        return min((due for due in dues if due is not None), default=None)

    def _release(self, session: Session, *, expired: bool) -> tuple[int, int, int]:
        """Release what a session held. Returns the numbers of claims, of their rows, and of groups."""
        claims, rows = self._claims.end_session(session, expired=expired)
        return claims, rows, self._groups.end_session(session.session_id, session.client_name)
