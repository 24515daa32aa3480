"""Whether the server's own books agree with what processes saw. No client clears anything during a campaign, nor resets
it; the server may clear rows that every task has consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.integration.histories.history import Batch, Final, History, Holding, TaskCounts


def disagreements(history: History) -> Iterator[str]:
    """What the server's counters say against themselves, and against the history."""
    final = history.final
    if final is None:
        yield "the server's counters are missing"
        return
    yield from _rows(history, final)
    for task in history.tasks:
        yield from (f"{task}: {text}" for text in _deliveries(history, task, final.tasks[task], final))


def _rows(history: History, final: Final) -> Iterator[str]:
    if final.put != final.resident + sum(final.removed.values()):
        yield f"{final.put} rows were put, {final.resident} are there, {dict(final.removed)} are gone"
    seen = {row for _, row in history.by_row}
    there = {row for batch in history.batches if _is_there(batch, seen) for row in batch.rows}
    expected = len(there - final.lost)
    if final.kept != expected:
        yield f"{final.kept} rows are there or consumed, {expected} were put"
    if final.removed.get("lost", 0) != len(final.lost):
        yield f"{final.removed.get('lost', 0)} rows are lost, and {len(final.lost)} are named"
    if strange := {why for why, count in final.removed.items() if count} - {"rolled_back", "lost", "consumed"}:
        yield f"rows are gone though nobody cleared them: {sorted(strange)}"
    unfinished = sum(len(batch.rows) for batch in history.batches if batch.group and not _is_there(batch, seen))
    if final.removed.get("rolled_back", 0) > unfinished:
        yield f"{final.removed['rolled_back']} rows were rolled back, only {unfinished} were of groups without an end"


def _is_there(batch: Batch, seen: set[str]) -> bool:
    return batch.outcome == "done" or (batch.outcome == "unknown" and not seen.isdisjoint(batch.rows))


def _deliveries(history: History, task: str, counts: TaskCounts, final: Final) -> Iterator[str]:
    holdings = [holding for holding in history.holdings.values() if holding.task == task]
    if counts.delivered != counts.claimed + sum(counts.ended.values()):
        yield f"delivered {counts.delivered}, claimed {counts.claimed}, ended {dict(counts.ended)}"
    committed = counts.ended.get("committed", 0)
    if counts.consumed != final.resident or not final.kept <= committed <= final.kept + len(final.lost):
        yield f"{final.kept} rows, {len(final.lost)} lost, {counts.consumed} consumed, {committed} commits"
    seen = sum(len(holding.rows) for holding in holdings)
    unseen = sum(claim.most for claim in history.unanswered if claim.task == task)
    if not seen <= counts.delivered <= seen + unseen:
        yield f"{counts.delivered} rows were delivered; {seen} were seen, and at most {unseen} may have been lost"
    released = _rows_that(holdings, "done"), _rows_that(holdings, "unknown")
    certain = _without(released[0], final.lost)
    if not certain <= counts.ended.get("released", 0) <= sum(map(len, released)) + unseen:
        yield f"{counts.ended.get('released', 0)} rows were released; of {certain} it was seen"
    fenced = _without(_rows_of(h for h in holdings if any(e.outcome == "fenced" for e in h.endings)), final.lost)
    if counts.ended.get("expired", 0) < fenced:
        yield f"{counts.ended.get('expired', 0)} deliveries expired, but {fenced} were fenced"


def _rows_that(holdings: list[Holding], outcome: str) -> list[str]:
    """Rows of claims that were released, for certain (done) or perhaps (unknown)."""
    return _rows_of(
        holding
        for holding in holdings
        if any(ending.how == "release" and ending.outcome == outcome for ending in holding.endings)
    )


def _rows_of(holdings: Iterable[Holding]) -> list[str]:
    return [row for holding in holdings for row in holding.rows]


def _without(rows: list[str], lost: frozenset[str]) -> int:
    """How many there are at least of deliveries that ended so: one of a lost row may have ended with the row."""
    return sum(row not in lost for row in rows)
