"""The end of sessions, and everything else that happens because time has passed.

What a session held is given back in the order in which it may be missed: its waits first, so that nothing is handed to
it any more, then its claims, then its groups.
"""

from __future__ import annotations

from dataplane_server.core.calls import SessionDied
from dataplane_server.core.claim_line import ClaimLine
from dataplane_server.core.claims import ClaimDesk
from dataplane_server.core.groups import Groups
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.sessions import Session
from dataplane_server.core.state import State
from dataplane_server.core.steps import StepDesk


class SessionDesk:
    """Ends sessions and delays. `now` is monotonic, in seconds."""

    def __init__(self, state: State, line: ClaimLine, claims: ClaimDesk, steps: StepDesk, groups: Groups) -> None:
        self._state = state
        self._line = line
        self._claims = claims
        self._steps = steps
        self._groups = groups

    def close(self, session_id: str, now: float) -> None:
        """End a session whose client says so; unknown ones are fine."""
        session = self._state.sessions.close(session_id)
        if session is not None:
            self._end(session, now, died=False)

    def advance(self, now: float, stalled_s: float) -> None:
        """Do what is due by now."""
        for session in self._state.sessions.expired(now, stalled_s):
            claims, rows, groups = self._end(session, now, died=True)
            silent_s = now - session.deadline + session.grace_s
            self._state.effects.append(
                SessionDied(-1, session.session_id, session.client_name, silent_s, claims, rows, groups)
            )
        for due in self._state.delays.due(now):
            partition = self._state.partitions.get(due.partition_id)
            if partition is not None and due.task in partition.tasks:
                partition.tasks[due.task].end_delay(due.slots, due.at)
                self._line.serve(partition, now)

    @property
    def next_due(self) -> float | None:
        dues = (self._state.sessions.next_due, self._state.delays.next_due)
        return min((due for due in dues if due is not None), default=None)

    def _end(self, session: Session, now: float, *, died: bool) -> tuple[int, int, int]:
        """Give back what a session held; how many claims, rows of them, and groups."""
        refusal = Refusal(Reason.SESSION_EXPIRED, f"session {session.session_id!r} has ended while the claim waited")
        self._line.fail_session(session.session_id, refusal)
        self._steps.session_ended(session.session_id, refusal, now)
        claims, rows = self._claims.session_ended(session, now, died=died)
        return claims, rows, self._groups.session_ended(session, now)
