"""The stream of each open session, and the log events of sessions.

A stream only carries heartbeats. When it breaks, its session stays open and may be resumed on another stream. When a
session expires, its stream is ended if it is still open: the client was paused, and receives the error when it resumes.
"""

from __future__ import annotations

from dataplane_server.core.calls.answers import SessionExpired
from dataplane_server.core.calls.refusal import Reason, Refusal, session_expired
from dataplane_server.log import get_log
from dataplane_server.service.endless import Call, EndlessCalls
from rl_dataplane.v1 import data_plane_pb2 as pb


class SessionStreams:
    """Streams by session id, at most one for each session."""

    def __init__(self, endless: EndlessCalls) -> None:
        self._endless = endless
        self._streams: dict[str, Call] = {}
        self._log = get_log()

    def enter(self, session_id: str, opened: pb.OpenSession, stream: Call) -> None:
        """Make this the stream of a session, and end the one that was."""
        former = self._streams.get(session_id)
        self._streams[session_id] = stream
        if former is not None:
            message = f"another stream of session {session_id!r} replaced this one"
            self._endless.end(former, Refusal(Reason.SUPERSEDED, message, session_id=session_id))
        self._log.debug(
            "session_opened", session=session_id, client=opened.client_name, resumed=bool(opened.session_id)
        )

    def leave(self, session_id: str, stream: Call) -> None:
        """Forget a stream that has ended."""
        if self._streams.get(session_id) is stream:
            del self._streams[session_id]

    def closed(self, session_id: str) -> None:
        """Log that a client has closed its session."""
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
