"""What the explanations of waits share: who did something last, and how long ago; who is gone; who holds rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from dataplane_server.core.calls.causes import ExplainedWait, Finding, Waiting, counted, seconds_text
from dataplane_server.core.state.claim_table import ClaimTable, OpenClaim
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import State
from dataplane_server.core.stats.history import Happening, History
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import CLAIMED, UNTAKEN
from dataplane_server.core.verbs.steps import Steps

NEW_ROWS = ("put", "reserved", "ready")
"""What brings rows, in the history."""
WRITES = ("put", "appended", "wrote_back")
_CLAIMS = ("claimed", "committed")
_NAMED_HOLDERS = 3


class WaitingCall(NamedTuple):
    """What waits. calls: how many wait alike. since: when the first began to; None if that is not known. aim: what for,
    in words.
    """

    partition_id: str
    task: str
    waiting: Waiting
    client: str
    calls: int
    since: float | None
    wanted: int
    aim: str

    def explained(self, findings: Sequence[Finding], now: float) -> ExplainedWait:
        """The wait with its causes, the main one first, and a sentence."""
        waits_s = None if self.since is None else max(now - self.since, 0.0)
        time = "" if waits_s is None else f" {seconds_text(waits_s)}"
        summary = f"{repr(self.client) if self.client else 'a client'} waits{time} {self.aim}: {findings[0].text}"
        return ExplainedWait(*self[:5], waits_s, self.wanted, summary, tuple(findings))


class Evidence:
    """Looks things up for one explanation, at one time (monotonic, s)."""

    def __init__(self, state: State, table: ClaimTable, steps: Steps, history: History, now: float) -> None:
        self.now = now
        self.steps = steps
        self._state = state
        self._table = table
        self._history = history
        self._latest: dict[str, list[Happening]] = {}
        self._open: set[str] | None = None

    def name(self, session_id: str) -> str:
        return self._state.sessions.name(session_id)

    def last(self, partition: Partition, what: Collection[str], task: str = "", field: str = "") -> Happening | None:
        """The last of such events that the history has. task, field: empty for any."""
        partition_id = partition.partition_id
        if partition_id not in self._latest:
            self._latest[partition_id] = self._history.latest(partition_id)
        for one in self._latest[partition_id]:
            if one.what in what and task in ("", one.task) and (not field or field in one.fields):
                return one
        return None

    def by_whom(self, last: Happening) -> str:
        """When and by whom something was done, and whether that client is gone."""
        return f"{self.ago(last.at)} ago" + (f" by {last.who!r}{self._fate(last.who)}" if last.who else "")

    def ago(self, at: float) -> str:
        return seconds_text(self.now - at)

    def is_gone(self, client_name: str) -> bool:
        """Whether the client had a session, and has none."""
        if self._open is None:
            self._open = self._state.sessions.names()
        return client_name not in self._open and self._state.sessions.gone(client_name) is not None

    def _fate(self, client_name: str) -> str:
        ended = self._state.sessions.gone(client_name)
        if ended is None or not self.is_gone(client_name):
            return ""
        at, how = ended
        return f", whose session {'expired' if how == 'expired' else 'ended'} {self.ago(at)} ago"

    # -- who keeps rows, and who does not take them --------------------------------------------------------------------

    def held(self, partition: Partition, task: Task, session_id: str) -> tuple[list[Finding], list[Finding]]:
        """The rows that open claims of a task hold: those of others, and those of a session itself."""
        claims = self._table.open_on(partition, task.name)
        own = [claim for claim in claims if session_id in claim.sessions]
        others = [claim for claim in claims if session_id not in claim.sessions]
        return self._held(others, ""), self._held(own, "this client")

    def _held(self, claims: Sequence[OpenClaim], who: str) -> list[Finding]:
        """The claims with most rows first."""
        held = sorted([(len(claim.left()), claim) for claim in claims], key=lambda pair: -pair[0])
        rows = sum(count for count, _ in held)
        if not rows:
            return []
        parts = [
            f"{counted(count, 'rows', 'are')} held by {who or self._holder(claim)} (claim {claim.claim_id!r}, for "
            f"{max(self.now - claim.since, 0.0):.0f} s)"
            for count, claim in held[:_NAMED_HOLDERS]
            if count
        ]
        if more := sum(count for count, _ in held[_NAMED_HOLDERS:]):
            others = counted(len(held) - _NAMED_HOLDERS, "other claims")
            parts.append(f"{counted(more, 'rows')} by {others}")
        oldest_s = self.now - min(claim.since for _, claim in held)
        return [Finding("claims_held", "; ".join(parts), {"rows": rows, "claims": len(held), "oldest_s": oldest_s})]

    def _holder(self, claim: OpenClaim) -> str:
        if not claim.sessions:
            return "a caller without a session"
        return "client " + " and ".join(repr(self.name(held_by)) for held_by in claim.sessions)

    def consumer_gone(self, partition: Partition, tasks: Collection[Task]) -> list[Finding]:
        """The task with most rows before it among those that no client takes rows of; none if there is no such."""
        found: list[tuple[int, Finding]] = []
        for task in tasks:
            counts = task.counts()
            rows = counts[UNTAKEN] - int(partition.rows["hidden"].sum())
            if rows <= 0 or counts[CLAIMED] or task.views.waiting():
                continue
            last, text = self.last(partition, _CLAIMS, task.name), ""
            if last is None and not partition.entrance.drawn_rows:
                text = "no client has claimed any, as far back as the server remembers"
            elif last is not None and self.is_gone(last.who):
                text = f"it was last claimed {self.by_whom(last)}"
            if text:
                text = f"task {task.name!r} has {counted(rows, 'rows')} before it, and {text}"
                finding = Finding(
                    "consumer_gone", text, {"rows": rows}, partition_id=partition.partition_id, task=task.name
                )
                found.append((rows, finding))
        return [max(found, key=lambda pair: pair[0])[1]] if found else []
