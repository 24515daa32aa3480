"""Which stream speaks for which session, and what the log says of sessions.

A stream is only the way on which signs of life come. When it breaks its session goes on, and may be resumed on another
stream; when the session dies its stream is ended, if it is still there: its client was stopped, and hears of it when it
wakes up.
"""

from __future__ import annotations

from dataplane_server.core.calls import SessionExpired
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.observe.log import get_log
from dataplane_server.service.endless import Call, EndlessCalls
from rl_dataplane.v1 import data_plane_pb2 as pb


class SessionStreams:
    """Streams of sessions, by id; one for each at most."""

    def __init__(self, endless: EndlessCalls) -> None:
        self._endless = endless
        self._streams: dict[str, Call] = {}
        self._log = get_log()

    def enter(self, session_id: str, opened: pb.OpenSession, stream: Call) -> None:
        """The stream speaks for the session from here on; another one that did is ended."""
        former = self._streams.get(session_id)
        self._streams[session_id] = stream
        if former is not None:
            message = f"another stream of session {session_id!r} took this one's place"
            self._endless.end(former, Refusal(Reason.SUPERSEDED, message, session_id=session_id))
        self._log.debug(
            "session_opened", session=session_id, client=opened.client_name, resumed=bool(opened.session_id)
        )

    def leave(self, session_id: str, stream: Call) -> None:
        """The stream has ended, for whatever reason."""
        if self._streams.get(session_id) is stream:
            del self._streams[session_id]

    def closed(self, session_id: str) -> None:
        """The client has closed its session."""
        self._log.debug("session_closed", session=session_id)

    def expired(self, effect: SessionExpired) -> None:
        """Log that a session has expired, and end its stream."""
        self._log.warning(
            "session_expired",
            session=effect.session_id,
            client=effect.client_name,
            silent_s=round(effect.silent_s, 3),
            claims=effect.claims,
            rows=effect.rows,
            groups=effect.groups,
        )
        stream = self._streams.get(effect.session_id)
        if stream is not None:
            self._endless.end(stream, session_expired(effect.session_id))


def session_expired(session_id: str) -> Refusal:
    message = f"session {session_id!r} is not open: it expired (no heartbeat within its grace period) or was closed"
    return Refusal(Reason.SESSION_EXPIRED, message, session_id=session_id)
