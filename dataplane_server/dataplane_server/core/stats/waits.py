"""Explains waits: of all calls that wait, of one at its deadline, and of tasks that take no rows although none waits.

Everything that is told of a wait is told from here: by queries, by metrics, and by the refusal of a call that has
waited too long. So they agree. Nothing here changes anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from dataplane_server.core.calls.causes import ExplainedWait, Explanation, Finding
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import State
from dataplane_server.core.state.task_rows import rows_left
from dataplane_server.core.stats.evidence import WRITES, Evidence
from dataplane_server.core.stats.history import History
from dataplane_server.core.stats.waiting_claims import wait_of_claim, wanted_and_untaken
from dataplane_server.core.stats.waiting_writes import wait_at_entrance, wait_for_space
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.verbs.claim_queue import QueuedClaim
from dataplane_server.core.verbs.verbs import Verbs

MOST_EXPLAINED = 64
_MOST_ROWS = 1 << 22
"""Rows that one query looks at, and those of one wait more."""


class _Line(NamedTuple):
    """Calls that wait alike, by the first of them. since: None if that is not known. rows: what an explanation costs.
    explain: None if the first no longer waits. for_memory: of writes that wait for space in it, all in one line.
    """

    partition_id: str
    task: str
    calls: int
    since: float | None
    rows: int
    explain: Callable[[Evidence], ExplainedWait | None]
    for_memory: bool = False


class Waits:
    """The waits of one core."""

    def __init__(self, state: State, verbs: Verbs, history: History) -> None:
        self._state = state
        self._verbs = verbs
        self._history = history

    # -- queries -------------------------------------------------------------------------------------------------------

    def explain(self, partition_id: str, task: str, now: float) -> Explanation:
        """Those that wait, the longest first. Empty names: of all. Of a partition that is named, also its tasks that
        take no rows although no claim waits. Refusal PARTITION_NOT_FOUND, TASK_NOT_REGISTERED.
        """
        evidence, rows, unexamined = self._evidence(now), 0, 0
        resting = self._resting(partition_id, task, evidence) if partition_id else []
        lines, found = self._lines(partition_id, task), list[tuple[_Line, ExplainedWait]]()
        for number, line in enumerate(lines):
            if number >= MOST_EXPLAINED or rows > _MOST_ROWS:
                unexamined = len(lines) - number
                break
            if (wait := line.explain(evidence)) is not None:
                found.append((line, wait))
            rows += line.rows
        of_server = self._of_server()
        waits = _roots_first([wait for _, wait in found], self._behind(found, evidence), len(of_server))
        return Explanation((*of_server, *waits, *resting), unexamined)

    def causes(self, now: float) -> Iterator[tuple[str, str, str, int]]:
        """Partition, task, main cause, and how many calls wait for it, wait by wait; "not_examined" for those beyond
        MOST_EXPLAINED. Calls may be applied between two of them.
        """
        for number, line in enumerate(self._lines("", "")):
            if number >= MOST_EXPLAINED:
                yield line.partition_id, line.task, "not_examined", line.calls
            elif (wait := line.explain(self._evidence(now))) is not None:
                yield wait.partition_id, wait.task, wait.findings[0].cause, wait.calls

    # -- deadlines -----------------------------------------------------------------------------------------------------

    def claim_timeout(self, ticket: int, now: float) -> Refusal | None:
        """Refusal CLAIM_TIMEOUT for a queued claim whose deadline has passed; None if it is not queued."""
        queued = self._verbs.queue.place_of(ticket)
        wait = None if queued is None else self._claim(queued, 1, self._evidence(now))
        if queued is None or wait is None:
            return None
        message = wanted_and_untaken(self._state.partition(wait.partition_id), queued.callers[ticket])
        return with_causes(Refusal(Reason.CLAIM_TIMEOUT, message, partition_id=wait.partition_id, task=wait.task), wait)

    def of_write(self, ticket: int, now: float) -> ExplainedWait | None:
        """Why a write, group or draw waits; None if it does not."""
        return self._write(ticket, 1, self._evidence(now))

    # -- what waits ----------------------------------------------------------------------------------------------------

    def _lines(self, partition_id: str, task: str) -> list[_Line]:
        lines = [*self._claim_lines(partition_id, task)]
        if not task:
            lines += self._write_lines(partition_id)
        return sorted(lines, key=lambda line: math.inf if line.since is None else line.since)

    def _claim_lines(self, partition_id: str, task: str) -> Iterator[_Line]:
        """A line for each view with queued claims."""
        heads: dict[int, QueuedClaim] = {}
        calls: dict[int, int] = {}
        for queued in self._verbs.queue.queued_on(partition_id, task):
            heads.setdefault(id(queued.view), queued)
            calls[id(queued.view)] = calls.get(id(queued.view), 0) + len(queued.callers)
        for view, head in heads.items():
            rows = len(self._state.partitions[head.wanted.partition_id].rows)
            since, explain = head.view.waiters[head.number].since, partial(self._claim, head, calls[view])
            yield _Line(head.wanted.partition_id, head.wanted.task, calls[view], since, rows, explain)

    def _write_lines(self, partition_id: str) -> Iterator[_Line]:
        """A line for each partition with puts and groups, with draws, or with writes that wait for memory."""
        tickets: dict[tuple[str, str], list[int]] = {}
        since: dict[int, float | None] = {}
        for partition in self._verbs.flow.entrances:
            of_puts, of_draws = partition.entrance.waiting, partition.entrance.draws
            since |= {ticket: entry.since for ticket, entry in of_puts.items()}
            for what, line in (("put", of_puts), ("draw", of_draws)):
                if line:
                    tickets[partition.partition_id, what] = list(line)
        for ticket in self._verbs.admission.waiting_tickets():
            since[ticket] = self._verbs.admission.since(ticket)
            tickets.setdefault((self._verbs.writes.partition_of(ticket), "memory"), []).append(ticket)
        for (name, what), line_of in tickets.items():
            if partition_id in ("", name):
                rows, explain = len(self._state.partitions[name].rows), partial(self._write, line_of[0], len(line_of))
                yield _Line(name, "", len(line_of), since.get(line_of[0]), rows, explain, what == "memory")

    # -- what waits for what -------------------------------------------------------------------------------------------

    def _behind(self, found: Sequence[tuple[_Line, ExplainedWait]], evidence: Evidence) -> list[int | None]:
        """For each wait the place of the one that has to end first."""
        by_call = {(wait.partition_id, wait.waiting): place for place, (_, wait) in reversed(list(enumerate(found)))}
        by_client = {wait.client_name: place for place, (_, wait) in reversed(list(enumerate(found)))}
        first = next(iter(self._verbs.admission.waiting_tickets()), None)
        filler = "" if first is None else self._verbs.writes.partition_of(first)
        behind = list[int | None]()
        for line, wait in found:
            main, before = wait.findings[0], None
            if main.waiting:
                before = by_call.get((wait.partition_id, main.waiting))
            elif line.for_memory and line.partition_id != filler:
                places = [place for place, (one, _) in enumerate(found) if one.for_memory]
                before = next((place for place in places if found[place][0].partition_id == filler), None)
            elif main.cause == "missing_field":
                partition = self._state.partition(wait.partition_id)
                last = evidence.last(partition, WRITES, field=main.field_name)
                before = by_client.get(last.who) if last is not None and last.who else None
            behind.append(before)
        return [_root(behind, place) for place in range(len(behind))]

    # -- why -----------------------------------------------------------------------------------------------------------

    def _evidence(self, now: float) -> Evidence:
        return Evidence(self._state, self._verbs.table, self._verbs.steps, self._history, now)

    def _claim(self, queued: QueuedClaim, calls: int, evidence: Evidence) -> ExplainedWait | None:
        if queued.number not in queued.view.waiters:
            return None
        partition = self._state.partition(queued.wanted.partition_id)
        return wait_of_claim(queued, partition, calls, self._blocked(partition, evidence), evidence)

    def _blocked(self, partition: Partition, evidence: Evidence) -> ExplainedWait | None:
        """Why no new rows get into a partition, if they wait for it."""
        waiting, of = self._verbs.admission.waiting_tickets(), self._verbs.writes.partition_of
        in_line = [ticket for ticket in waiting if of(ticket) == partition.partition_id]
        head = next(iter([*partition.entrance.waiting, *in_line]), None)
        return None if head is None else self._write(head, 1, evidence)

    def _write(self, ticket: int, calls: int, evidence: Evidence) -> ExplainedWait | None:
        partition = self._verbs.flow.waits_at(ticket)
        if partition is not None:
            entrance = partition.entrance
            return wait_at_entrance(partition, entrance.waiting.get(ticket) or entrance.draws[ticket], evidence)
        if ticket in self._verbs.admission.waiting_tickets():
            return wait_for_space(self._state, self._verbs, ticket, calls, evidence)
        return None

    def _of_server(self) -> list[ExplainedWait]:
        if not self._state.draining:
            return []
        return [
            _at_rest("", "", Finding("draining", "the server is shutting down, and has ended every call that waited"))
        ]

    def _resting(self, partition_id: str, task: str, evidence: Evidence) -> list[ExplainedWait]:
        """The tasks that take no rows although no claim waits: they have had all, or no client is there."""
        partition, waits = self._state.partition(partition_id), []
        for each in [partition.task(task)] if task else partition.tasks.values():
            if not each.views.waiting():
                found = _all_taken(partition, each) or evidence.consumer_gone(partition, [each])
                waits += [_at_rest(partition_id, each.name, finding) for finding in found]
        return waits


def _root(behind: Sequence[int | None], place: int) -> int | None:
    """The first of those that a wait is behind; None for a root, and where waits are behind each other."""
    seen, at = {place}, place
    while (before := behind[at]) is not None:
        if before in seen:
            return None
        seen.add(before)
        at = before
    return None if at == place else at


def _roots_first(waits: Sequence[ExplainedWait], roots: Sequence[int | None], start: int) -> list[ExplainedWait]:
    """The roots as they come, each followed by those behind it. start: the place of the first."""
    places = range(len(waits))
    order = [
        one for root in places if roots[root] is None for one in (root, *(at for at in places if roots[at] == root))
    ]
    ranks = {place: start + number for number, place in enumerate(order)}
    return [
        waits[place] if (root := roots[place]) is None else replace(waits[place], behind=ranks[root]) for place in order
    ]


def with_causes(refusal: Refusal, wait: ExplainedWait | None) -> Refusal:
    """The refusal of a call that has waited too long, with all causes."""
    if wait is None:
        return refusal
    more = [finding.text for finding in wait.findings if finding.text not in refusal.message]
    metadata = {**refusal.metadata, "cause": wait.findings[0].cause}
    return Refusal(refusal.reason, "; ".join([refusal.message, *more]), **metadata)


def _at_rest(partition_id: str, task: str, finding: Finding) -> ExplainedWait:
    return ExplainedWait(partition_id, task, "", "", 0, None, 0, finding.text, (finding,))


def _all_taken(partition: Partition, task: Task) -> list[Finding]:
    """That no row is left for a task, and none comes."""
    announced = partition.definition.num_samples > 0 and partition.all_put
    if not (partition.rows.closed or announced) or rows_left(partition, task, False, "rows"):
        return []
    end = "the partition is closed" if partition.rows.closed else "all announced rows (num_samples) were put"
    return [Finding("end_of_data", f"{end}, and no row is left for task {task.name!r}", {"left": 0})]
