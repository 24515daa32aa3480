"""Sessions: who holds claims and reserved groups, and since when nothing was heard of it.

A session lives as long as its last sign of life is younger than its grace. A broken stream changes nothing by itself:
the client has until then to come back, and one that was killed is silent from there on. So one rule covers a client
that died, one that was stopped, and one that cannot be reached; a client that sends heartbeats may hold rows for hours.

Time in which the server itself stood still counts for nobody: signs of life that came meanwhile have not been read yet.
`expired` is told how long that was and adds it to every session's grace, once.

Deadlines stand in a heap in which a heartbeat changes nothing: an entry that comes up is looked at again, and goes back
if its session has been heard of since. A heartbeat is one dict lookup. Entries of closed sessions are swept out when
they are as many as the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from dataplane_server.core.calls import SessionInfo
from dataplane_server.core.limits import Limits
from dataplane_server.core.refusal import Reason, Refusal


@dataclass(slots=True, eq=False)
class Session:
    """One client. claims and groups: what it holds, by id, in order; for those who keep them to fill."""

    session_id: str
    client_name: str
    grace_s: float
    deadline: float
    claims: dict[str, None] = field(default_factory=dict)
    groups: dict[str, None] = field(default_factory=dict)


class Sessions:
    """Sessions that live, by id. `now` is monotonic, in seconds."""

    def __init__(self, limits: Limits, incarnation: str) -> None:
        self._limits = limits
        self._incarnation = incarnation
        self._sessions: dict[str, Session] = {}
        self._due: list[tuple[float, str]] = []
        self.opened = 0
        self.ended = {"closed": 0, "expired": 0}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def open(self, session_id: str, client_name: str, grace_s: float | None, now: float) -> SessionInfo:
        """Open a session, or resume one that still lives (whose grace stays). Refusal SESSION_EXPIRED otherwise."""
        if session_id:
            session = self.find(session_id)
            self.heard(session_id, now)
            return SessionInfo(session_id, session.grace_s)
        grace_s = self._checked_grace(grace_s)
        if len(client_name.encode()) > self._limits.max_id_bytes:
            message = f"a client name has at most {self._limits.max_id_bytes} bytes, got {client_name[:40]!r}..."
            raise Refusal(Reason.INVALID_REQUEST, message)
        limit = self._limits.max_sessions
        if len(self._sessions) >= limit:
            raise Refusal(Reason.LIMIT_REACHED, f"{limit} sessions are open already", max_sessions=limit)
        self.opened += 1
        session = Session(f"{self._incarnation}-s{self.opened}", client_name, grace_s, now + grace_s)
        self._sessions[session.session_id] = session
        heapq.heappush(self._due, (session.deadline, session.session_id))
        return SessionInfo(session.session_id, grace_s)

    def heard(self, session_id: str, now: float) -> bool:
        """Note a sign of life; whether the session lives."""
        session = self._sessions.get(session_id)
        if session is None:
            return False
        session.deadline = max(session.deadline, now + session.grace_s)
        return True

    def find(self, session_id: str) -> Session:
        """Refusal SESSION_EXPIRED when it does not live."""
        try:
            return self._sessions[session_id]
        except KeyError:
            message = f"session {session_id[:256]!r} does not live: it was silent for its grace, or was closed"
            raise Refusal(Reason.SESSION_EXPIRED, message, session_id=session_id) from None

    def name(self, session_id: str) -> str:
        """Who the session's client is; empty when it is gone."""
        session = self._sessions.get(session_id)
        return "" if session is None else session.client_name

    def close(self, session_id: str) -> Session | None:
        """End a session, if it lives. The caller ends what it held."""
        session = self._sessions.pop(session_id, None)
        self.ended["closed"] += session is not None
        if session is not None and len(self._due) > 2 * len(self._sessions):
            self._due = [(session.deadline, session.session_id) for session in self._sessions.values()]
            heapq.heapify(self._due)
        return session

    def expired(self, now: float, stalled_s: float) -> list[Session]:
        """Sessions that have died by now, in the order of their deaths; they are no longer here, and the caller ends
        what they held.
        """
        if stalled_s > 0:
            for session in self._sessions.values():
                session.deadline += stalled_s
        dead: list[Session] = []
        while self._due and self._due[0][0] <= now:
            session_id = heapq.heappop(self._due)[1]
            found = self._sessions.get(session_id)
            if found is None:
                continue
            if found.deadline <= now:
                dead.append(self._sessions.pop(session_id))
            else:
                heapq.heappush(self._due, (found.deadline, session_id))
        self.ended["expired"] += len(dead)
        return sorted(dead, key=lambda session: session.deadline)

    @property
    def next_due(self) -> float | None:
        """When to ask for `expired` next; None while nothing can be due."""
        return self._due[0][0] if self._due else None

    def _checked_grace(self, grace_s: float | None) -> float:
        limits = self._limits
        if grace_s is None:
            return limits.default_grace_s
        if not limits.min_grace_s <= grace_s <= limits.max_grace_s:
            message = f"a grace is {limits.min_grace_s:g} to {limits.max_grace_s:g} seconds, got {grace_s:g}"
            raise Refusal(Reason.INVALID_REQUEST, message)
        return grace_s
