"""Why a queued claim is not served: which resident rows it cannot get and why, and why no others come.

Rows first, producers second, if the rows that something keeps from the claim would do for it; else the other way round.
Rows in open claims, those of ranks that have not claimed yet, and dead letters are there in a healthy flow as well, so
while puts come they come last. A rank that is missing comes first when no puts come: its job stands still. What
the waiting client itself holds comes last in any case: a trainer claims its next batch before it commits the last.

Each explanation costs some twenty array operations over the rows of the partition, and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dataplane_server.core.calls.causes import ExplainedWait, Finding, counted, seconds_text
from dataplane_server.core.calls.filters import Filter
from dataplane_server.core.calls.names import UNKNOWN_VERSION
from dataplane_server.core.calls.requests import ClaimCall, unit_of
from dataplane_server.core.calls.values import BoolArray, Slots
from dataplane_server.core.rows.matching import absence_text, absent_tags
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.stats.evidence import NEW_ROWS, WRITES, Evidence, WaitingCall
from dataplane_server.core.stats.history import Happening
from dataplane_server.core.tasks.eligibility import all_stale
from dataplane_server.core.tasks.task_states import DEAD, DELAYED, UNTAKEN
from dataplane_server.core.verbs.claim_queue import QueuedClaim

_NAMED_RANKS = 3
_NAMED_ROWS = 3
_OF_HEALTHY_FLOWS = ("claims_held", "dead_letters", "rank_missing")


class _Kept(NamedTuple):
    """Rows that something keeps from the claim. amount: in what the claim counts, rows or groups."""

    amount: int
    finding: Finding


def wait_of_claim(
    queued: QueuedClaim, partition: Partition, calls: int, blocked: ExplainedWait | None, evidence: Evidence
) -> ExplainedWait:
    """Why a claim waits. calls: that wait alike. blocked: why a put into the partition waits. O(rows)."""
    wanted, since = queued.wanted, queued.view.waiters[queued.number].since
    aim = f"for {counted(wanted.min_size, unit_of(wanted))}"
    client = evidence.name(wanted.session_id)
    call = WaitingCall(partition.partition_id, wanted.task, "claim", client, calls, since, wanted.min_size, aim)
    return call.explained(_Diagnosis(queued, partition, evidence).findings(blocked), evidence.now)


def wanted_and_untaken(partition: Partition, call: ClaimCall) -> str:
    """How much a claim wants, and how many rows its task has not taken."""
    untaken = partition.task(call.task).counts()[UNTAKEN]
    return (
        f"partition {call.partition_id!r}, task {call.task!r}: {call.min_size} ready {unit_of(call)} wanted; "
        f"{untaken} of {len(partition.rows)} resident rows are untaken"
    )


class _Diagnosis:
    """The rows of one task, as one queued claim sees them."""

    def __init__(self, queued: QueuedClaim, partition: Partition, evidence: Evidence) -> None:
        self._queued, self._call, self._view = queued, queued.wanted, queued.view
        self._partition, self._rows, self._task = partition, partition.rows, queued.task
        self._evidence = evidence
        self._since = self._view.waiters[queued.number].since
        self._counts_groups = self._call.whole_groups and unit_of(self._call) == "groups"
        self._untaken = self._rows["alive"] & (self._task.states == UNTAKEN)
        self._total = int(np.count_nonzero(self._untaken))

    def findings(self, blocked: ExplainedWait | None) -> list[Finding]:
        view, call = self._view, self._call
        ready = view.ready_rows if call.whole_groups and not self._counts_groups else view.ready
        need = call.min_size - ready
        producers = list(self._producers(blocked))
        comes = producers[0].cause == "slow_producer"
        others, own = self._evidence.held(self._partition, self._task, call.session_id)
        kept = [*self._kept_rows(), *(_Kept(int(finding.numbers["rows"]), finding) for finding in others)]
        late = [one.finding for one in kept if comes and one.finding.cause in _OF_HEALTHY_FLOWS]
        early = [one for one in kept if one.finding not in late]
        first = [one.finding for one in sorted(early, key=lambda one: (one.amount < need, -one.amount))]
        queue = self._queue_order(ready, need)
        if need <= 0:
            return [*queue, *first, *late, *own]
        if sum(one.amount for one in early) >= need:
            return [*first, *producers, *late, *own, *queue]
        root = [
            one for one in first if one.cause == "rank_missing"
        ]  # its job stands still, and so may who waits for it
        return [*root, *producers, *(one for one in first if one not in root), *late, *own, *queue]

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _kept_rows(self) -> Iterator[_Kept]:
        """Rows that are resident and not ready. Of equal amounts the first one is the main cause."""
        rows, task, untaken = self._rows, self._task, self._untaken
        hidden = untaken & rows["hidden"]
        yield from self._some(hidden, "incomplete_groups", f"belong to groups that are still reserved{self._filler()}")
        stale = all_stale(rows, task.policy) & untaken
        unknown = stale & (rows["weight_version"] == UNKNOWN_VERSION)
        bound, version = task.policy.bound, rows.weight_version
        if stale.any() and not (stale & ~unknown).any():
            yield from self._some(unknown, "unknown_version", f"name no weight version, and max_staleness is {bound}")
        else:
            text = f"are staler than max_staleness {bound} (the weight version is {version})"
            text += ", or of an unknown version" if unknown.any() else ""
            yield from self._some(stale, "stale_rows", text, {"weight_version": version or 0})
        usable = untaken & ~hidden & ~stale & ~self._view.readiness.marked
        if task.policy.where:
            yield from self._excluded(usable)
        yield from self._lacking(untaken & ~hidden, usable)
        if self._call.where:
            text = f"do not fit the filter of the claim (where){self._absent_tags(self._call.where)}"
            yield from self._some(usable, "claim_filter", text)
        if self._call.whole_groups:
            numbers = rows["group"]
            broken = untaken & (numbers > 0) & np.isin(numbers, numbers[rows["alive"] & ~untaken])
            text = "belong to groups of which other rows are taken, so they are no whole groups"
            yield from self._some(broken, "broken_groups", text)
        yield from self._withheld()

    def _withheld(self) -> Iterator[_Kept]:
        """Rows that the task gave back for a while, gave up, or consumed before they were put again."""
        task, alive = self._task, self._rows["alive"]
        withheld = alive & (task.states == DELAYED)
        yield from self._missing_ranks(withheld)
        if delayed := int(np.count_nonzero(withheld)):
            ends = task.next_return
            first = "" if math.isinf(ends) else f", the first for {seconds_text(ends - self._evidence.now)} more"
            text = f"{counted(delayed, 'rows', 'are')} delayed by a release{first}"
            yield _Kept(self._amount(withheld), Finding("delayed_rows", text, {"rows": delayed}))
        if dead := task.counts()[DEAD]:
            reason = task.deliveries.reason(int(task.dead_slots()[-1]))
            text = f"{counted(dead, 'rows', 'are')} among the dead letters; one of them failed for {reason!r}"
            yield _Kept(self._amount(alive & (task.states == DEAD)), Finding("dead_letters", text, {"rows": dead}))
        if again := int(np.count_nonzero(task.put_again)):
            text = f"{again} rows were put again after task {task.name!r} consumed them, and do not come to it again"
            yield _Kept(self._amount(task.put_again), Finding("put_again", text, {"rows": again}))

    def _missing_ranks(self, withheld: BoolArray) -> Iterator[_Kept]:
        """Rows that steps keep for ranks, which are taken out of withheld."""
        missing = self._evidence.steps.missing(self._partition, self._task)
        if not missing:
            return
        mask = np.zeros_like(withheld)
        kept = []
        for rank, world, steps, slots in missing:
            mask[slots] = True
            of = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps from {min(steps)} to {max(steps)}"
            kept.append(f"{len(slots)} rows of {of} are kept for dp_rank {rank} of {world}")
        withheld &= ~mask
        more = f", and others for {len(kept) - _NAMED_RANKS} other ranks" if len(kept) > _NAMED_RANKS else ""
        text = f"{'; '.join(kept[:_NAMED_RANKS])}{more}, which has not claimed them or has given them back"
        numbers = {"rows": int(np.count_nonzero(mask)), "ranks": len(missing)}
        yield _Kept(self._amount(mask), Finding("rank_missing", text, numbers))

    def _lacking(self, visible: BoolArray, usable: BoolArray) -> Iterator[_Kept]:
        """Rows that lack fields, which are taken out of usable: one finding for fields of one put that the same rows
        lack.
        """
        alike: dict[object, tuple[BoolArray, Happening | None, list[str]]] = {}
        for name in self._call.required_fields:
            lacking = visible & ((self._rows["produced"] & self._partition.field(name).bit) == 0)
            if lacking.any():
                usable &= ~lacking
                last = self._evidence.last(self._partition, WRITES, field=name)
                key = (None if last is None else (last.at, last.who), lacking.tobytes())
                alike.setdefault(key, (lacking, last, []))[2].append(name)
        for lacking, last, names in alike.values():
            one = len(names) == 1
            what = f"{'field' if one else 'fields'} {', '.join(map(repr, names))}"
            when = f"no put of {'it' if one else 'them'} is remembered"
            if last is not None:
                when = f"{'it was' if one else 'they were'} last put {self._evidence.by_whom(last)}"
            yield from self._some(lacking, "missing_field", f"lack {what}; {when}", field_name=names[0])

    def _some(
        self, mask: BoolArray, cause: str, text: str, more: dict[str, float] | None = None, field_name: str = ""
    ) -> Iterator[_Kept]:
        if count := int(np.count_nonzero(mask)):
            numbers = {"rows": count, "untaken": self._total, **(more or {})}
            share = f"{count} of {self._total} untaken rows {text}"
            yield _Kept(self._amount(mask), Finding(cause, share, numbers, field_name))  # type: ignore[arg-type]

    def _excluded(self, usable: BoolArray) -> Iterator[_Kept]:
        """Rows that do not fit the policy's filter, which are taken out of usable."""
        slots: Slots = np.flatnonzero(self._untaken)
        excluded = self._task.is_excluded(slots)
        lacking = int(np.count_nonzero(excluded)) - int(np.count_nonzero(self._task.is_rejected(slots)))
        some = f" ({lacking} lack a tag that it names)" if lacking else ""
        some += self._absent_tags(self._task.policy.where)
        mask = np.zeros_like(usable)
        mask[slots[excluded]] = True
        usable &= ~mask
        yield from self._some(mask, "task_filter", f"do not fit the filter of task {self._task.name!r}{some}")

    def _absent_tags(self, where: Filter) -> str:
        """Which tags a filter compares that no untaken row has: misspelt ones, or fields, which filters do not see."""
        absent = absent_tags(self._rows, where, np.flatnonzero(self._untaken))
        return absence_text(absent, self._partition.definition.fields)

    def _amount(self, mask: BoolArray) -> int:
        """How much the claim could have besides if these rows were ready: rows, or groups, of which each row counts."""
        if not self._call.whole_groups:
            return int(np.count_nonzero(mask))
        numbers = self._rows["group"]
        alone, groups = int(np.count_nonzero(mask & (numbers == 0))), np.unique(numbers[mask & (numbers > 0)])
        return alone + (len(groups) if self._counts_groups else int(np.count_nonzero(np.isin(numbers, groups))))

    # -- who has to do something ---------------------------------------------------------------------------------------

    def _filler(self) -> str:
        """The oldest group that has a row: who fills it, for how long, and its rows without a value."""
        for group in self._partition.groups.reserved.values():
            if group.size:
                members = self._partition.groups.members(group.number)
                age = seconds_text(float(self._rows.ages(members[:1], self._evidence.now)[0]))
                who = f" by client {self._evidence.name(group.session_id)!r}" if group.session_id else ""
                empty = members[self._rows["produced"][members] == 0]
                names = ", ".join(map(repr, self._rows.ids(empty[:_NAMED_ROWS])))
                more = ", ..." if len(empty) > _NAMED_ROWS else ""
                some = f" ({len(empty)} of its {group.size} rows have no value: {names}{more})" if len(empty) else ""
                left = None if group.deadline is None else group.deadline - self._evidence.now
                ends = "" if left is None else f", with a deadline in {seconds_text(max(left, 0.0))}"
                return f", the oldest, {group.group_id!r},{who} for {age}{ends}{some}"
        return ""

    def _producers(self, blocked: ExplainedWait | None) -> Iterator[Finding]:
        """Why no other rows come; at least one finding."""
        partition, definition = self._partition, self._partition.definition
        last, lost = (self._evidence.last(partition, what) for what in (NEW_ROWS, ("lost",)))
        put = partition.rows_put_total
        if partition.rows.closed:
            yield Finding("end_of_data", "the partition is closed: no other rows come")
        elif blocked is not None:
            main = blocked.findings[0]
            yield replace(
                main,
                text=f"no new rows come: {blocked.summary}",
                partition_id=main.partition_id or blocked.partition_id,
                task=main.task or blocked.task,
                waiting=blocked.waiting,
            )
        elif not put:
            yield Finding("never_put", "no row was ever put into the partition")
        elif lost is not None and (last is None or lost.at > last.at):
            rows = partition.removed["lost"]
            gone = f"{counted(rows, 'rows', 'were')} lost with nodes, the last {self._evidence.by_whom(lost)}"
            yield Finding("node_lost", f"{gone}, and none has come since", {"rows": rows})
        elif last is not None and last.at > self._since:
            yield Finding("slow_producer", f"puts come, the last {self._evidence.by_whom(last)}, but too few rows")
        elif (announced := definition.num_samples) and partition.all_put:
            text = f"all {announced} announced rows (num_samples) were put; the last put came "
            yield Finding("end_of_data", text + self._last_put(), {"rows": announced})
        else:
            text = f"no put has come meanwhile; the last came {self._last_put()}"
            yield Finding("silent_producer", text, {"rows_put": put})

    def _last_put(self) -> str:
        last = self._evidence.last(self._partition, NEW_ROWS)
        return "longer ago than the server remembers" if last is None else self._evidence.by_whom(last)

    def _queue_order(self, ready: int, need: int) -> list[Finding]:
        """Other claims of the task, which may come first."""
        others = self._task.views.waiting() - 1
        if not others:
            return []
        text = f"{others} other claim{'s are' if others > 1 else ' is'} queued for the task, first come first served"
        if need <= 0:
            text = f"{ready} ready {unit_of(self._call)} would do, but {text}"
        return [Finding("queue_order", text, {"claims": others, "ready": ready})]
