"""Open claims, the sessions that hold them, and how ended claims have ended.

Ended claims are remembered, up to a number, so that a late call learns what happened: its caller ended the claim
(CLAIM_NOT_FOUND) or the server did (CLAIM_FENCED). Committed shards are remembered as long as their steps. Of forgotten
claims only the highest fence is kept: a claim of this server life with a fence up to that one was granted once, and has
ended.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Epochs, Slots
from dataplane_server.core.state.issued_ids import number_of_claim
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import Fact, State
from dataplane_server.core.tasks.deliveries import How

_BY_CALLER: tuple[How, ...] = ("committed", "released", "abandoned")
_WHY: dict[How, str] = {
    "committed": "was committed",
    "released": "was released",
    "abandoned": "was abandoned by its caller",
    "expired": "ended because its session expired",
    "reset": "ended because its task was reset or its partition's definition was replaced",
}


@dataclass(slots=True, eq=False)
class OpenClaim:
    """An open claim: its rows and the sessions that hold it (none for a caller without a session). since: when it was
    granted (monotonic, s). shard: step and rank of a shard.
    """

    claim_id: str
    partition: Partition
    task: str
    slots: Slots
    epochs: Epochs
    sample_ids: tuple[str, ...]
    since: float
    shard: tuple[int, int] | None = None
    sessions: dict[str, None] = field(default_factory=dict)
    of_step: bool = False

    def left(self) -> Slots:
        """Its rows that still exist."""
        return self.partition.rows.left(self.slots, self.epochs)


@dataclass(frozen=True, slots=True, eq=False)
class _Ended:
    """How a claim ended, with how many rows. sample_ids: only of claims that the server ended, for the history.
    sessions: how many had been opened by then.
    """

    how: How
    rows: int
    of_step: bool
    partition_id: str
    task: str
    sample_ids: tuple[str, ...]
    sessions: int


class ClaimTable:
    """Claims by id. A claim and the sessions that hold it refer to each other."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._open: dict[str, OpenClaim] = {}
        self._ended: OrderedDict[str, _Ended] = OrderedDict()
        self._committed: dict[str, _Ended] = {}  # shards of steps that are remembered
        self._named: deque[tuple[str, int]] = deque()  # ended claims with sample ids, and how many
        self._named_rows = 0
        self._forgotten = 0  # the highest fence among ended claims that are no longer remembered

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenClaim]:
        return iter(list(self._open.values()))

    def check_room(self, waiting: int) -> None:
        """Refusal LIMIT_REACHED if no more claims may be open. waiting: calls that may yet get one."""
        most = self._state.limits.max_claims
        if len(self._open) + waiting >= most:
            message = f"{most} claims are open or wait, which is the limit (max_claims); commit or release some"
            raise Refusal(Reason.LIMIT_REACHED, message, max_claims=most)

    def add(self, claim: OpenClaim) -> None:
        self._open[claim.claim_id] = claim

    def hold(self, claim: OpenClaim, session_id: str) -> None:
        """The session holds the claim, perhaps beside others."""
        claim.sessions[session_id] = None
        self._state.sessions.find(session_id).claims[claim.claim_id] = None

    def release(self, claim: OpenClaim, session_id: str) -> None:
        """The session no longer holds the claim."""
        del claim.sessions[session_id]
        del self._state.sessions.find(session_id).claims[claim.claim_id]

    def end(self, claim: OpenClaim, how: How, rows: int) -> None:
        for session_id in list(claim.sessions):
            self.release(claim, session_id)
        del self._open[claim.claim_id]
        ids = () if how in _BY_CALLER else claim.sample_ids
        where = (claim.partition.partition_id, claim.task)
        ended = _Ended(how, rows, claim.of_step, *where, ids, self._state.sessions.opened)
        self._ended[claim.claim_id] = ended
        if claim.of_step and how == "committed":
            self._committed[claim.claim_id] = ended
        if len(self._ended) > self._state.limits.remembered_claims:
            forgotten, _ = self._ended.popitem(last=False)
            self._forgotten = max(self._forgotten, self._fence(forgotten))
        if ids:
            self._named.append((claim.claim_id, len(ids)))
            self._named_rows += len(ids)
            self._forget_ids()

    def leave_step(self, claim_id: str) -> None:
        """The step of a shard's claim is forgotten."""
        self._committed.pop(claim_id, None)
        if (claim := self._open.get(claim_id)) is not None:
            claim.of_step = False

    def _how_ended(self, claim_id: str) -> _Ended | None:
        """None if it is open, was never granted, or ended long ago."""
        return self._ended.get(claim_id) or self._committed.get(claim_id)

    def _forget_ids(self) -> None:
        """Keep as many sample ids of ended claims as the history keeps rows."""
        while self._named_rows > self._state.limits.remembered_events:
            claim_id, rows = self._named.popleft()
            self._named_rows -= rows
            if claim_id in self._ended:
                self._ended[claim_id] = replace(self._ended[claim_id], sample_ids=())

    def _fence(self, claim_id: str) -> int:
        """The number of a claim of this server life; 0 for anything else."""
        return number_of_claim(self._state.incarnation, claim_id)

    def report(self, what: str, claim: OpenClaim, left: Slots, reason: str = "", who: str = "") -> None:
        """Add to the history of the rows that are left of a claim."""
        who = who or self.client_of(claim.claim_id)
        ids = claim.sample_ids if len(left) == len(claim.slots) else claim.partition.rows.ids(left)
        partition_id = claim.partition.partition_id
        self._state.report(Fact(what, partition_id, ids, who, claim.task, claim.claim_id, reason=reason))

    # -- what is open --------------------------------------------------------------------------------------------------

    def find(self, claim_id: str) -> OpenClaim:
        """An open claim. Refusal CLAIM_FENCED if the server has ended it, CLAIM_NOT_FOUND if its caller has, or if this
        server never granted it.
        """
        claim = self._open.get(claim_id)
        if claim is not None:
            return claim
        ended = self._how_ended(claim_id)
        if ended is None and not 0 < self._fence(claim_id) <= self._forgotten:
            message = f"claim {claim_id[:256]!r} is not open: this server has never granted it"
            raise Refusal(Reason.CLAIM_NOT_FOUND, message, claim_id=claim_id)
        if ended is None or ended.how not in _BY_CALLER:
            if ended is not None:
                self._state.report(
                    Fact("fenced", ended.partition_id, ended.sample_ids, task=ended.task, claim_id=claim_id)
                )
            message = f"claim {claim_id!r} {self._why_ended(ended)}; it can no longer write or commit"
            raise Refusal(Reason.CLAIM_FENCED, message, claim_id=claim_id)
        raise Refusal(
            Reason.CLAIM_NOT_FOUND, f"claim {claim_id!r} is not open: it {_WHY[ended.how]}", claim_id=claim_id
        )

    def _why_ended(self, ended: _Ended | None) -> str:
        if ended is not None and ended.partition_id not in self._state.partitions:
            return "ended because its partition was dropped: its rows are gone"
        why = "ended long ago" if ended is None else _WHY[ended.how]
        return f"{why}: its rows may have been redelivered"

    def get(self, claim_id: str) -> OpenClaim | None:
        return self._open.get(claim_id)

    def client_of(self, claim_id: str) -> str:
        """The name of the client that holds an open claim, the first of several; empty if none does."""
        claim = self._open.get(claim_id)
        return "" if claim is None else next(map(self._state.sessions.name, claim.sessions), "")

    def partition_of(self, claim_id: str) -> str | None:
        """The partition of an open or remembered claim."""
        claim, ended = self._open.get(claim_id), self._how_ended(claim_id)
        if claim is not None:
            return claim.partition.partition_id
        return None if ended is None else ended.partition_id

    def committed_shard(self, claim_id: str) -> int | None:
        """The number of rows of a shard's claim, if it is remembered as committed; else None."""
        ended = self._how_ended(claim_id)
        return ended.rows if ended is not None and ended.of_step and ended.how == "committed" else None

    def committed_before(self, claim_id: str, session_id: str) -> bool:
        """Whether a shard's claim is remembered as committed, and the session was opened after that."""
        ended = self._how_ended(claim_id)
        if ended is None or self.committed_shard(claim_id) is None or not session_id:
            return False
        return self._state.sessions.find(session_id).number > ended.sessions

    def holder(self, partition: Partition, task: str, slot: int) -> str:
        """The id of the claim that holds a row; empty if none does."""
        return next((claim.claim_id for claim in self.open_on(partition, task) if slot in claim.left()), "")

    def open_on(self, partition: Partition, task: str) -> list[OpenClaim]:
        return [claim for claim in self._open.values() if claim.partition is partition and claim.task == task]

    def owned(self, partition: Partition, task: str) -> list[int]:
        """Existing rows that open claims of a task hold."""
        return [slot for claim in self.open_on(partition, task) for slot in claim.left().tolist()]

    def holds(self) -> set[tuple[str, str]]:
        """Every open claim with every session that holds it."""
        return {(claim_id, session_id) for claim_id, claim in self._open.items() for session_id in claim.sessions}
