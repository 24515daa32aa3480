"""Why puts, groups, draws and commits wait: for room in their partition, or for space in memory.

The bound comes from what refuses such a call at its deadline (`state.room`, `verbs.admission`). Before it comes who
should have made room and does not: rows that stay although every task is done with them, a task without a consumer.
"""

from __future__ import annotations

from dataclasses import replace

from dataplane_server.core.calls.causes import ExplainedWait, Finding, Waiting, counted
from dataplane_server.core.calls.requests import DrawSamples, PutSamples, ReserveGroup
from dataplane_server.core.state.entrance import Entry
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.room import done_with, why_full, why_out_of_band
from dataplane_server.core.state.state import State
from dataplane_server.core.stats.evidence import Evidence, WaitingCall
from dataplane_server.core.verbs.admission import size_text
from dataplane_server.core.verbs.verbs import Verbs

_BY_CONSUMERS = ("rows_budget", "bytes_budget", "versions_budget", "weight_version_pace")
"""Bounds that consumers make room in."""


def wait_at_entrance(partition: Partition, entry: Entry | DrawSamples, evidence: Evidence) -> ExplainedWait:
    """Why new rows, or a draw, wait at the entrance of a partition. O(rows)."""
    partition_id, entrance = partition.partition_id, partition.entrance
    if isinstance(entry, DrawSamples):
        rows, line = entry.batch_size, len(entrance.draws)
        call = WaitingCall(partition_id, entry.task, "draw", "", line, None, rows, f"to draw {counted(rows, 'rows')}")
        return call.explained([why_out_of_band(partition, entry)], evidence.now)
    head = next(iter(entrance.waiting.values()))
    findings = why_full(partition, head.rows, head.size_bytes)
    if findings[0].cause in _BY_CONSUMERS:
        findings = [*evidence.consumer_gone(partition, partition.tasks.values()), *findings]
    if entry is not head:
        findings.append(Finding("queue_order", "other calls wait before this one"))
    of_group = isinstance(entry.call, ReserveGroup)
    client = evidence.name(entry.call.session_id) if isinstance(entry.call, ReserveGroup) else entry.call.caller
    what: Waiting = "group" if of_group else "put"
    aim = f"to {'reserve' if of_group else 'put'} {counted(entry.rows, 'rows')}"
    line = len(entrance.waiting)
    return WaitingCall(partition_id, "", what, client, line, entry.since, entry.rows, aim).explained(
        findings, evidence.now
    )


def wait_for_space(state: State, verbs: Verbs, ticket: int, calls: int, evidence: Evidence) -> ExplainedWait:
    """Why a write waits for space in memory. calls: of its partition that do. O(rows) of one partition."""
    call, holders, budget = verbs.writes.call_of(ticket), verbs.holders, verbs.admission.finding(ticket)
    size_bytes = int(budget.numbers["size_bytes"])
    found = holders.finding()
    held = [] if found is None else [found]
    if held and holders.hold_most:
        findings = [*held, budget]
    else:
        fills: list[Finding] = []
        filler = max(state.partitions.values(), key=lambda one: one.size_bytes, default=None)
        if filler is not None and len(filler.rows):
            budget = replace(budget, text=f"{budget.text}; {_who_takes(filler, evidence)}")
            fills = _who_fills(filler, size_bytes - int(budget.numbers["free_bytes"]), evidence)
        findings = [*fills, budget, *held]
    if size_bytes <= budget.numbers["free_bytes"] and (larger := verbs.admission.held_back_by(ticket)):
        text = (
            f"there is space for it, but it waits behind one that needs {size_text(larger)}, which enough have passed"
        )
        findings.insert(0, Finding("queue_order", text, {"size_bytes": larger}))
    is_put = isinstance(call, PutSamples)
    return WaitingCall(
        verbs.writes.partition_of(ticket),
        "",
        "put" if is_put else "commit",
        holders.writer(call),
        calls,
        verbs.admission.since(ticket),
        size_bytes,
        f"for {size_text(size_bytes)} of memory",
    ).explained(findings, evidence.now)


def _who_fills(partition: Partition, short_bytes: int, evidence: Evidence) -> list[Finding]:
    """Who does not empty the partition that holds most, if it holds as many bytes as are needed."""
    row_bytes = partition.size_bytes / len(partition.rows)
    found = [one for one in done_with(partition) if one.numbers["rows"] * row_bytes >= short_bytes]
    found += evidence.consumer_gone(partition, partition.tasks.values())
    return [replace(one, text=f"{_size_of(partition)}: {one.text}") for one in found]


def _who_takes(partition: Partition, evidence: Evidence) -> str:
    """Who has claimed rows of the partition that holds most."""
    found = [one.text for task in partition.tasks.values() for one in evidence.held(partition, task, "")[0]]
    return ": ".join([_size_of(partition), *(["; ".join(found)] if found else [])])


def _size_of(partition: Partition) -> str:
    return f"partition {partition.partition_id!r} holds {size_text(partition.size_bytes)}"
