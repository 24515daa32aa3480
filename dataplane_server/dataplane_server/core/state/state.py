"""The mutable state that the verbs of the core share. Only verbs and `core.turn` change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dataplane_server.core.calls.answers import Effect, Failed
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Slots
from dataplane_server.core.rows.bookkeeping import Bookkeeping
from dataplane_server.core.rows.generations import GenerationClock
from dataplane_server.core.rows.group_table import Group
from dataplane_server.core.rows.regions import AnySpace, Regions
from dataplane_server.core.rows.space import Space
from dataplane_server.core.state.delays import Deadlines, Delays
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.sessions import Sessions
from dataplane_server.core.tasks.task import Task

_NAMED = 8
"""Partitions that a refusal names at most."""
_REMEMBERED_GROUPS = 4096
_ENDED = "the group was finished or aborted, its session ended, or its rows were cleared"

PARTITION_DROPPED = "the partition was dropped"
"""The reason of a fact after which a partition of the same name is another one."""


class Fact(NamedTuple):
    """Something that happened to samples (None: to every row of the partition), for the history."""

    what: str
    partition_id: str
    sample_ids: Sequence[str] | None
    who: str = ""
    task: str = ""
    claim_id: str = ""
    fields: tuple[str, ...] = ()
    reason: str = ""


class Changes:
    """What the current turn has changed, for `core.turn` to act on. Empty between turns.

    tasks: whose rows, views or queue changed. partitions: whose figures changed. facts: for the history. writes_left: a
    write left its queue, so the one behind it may fit. consumed: rows that a task has consumed, of partitions that
    clear rows when every task has.
    """

    def __init__(self) -> None:
        self.tasks: dict[Task, None] = {}
        self.partitions: dict[Partition, None] = {}
        self.facts: list[Fact] = []
        self.writes_left = False
        self.consumed: list[tuple[Partition, Slots]] = []

    def __bool__(self) -> bool:
        return bool(self.tasks or self.partitions or self.facts or self.writes_left or self.consumed)


class State:
    """Partitions, arena space, sessions, and the effects that the shell has yet to carry out. version: goes up with
    every call, and with what it changes. ended_groups: by reservation, how many rows its deadline left of a group, or
    why it was removed by its deadline, with its weight version or with a node.
    """

    def __init__(self, limits: Limits, incarnation: str, first_generation: int) -> None:
        limits.validate()
        self.limits = limits
        self.incarnation = incarnation
        self.sessions = Sessions(limits, incarnation)
        self.delays = Delays()
        self.deadlines = Deadlines()
        self.generations = GenerationClock(first_generation)
        self.space: AnySpace = Regions() if limits.cluster else Space(limits.memory_bytes)
        self.bookkeeping = Bookkeeping(limits.bookkeeping_bytes)
        self.partitions: dict[str, Partition] = {}
        self.changes = Changes()
        self.effects: list[Effect] = []
        self.ended_groups: dict[str, int | str] = {}
        self.draining = False
        self.version = 0
        self._tickets = 0

    def ticket(self) -> int:
        """A number that was never returned before. Tickets ascend, so they tell the order of arrival."""
        self._tickets += 1
        return self._tickets

    def partition(self, partition_id: str) -> Partition:
        try:
            return self.partitions[partition_id]
        except KeyError:
            known = ", ".join(map(repr, sorted(self.partitions)[:_NAMED])) or "none"
            message = f"there is no partition {partition_id[:256]!r}; register it first (there are: {known})"
            raise Refusal(Reason.PARTITION_NOT_FOUND, message, partition_id=partition_id) from None

    def reserved_group(self, reservation_id: str, partition: Partition | None = None) -> tuple[Partition, Group]:
        """The group of a reservation, of this partition or of any. Refusal GROUP_FENCED if it has ended."""
        for one in self.partitions.values() if partition is None else (partition,):
            if reservation_id in one.groups.reserved:
                return one, one.groups.reserved[reservation_id]
        why = self.ended_groups.get(reservation_id, _ENDED)
        why = f"its deadline passed, and it was committed with {why} rows" if isinstance(why, int) else why
        message = f"group reservation {reservation_id[:256]!r} is not open: {why}"
        raise Refusal(Reason.GROUP_FENCED, message, reservation_id=reservation_id)

    def note_ended(self, reservation_id: str, ended: int | str) -> None:
        """Remember it, in place of the oldest of too many."""
        self.ended_groups[reservation_id] = ended
        if len(self.ended_groups) > _REMEMBERED_GROUPS:
            del self.ended_groups[next(iter(self.ended_groups))]

    def check_new_rows(self, new: int) -> None:
        """Refusal LIMIT_REACHED if the server cannot hold `new` more rows."""
        if not new:
            return
        held, most = self.total_rows, self.limits.max_rows
        if held + new > most:
            message = f"the server holds {held} rows and may hold at most {most}; clear some first"
            raise Refusal(Reason.LIMIT_REACHED, message, max_rows=most)

    def fail(self, ticket: int, refusal: Refusal) -> None:
        """Tell a waiting caller that its call has failed."""
        self.effects.append(Failed(ticket, refusal))

    def report(self, fact: Fact) -> None:
        """Add to the history of samples."""
        self.changes.facts.append(fact)

    @property
    def total_rows(self) -> int:
        return sum([len(partition.rows) for partition in self.partitions.values()])
