"""What the model is made of: rows, groups, claims and sessions as plain objects that are told apart by identity.

A row that was cleared and put again under its id is another object, so nothing here needs slots, epochs or generations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.core.machine.arena import Arena

from dataplane_server.core.calls.answers import Grant
from dataplane_server.core.calls.requests import ClaimSamples, ClaimShard, CommitClaim, PutSamples, ReserveGroup
from dataplane_server.core.calls.values import Copy, Run, Runs, Tags

Wish = ClaimSamples | ClaimShard
VERSIONS = range((1 << 31) - 1)


@dataclass(eq=False)
class Value:
    """Bytes of one field, and where they lie. holders: rows that have them, what rows owe of them, and the group whose
    rows share them, while it is reserved. kept: how many of the bytes its row had before an append. once: whether it
    was put so that equal values become it.
    """

    data: bytes
    entries: int
    kept: int = 0
    once: bool = False
    pieces: list[Run] = field(default_factory=list)
    holders: set[Row | Owed | Group] = field(default_factory=set)

    def let_go(self, holder: Row | Owed | Group, arena: Arena) -> None:
        """One holder less. The last one frees the bytes."""
        self.holders.discard(holder)
        if not self.holders:
            arena.free(self.pieces)


@dataclass(eq=False)
class Owed:
    """A value that its row has lost while it was read, as long as one of these reads has not ended."""

    value: Value
    reads: set[Read]


@dataclass(eq=False)
class Standing:
    """Where a row stands with a task."""

    state: str = "untaken"
    deliveries: int = 0
    reason: str = ""


@dataclass(eq=False)
class Row:
    sample_id: str
    partition_id: str
    standings: dict[str, Standing]
    length: int = -1
    tags: Tags = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    group: Group | None = None
    generation: int = 0
    resident: bool = True
    reads: set[Read] = field(default_factory=set)  # that have not ended
    revision: int = 0  # how often per-token values were written
    draws: int = 0
    owed: list[Owed] = field(default_factory=list)

    version: int | None = None  # of weights, by its tags

    @property
    def hidden(self) -> bool:
        return self.group is not None and self.group.state == "reserved"

    def tag(self, tags: Tags) -> None:
        self.tags = self.tags | tags
        version = tags.get("weight_version", self.version)
        self.version = version if type(version) is int and version in VERSIONS else None

    def get(self, name: str, value: Value, arena: Arena) -> None:
        before = self.values.pop(name, None)
        self.values[name] = value
        value.holders.add(self)
        if before is not None:
            self._let_go(before, arena)

    def lose(self, names: Iterable[str], arena: Arena) -> None:
        """Values go. Their bytes are free at once, or when the last of those who read the row now is done."""
        for value in [self.values.pop(name) for name in names if name in self.values]:
            self._let_go(value, arena)

    def _let_go(self, value: Value, arena: Arena) -> None:
        if self.reads:
            self.owed.append(Owed(value, {*self.reads}))
            value.holders.add(self.owed[-1])
        if value not in self.values.values():  # it may have got again what it lost
            value.let_go(self, arena)

    def end_read(self, read: Read, arena: Arena) -> None:
        self.reads.discard(read)
        for owed in self.owed:
            owed.reads.discard(read)
            if not owed.reads:
                owed.value.let_go(owed, arena)
        self.owed = [owed for owed in self.owed if owed.reads]


@dataclass(eq=False)
class Group:
    """A prompt's rows that are still there. state: reserved, then finished or rolled back, for good. shared: the values
    of rows that join, while it is reserved. terms: the call that reserved it. failed: how many of its rows did.
    """

    group_id: str
    partition_id: str
    rows: list[Row]
    session: Session | None
    start: int | None = None
    end: int | None = None
    state: str = "reserved"
    reservation_id: str = ""
    shared: dict[str, Value] = field(default_factory=dict)
    terms: ReserveGroup | None = None
    deadline: float = math.inf
    failed: int = 0

    def is_complete(self, row: Row) -> bool:
        named = self.terms.complete_fields if self.terms is not None else ()
        return set(named) <= row.values.keys() if named else bool(row.values.keys() - self.shared.keys())

    def end_sharing(self, arena: Arena) -> None:
        for value in self.shared.values():
            value.let_go(self, arena)
        self.shared = {}


@dataclass(eq=False)
class Claim:
    """Rows of one delivery. told: whether somebody knows of it. ended: how, empty while it is open. shard: while its
    rows belong to a step. seen: the sessions that were open when it was committed.
    """

    partition_id: str
    task: str
    rows: list[Row]
    holders: list[Session]
    claim_id: str = ""
    told: bool = False
    ended: str = ""
    shard: Shard | None = None
    consumed_rows: int = 0
    seen: list[Session] = field(default_factory=list)

    def left(self) -> list[Row]:
        return [row for row in self.rows if row.resident]


@dataclass(eq=False)
class Handed:
    """Rows on their way to a caller: the grant that it must get, but for the id of the claim."""

    claim: Claim
    ledger: Ledger
    grant: Grant
    consumed: bool = False


@dataclass(eq=False)
class Shard:
    """What one rank gets of a step. handed: what its callers were handed last."""

    rows: list[Row]
    handed: Handed | None = None

    @property
    def is_committed(self) -> bool:
        return self.handed is not None and self.handed.claim.ended == "committed"


@dataclass(eq=False)
class Step:
    """A step of a task whose rows are there: one shard a rank."""

    wish: ClaimShard
    shards: list[Shard]


@dataclass(eq=False)
class Session:
    session_id: str
    grace_s: float
    deadline: float
    claims: list[Claim] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)


@dataclass(eq=False)
class Wait:
    """A claim in line, or a step, for which there may be several callers; with their tickets. It stays in its line,
    whatever becomes of the task's policy.
    """

    wish: Wish
    callers: list[tuple[int, Wish]]
    line: Any


@dataclass(eq=False)
class Answer:
    """What was told to the caller of a request. told: as text. handed: the rows, of a claim that was granted. asked:
    what the request asked for, as text; empty for anything.
    """

    verb: str
    told: str
    at: float
    handed: Handed | None = None
    asked: str = ""


@dataclass(eq=False)
class Write:
    """A put or commit under way. values: a list for each column, as they will be. runs: its space, None while it waits.
    revisions: of the rows of an append, at its begin. copies: of what these rows have. at_entrance: whether it waits
    for room in its partition. let_in: the order in which writes begin to need space. passed: bytes that came later and
    got space before it.
    """

    call: PutSamples | CommitClaim
    partition_id: str
    values: dict[str, list[Value]]
    ticket: int = 0
    runs: list[Run] | None = None
    revisions: list[object] = field(default_factory=list)
    copies: tuple[Copy, ...] = ()
    at_entrance: bool = False
    let_in: int = 0
    passed: int = 0

    @property
    def kept(self) -> int:
        """Bytes that are copied and not sent."""
        return sum(value.kept for column in self.values.values() for value in column)

    @property
    def sizes(self) -> list[int]:
        return [sum(len(value.data) for value in column) for column in self.values.values()]

    @property
    def size(self) -> int:
        return sum(self.sizes)


@dataclass(eq=False)
class Read:
    """A read that has not ended: the bytes that it must find in its runs."""

    rows: list[Row]
    runs: Runs
    data: bytes

    def begin(self) -> None:
        for row in self.rows:
            row.reads.add(self)

    def end(self, arena: Arena) -> None:
        for row in self.rows:
            row.end_read(self, arena)


@dataclass(eq=False)
class Held:
    """Rows that a release holds back."""

    until: float
    rows: list[Row]
    task: str


@dataclass(eq=False)
class Ledger:
    """What a task has handed out since its partition was first registered with it, and how that ended."""

    delivered: int = 0
    consumed: int = 0
    taken_before: int = 0
    """Committed or claimed when the weight version moved, less those of the latter that came back."""
    ended: Counter[str] = field(default_factory=Counter)

    def end(self, rows: int, how: str) -> None:
        """Deliveries ended without a commit; those from before the version moved end first."""
        self.ended[how] += rows
        self.taken_before -= max(0, min(rows, self.taken_before - self.ended["committed"]))
