"""What a campaign was: every call that mattered, by every process, with the times between which it took effect.

Times are nanoseconds of the machine's monotonic clock, which all processes share. A call took effect at some moment
between the time before it was made and the time after it returned; when it never returned (its process was killed, or
its answer was lost) nobody knows whether it did. Nothing here came from the server but what it answered.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

NEVER = 1 << 63
"""Later than everything."""
PULSES_A_GRACE = 16

Outcome = Literal["done", "fenced", "gone", "refused", "unknown"]
"""How a call ended: answered; refused since the server had ended the claim or group; since its callers had; for another
reason; or nobody knows.
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Rows that a process was handed. whole: whole groups had been asked for."""

    process: str
    task: str
    claim_id: str
    fence: int
    asked_at: int
    got_at: int
    rows: tuple[str, ...]
    generations: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A claim of which no answer was seen: up to `most` rows may have been delivered."""

    process: str
    task: str
    most: int


@dataclass(frozen=True, slots=True)
class Ending:
    """A commit or release. columns: the commit wrote the claim's fence into the result of each row."""

    process: str
    fence: int
    how: Literal["commit", "release"]
    begun_at: int
    ended_at: int
    outcome: Outcome
    columns: bool = False


@dataclass(frozen=True, slots=True)
class WriteBack:
    """A process wrote the claim's fence into the draft of each of its rows."""

    process: str
    fence: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that become visible all at once, at `begun_at` or later, or never: a group, or one put (group is empty).

    outcome "done": they were put, or the group was finished; "refused": not, or that was never tried. fenced_at: when
    the process learned that the server had rolled its group back.
    """

    process: str
    group: str
    rows: tuple[str, ...]
    begun_at: int
    outcome: Outcome
    reserved_at: int = 0
    fenced_at: int = NEVER


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """What the server said of a task in the end. ended: deliveries by how they ended."""

    untaken: int
    claimed: int
    consumed: int
    delivered: int
    ended: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Final:
    """What the server said in the end. values: the result and draft of each row by task, -1 where nobody wrote one.
    lost: rows that went with a node of a cluster.
    """

    values: Mapping[str, Mapping[str, int]]
    resident: int
    put: int
    removed: Mapping[str, int]
    tasks: Mapping[str, TaskCounts]
    lost: frozenset[str] = frozenset()

    @property
    def kept(self) -> int:
        """Rows that are there, or were cleared since every task had consumed them."""
        return self.resident + self.removed.get("consumed", 0)


@dataclass(slots=True)
class Holding:
    """One delivery as the server sees it: a claim, and all processes that were handed it."""

    claim_id: str
    task: str
    fence: int
    rows: tuple[str, ...]
    holders: list[Delivery]
    endings: list[Ending]

    @property
    def asked_at(self) -> int:
        """Not delivered before."""
        return min(holder.asked_at for holder in self.holders)

    @property
    def got_at(self) -> int:
        """Delivered by then."""
        return min(holder.got_at for holder in self.holders)

    @property
    def given_up_at(self) -> int:
        """When a holder began to end it; NEVER if nobody did."""
        return min((ending.begun_at for ending in self.endings), default=NEVER)

    def ended(self, how: str, outcome: Outcome) -> list[Ending]:
        return [ending for ending in self.endings if ending.how == how and ending.outcome == outcome]


@dataclass
class History:
    """A campaign. pulses: when each process was seen to run, ascending. shared_tasks: those whose claims several
    processes may hold together. complaints: what processes met that none should.
    """

    grace_ns: int
    tasks: tuple[str, ...]
    shared_tasks: frozenset[str] = frozenset()
    deliveries: list[Delivery] = field(default_factory=list)
    unanswered: list[Unanswered] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    writes: list[WriteBack] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    pulses: dict[str, list[int]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    final: Final | None = None

    @property
    def lost(self) -> frozenset[str]:
        return frozenset() if self.final is None else self.final.lost

    @cached_property
    def holdings(self) -> dict[int, Holding]:
        """Deliveries by fence, ascending."""
        found: dict[int, Holding] = {}
        for one in sorted(self.deliveries, key=lambda delivery: (delivery.fence, delivery.got_at)):
            held = found.setdefault(one.fence, Holding(one.claim_id, one.task, one.fence, one.rows, [], []))
            held.holders.append(one)
        for ending in self.endings:
            if ending.fence in found:
                found[ending.fence].endings.append(ending)
        return found

    @cached_property
    def by_row(self) -> dict[tuple[str, str], list[Holding]]:
        """Deliveries by (task, row), in the order of their fences."""
        found: dict[tuple[str, str], list[Holding]] = {}
        for holding in self.holdings.values():
            for row in holding.rows:
                found.setdefault((holding.task, row), []).append(holding)
        return found

    @cached_property
    def batch_of(self) -> dict[str, Batch]:
        """The batch of each row."""
        return {row: batch for batch in self.batches for row in batch.rows}

    def silence_ns(self, process: str, since: int, until: int) -> int:
        """The longest time without a sign that the process ran, of those that touch since..until, as far as until."""
        pulses = self.pulses.get(process, [])
        first = max(bisect_right(pulses, since) - 1, 0)
        last = bisect_left(pulses, until)
        seen = [*pulses[first:last], until]
        return max((after - before for before, after in itertools.pairwise(seen)), default=until - since)

    def was_silent(self, process: str, since: int, until: int) -> bool:
        """Whether the process may have been silent for its grace at some moment of since..until.

        Heartbeats come every quarter of the grace, so one that runs without a pause of half a grace is heard in time,
        unless the machine is so busy that each step on a heartbeat's way is late: then half of the pulses are missing.
        """
        if self.silence_ns(process, since, until) >= self.grace_ns // 2:
            return True
        pulses, few = self.pulses.get(process, []), PULSES_A_GRACE // 2
        first, last = bisect_left(pulses, since - self.grace_ns), bisect_right(pulses, until)
        seen = pulses[first:last]
        return any(after - before >= self.grace_ns for before, after in zip(seen, seen[few:], strict=False))


def named(names: Sequence[str], most: int = 4) -> str:
    """Some names, for a message."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
