"""What there is: partitions, sessions, claims, groups, who waits, and what was answered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.core.machine.arena import Arena
from tests.core.machine.partition import PartitionModel
from tests.core.machine.refusals import No, refuse_if
from tests.core.machine.things import Answer, Claim, Group, Handed, Read, Row, Session, Wait, Wish, Write

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason


@dataclass(eq=False)
class Effects:
    """What callers that wait must be told, in order."""

    granted: list[tuple[int, Wish, Handed]] = field(default_factory=list)
    failed: list[tuple[int, set[Reason]]] = field(default_factory=list)
    ended: list[tuple[int, Wish]] = field(default_factory=list)
    """Calls that no rows will come for."""
    answered: list[tuple[int, object, object]] = field(default_factory=list)
    """Groups and draws that waited: ticket, call, what it gets."""
    died: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Sessions, with the claims that ended with each, their rows, and its groups."""


BY_SERVER = ("expired", "reset")


class Facts:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.now = 0.0
        self.partitions: dict[str, PartitionModel] = {}
        self.sessions: list[Session] = []
        self.claims: list[Claim] = []  # ever handed out
        self.groups: list[Group] = []  # ever reserved
        self.late: dict[str, int] = {}  # rows of groups that were finished at their deadline, by reservation
        self.waiting: list[Wait] = []  # longest waiting first
        self.writes: list[Write] = []  # in order of arrival
        self.reads: dict[int, Read] = {}
        self.former: list[Read] = []  # that clients of a former server may still make
        self.arena = Arena(limits.memory_bytes)
        self.draining = False
        self.touched: dict[PartitionModel, None] = {}  # whose rows, tasks or entrance have changed in this turn
        self.effects = Effects()
        self.answers: dict[str, Answer] = {}  # by request id

    # -- what is there -------------------------------------------------------------------------------------------------

    def partition(self, partition_id: str) -> PartitionModel:
        refuse_if((partition_id not in self.partitions, Reason.PARTITION_NOT_FOUND))
        return self.partitions[partition_id]

    def session(self, session_id: str) -> Session | None:
        """None for the session of nobody."""
        if not session_id:
            return None
        for session in self.sessions:
            if session.session_id == session_id:
                return session
        raise No(Reason.SESSION_EXPIRED)

    def claim_of(self, claim_id: str) -> Claim:
        claims = [claim for claim in self.claims if claim_id and claim.claim_id == claim_id]
        refuse_if((not claims, Reason.CLAIM_NOT_FOUND))
        refuse_if((claims[0].ended in BY_SERVER, Reason.CLAIM_FENCED))
        refuse_if((bool(claims[0].ended), Reason.CLAIM_NOT_FOUND))
        return claims[0]

    def group_of(self, reservation_id: str) -> Group:
        for group in self.groups:
            if group.reservation_id == reservation_id and group.state == "reserved":
                return group
        raise No(Reason.GROUP_FENCED)

    def open_claims(self) -> list[Claim]:
        return [claim for claim in self.claims if not claim.ended]

    def recall(self, request_id: str, verb: str, asked: str = "") -> Answer | None:
        """What this request was answered, as far as that is remembered. asked: what it asks for; empty for anything."""
        answer = self.answers.get(request_id)
        if answer is None or self.now - answer.at > self.limits.remember_s:
            return None
        another = bool(asked and answer.asked) and answer.asked != asked
        refuse_if((answer.verb != verb or another, Reason.REQUEST_ID_USED))
        return answer

    def callers(self) -> list[tuple[int, Wish]]:
        """All who wait, with their tickets."""
        return [caller for wait in self.waiting for caller in wait.callers]

    def waiting_on(self, partition_id: str) -> list[Wait]:
        return [wait for wait in self.waiting if wait.wish.partition_id == partition_id]

    # -- description ---------------------------------------------------------------------------------------------------

    def waiting_by_task(self, partition_id: str) -> Counter[str]:
        return Counter(wait.wish.task for wait in self.waiting_on(partition_id))

    def claim_ids(self, row: Row) -> dict[str, str]:
        """The open claims of a row, by task."""
        return {claim.task: claim.claim_id for claim in self.open_claims() if row in claim.left()}

    @property
    def rows(self) -> int:
        return sum(len(partition.rows) for partition in self.partitions.values())
