"""Sessions: the clients that hold claims and reserved groups, and when each expires.

A session expires when no heartbeat came for its grace. A broken stream alone changes nothing: the client has its grace
to come back. So one rule covers a client that was killed, one that was stopped, and one that cannot be reached. A
client that sends heartbeats may hold rows for hours.

Time in which the server itself stood still does not count: heartbeats that arrived meanwhile have not been read yet.
`expired` receives the length of the stall and adds it to every session's grace, once.

Deadlines are in a heap that heartbeats do not touch: an entry that comes up is compared with its session's deadline,
and goes back if a heartbeat has moved it. So a heartbeat is one dict look-up. Entries of closed sessions are removed
when they outnumber the others.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from dataplane_server.core.calls.answers import SessionInfo
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal, session_expired
from dataplane_server.core.calls.requests import OpenSession
from dataplane_server.core.state import issued_ids

_REMEMBERED_NAMES = 256
"""Clients whose session has ended."""


@dataclass(slots=True, eq=False)
class Session:
    """One client. number: of all that were opened. claims: ids of the claims that it holds, in order; `ClaimTable`
    maintains them. owner: the name of the caller who opened it.
    """

    session_id: str
    number: int
    client_name: str
    grace_s: float
    deadline: float
    claims: dict[str, None] = field(default_factory=dict)
    owner: str = ""

    def silent_s(self, now: float) -> float:
        """Since its last heartbeat, less what the server stood still meanwhile."""
        return now - (self.deadline - self.grace_s)


class Sessions:
    """Open sessions by id. `now` is monotonic, in seconds."""

    def __init__(self, limits: Limits, incarnation: str) -> None:
        self._limits = limits
        self.incarnation = incarnation
        self._sessions: dict[str, Session] = {}
        self._due: list[tuple[float, str]] = []
        self.opened = 0
        self.ended = {"closed": 0, "expired": 0}
        self._gone: OrderedDict[str, tuple[float, str]] = OrderedDict()  # by client's name: when and how it ended

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def open(self, call: OpenSession, now: float) -> SessionInfo:
        """Open a session, or resume an open one. Refusal SESSION_EXPIRED if it is not open."""
        if call.session_id:
            session = self.find(call.session_id)
            self.heartbeat(call.session_id, now)
            return SessionInfo(call.session_id, session.grace_s)
        client_name, grace_s = call.client_name, self.checked_grace(call)
        limit = self._limits.max_sessions
        if len(self._sessions) >= limit:
            raise Refusal(Reason.LIMIT_REACHED, f"{limit} sessions are open already", max_sessions=limit)
        self.opened += 1
        session_id = issued_ids.session_id(self.incarnation, self.opened)
        session = Session(session_id, self.opened, client_name, grace_s, now + grace_s, owner=call.owner)
        self._sessions[session.session_id] = session
        heapq.heappush(self._due, (session.deadline, session.session_id))
        return SessionInfo(session.session_id, grace_s)

    def heartbeat(self, session_id: str, now: float) -> bool:
        """Extend a session by its grace. Returns whether it is open."""
        session = self._sessions.get(session_id)
        if session is None:
            return False
        session.deadline = max(session.deadline, now + session.grace_s)
        return True

    def renew(self, now: float) -> None:
        """Give every session its grace from now on."""
        for session in self._sessions.values():
            session.deadline = max(session.deadline, now + session.grace_s)

    def find(self, session_id: str) -> Session:
        """An open session. Refusal SESSION_EXPIRED if it is not open."""
        try:
            return self._sessions[session_id]
        except KeyError:
            raise session_expired(session_id) from None

    def name(self, session_id: str) -> str:
        """The client's name; empty if the session is not open."""
        session = self._sessions.get(session_id)
        return "" if session is None else session.client_name

    def owner(self, session_id: str) -> str | None:
        """The name of the caller who opened a session; None if it is not open."""
        session = self._sessions.get(session_id)
        return None if session is None else session.owner

    def names(self) -> set[str]:
        """The clients with an open session."""
        return {session.client_name for session in self._sessions.values()}

    def gone(self, client_name: str) -> tuple[float, str] | None:
        """When and how the last session of a client's name ended: "closed" or "expired"; None if it is not remembered.
        Another one may be open.
        """
        return self._gone.get(client_name)

    def close(self, session_id: str, now: float) -> Session | None:
        """End a session, if it is open. The caller releases what it held."""
        return self._end(session_id, "closed", now)

    def expire(self, session: Session, now: float) -> None:
        """End an open session, at its deadline or, since it holds nothing, before."""
        self._end(session.session_id, "expired", now)

    def _end(self, session_id: str, how: str, now: float) -> Session | None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return None
        self.ended[how] += 1
        self._gone[session.client_name] = now, how
        self._gone.move_to_end(session.client_name)
        if len(self._gone) > _REMEMBERED_NAMES:
            self._gone.popitem(last=False)
        if len(self._due) > 2 * len(self._sessions):
            self._due = [(each.deadline, each.session_id) for each in self._sessions.values()]
            heapq.heapify(self._due)
        return session

    def expired(self, now: float, stalled_s: float) -> list[Session]:
        """Remove and return the sessions that have expired by now, in the order of their deadlines. The caller releases
        what they held.
        """
        if stalled_s > 0:
            for session in self._sessions.values():
                session.deadline += stalled_s
        gone: list[Session] = []
        while self._due and self._due[0][0] <= now:
            session_id = heapq.heappop(self._due)[1]
            found = self._sessions.get(session_id)
            if found is None:
                continue
            if found.deadline <= now:
                gone.append(found)
                self.expire(found, now)
            else:
                heapq.heappush(self._due, (found.deadline, session_id))
        return sorted(gone, key=lambda session: session.deadline)

    @property
    def next_due(self) -> float | None:
        """When to call `expired` next; None if no session is open."""
        return self._due[0][0] if self._due else None

    def checked_grace(self, call: OpenSession) -> float:
        """The grace of a session that may be opened, if there is room. Refusal INVALID_REQUEST."""
        limits, client_name, grace_s = self._limits, call.client_name, call.grace_s
        if len(client_name.encode()) > limits.max_id_bytes:
            message = f"a client name has at most {limits.max_id_bytes} bytes, got {client_name[:40]!r}..."
            raise Refusal(Reason.INVALID_REQUEST, message)
        if grace_s is None:
            return limits.default_grace_s
        if not limits.min_grace_s <= grace_s <= limits.max_grace_s:
            message = f"grace must be {limits.min_grace_s:g} to {limits.max_grace_s:g} seconds, got {grace_s:g}"
            raise Refusal(Reason.INVALID_REQUEST, message)
        return grace_s
