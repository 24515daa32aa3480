"""Whether what processes saw can have been, if rows are neither lost nor doubled.

Every rule says what a history proves, and gives the benefit of the doubt where it proves nothing: a call that never
returned may have taken effect or not, and a claim is somebody's for certain only from its return until the call that
ends it begins. What the server did by itself has one excuse: the process was silent for the session's grace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.integration.histories.history import NEVER, Batch, Ending, History, Holding, named


@dataclass(frozen=True, slots=True)
class Violation:
    """rule: the name of the function below that found it."""

    rule: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.evidence}"


def violations(history: History) -> list[Violation]:
    """All that was found, rule by rule."""
    return [Violation(rule.__name__, evidence) for rule in RULES for evidence in rule(history)]


# -- owners ------------------------------------------------------------------------------------------------------------


def one_owner_at_a_time(history: History) -> Iterator[str]:
    """A row is delivered again only when its owner has begun to end the claim, or may have been silent for long."""
    for (task, row), holdings in history.by_row.items():
        again_at = NEVER
        for holding in reversed(holdings):
            if again_at < holding.given_up_at and not _may_be_expired(history, holding, again_at):
                yield f"{task}/{row}: delivered again while {_owners(holding)} held it with {holding.claim_id}"
            again_at = min(again_at, holding.got_at)


def the_living_keep_their_claims(history: History) -> Iterator[str]:
    """Only the claims of processes that may have been silent are fenced."""
    for holding in history.holdings.values():
        for ending in holding.endings:
            if ending.outcome == "fenced" and not _may_be_expired(history, holding, ending.ended_at):
                yield f"{holding.task}: {ending.process} was never silent, but its {holding.claim_id} was fenced"


def the_living_keep_their_groups(history: History) -> Iterator[str]:
    """Only the reserved groups of processes that may have been silent are rolled back."""
    for batch in history.batches:
        if batch.fenced_at < NEVER and not history.was_silent(batch.process, batch.reserved_at, batch.fenced_at):
            yield f"{batch.process} was never silent, but its group {batch.group} was rolled back"


def claims_end_by_their_holders_alone(history: History) -> Iterator[str]:
    """A claim that has gone was committed or released by one who held it."""
    for holding in history.holdings.values():
        for gone in (ending for ending in holding.endings if ending.outcome == "gone"):
            if not any(_may_have_ended(other) for other in holding.endings if other.process != gone.process):
                yield f"{holding.task}: {holding.claim_id} had gone as {gone.process} came to {gone.how} it"


def claims_are_handed_to_one(history: History) -> Iterator[str]:
    """Two processes are handed one claim only where a task's shards are shared, and then with the same rows."""
    for holding in history.holdings.values():
        if len(holding.holders) > 1 and holding.task not in history.shared_tasks:
            yield f"{holding.task}: {holding.claim_id} was handed to {_owners(holding)}"
        if len({(holder.rows, holder.claim_id, holder.task) for holder in holding.holders}) > 1:
            yield f"{holding.task}: {_owners(holding)} were handed different rows with fence {holding.fence}"


def _may_be_expired(history: History, holding: Holding, until: int) -> bool:
    return all(history.was_silent(holder.process, holder.asked_at, until) for holder in holding.holders)


def _may_have_ended(ending: Ending) -> bool:
    return ending.outcome in {"done", "unknown"}


def _owners(holding: Holding) -> str:
    return named([holder.process for holder in holding.holders])


# -- fences and commits ------------------------------------------------------------------------------------------------


def fences_grow(history: History) -> Iterator[str]:
    """A delivery that returned before another was asked for has the smaller fence."""
    for (task, row), holdings in history.by_row.items():
        asked_at = 0
        for holding in holdings:
            if holding.got_at < asked_at:
                yield f"{task}/{row}: {holding.claim_id} was delivered before one with a smaller fence was asked for"
            asked_at = max(asked_at, holding.asked_at)


def commits_happen_once(history: History) -> Iterator[str]:
    """At most one commit of a row is acknowledged for a task; of a shared claim, one for each who held it."""
    for (task, row), holdings in history.by_row.items():
        claims = [(holding, holding.ended("commit", "done")) for holding in holdings]
        commits = [commit for holding, found in claims for commit in found[: 1 if len(holding.holders) > 1 else None]]
        if len(commits) > 1:
            yield f"{task}/{row}: committed {len(commits)} times, by {named([commit.process for commit in commits])}"


def commits_carry_the_newest_fence(history: History) -> Iterator[str]:
    """A row whose commit was acknowledged is never delivered under a greater fence."""
    for (task, row), holdings in history.by_row.items():
        for holding in holdings[:-1]:
            if holding.ended("commit", "done"):
                yield f"{task}/{row}: {holding.claim_id} was committed, and {holdings[-1].claim_id} delivered"


def rows_stay_what_they_are(history: History) -> Iterator[str]:
    """A row that nobody clears has one generation."""
    generations: dict[str, int] = {}
    for delivery in history.deliveries:
        for row, generation in zip(delivery.rows, delivery.generations, strict=True):
            if generations.setdefault(row, generation) != generation:
                yield f"{row}: delivered as generation {generations[row]} and as {generation}"


# -- batches -----------------------------------------------------------------------------------------------------------


def every_row_is_committed(history: History) -> Iterator[str]:
    """Rows that were put are committed for every task in the end, unless they are lost with a node; so are all rows of
    a batch of which one was seen.
    """
    for batch in history.batches:
        if batch.outcome == "done" or (batch.outcome == "unknown" and _was_seen(history, batch)):
            for task in history.tasks:
                left = [row for row in batch.rows if row not in history.lost and not _was_committed(history, task, row)]
                if left:
                    yield f"{task}: {named(left)} of {batch.process} {batch.group} never committed ({batch.outcome})"


def nothing_else_is_delivered(history: History) -> Iterator[str]:
    """No row is seen that nobody put, whose group was not finished, or before its group was about to be."""
    for (task, row), holdings in history.by_row.items():
        batch = history.batch_of.get(row)
        if batch is None:
            yield f"{task}/{row}: delivered, and nobody put it"
        elif batch.outcome not in {"done", "unknown"}:
            yield f"{task}/{row}: delivered, and its batch {batch.group} was never finished"
        elif any(holding.got_at < batch.begun_at for holding in holdings):
            yield f"{task}/{row}: delivered before its batch {batch.group} was finished"


def groups_stay_whole(history: History) -> Iterator[str]:
    """Whoever asked for whole groups got all rows of each."""
    for delivery in history.deliveries:
        rows = set(delivery.rows)
        groups = {batch.group: batch for row in rows if (batch := history.batch_of.get(row)) and batch.group}
        for batch in groups.values() if delivery.whole else ():
            if not rows.issuperset(batch.rows):
                yield f"{delivery.task}: {delivery.claim_id} has {len(rows & {*batch.rows})} rows of {batch.group}"


def _was_seen(history: History, batch: Batch) -> bool:
    return any((task, row) in history.by_row for task in history.tasks for row in batch.rows)


def _was_committed(history: History, task: str, row: str) -> bool:
    """Whether somebody committed it, or the last one who held it may have."""
    holdings = history.by_row.get((task, row), [])
    if any(holding.ended("commit", "done") for holding in holdings):
        return True
    return bool(holdings) and bool(holdings[-1].ended("commit", "unknown"))


# -- values and complaints ---------------------------------------------------------------------------------------------


def results_are_of_the_commit(history: History) -> Iterator[str]:
    """What a row holds as a task's result was written by the commit that counted."""
    for task, row, found in _final_values(history, "result"):
        holdings = history.by_row.get((task, row), [])
        allowed = {holding.fence if ending.columns else -1 for holding, ending in _commits(holdings)}
        if found not in (allowed or {-1}):
            yield f"{task}/{row}: its result is of fence {found}, the commit's of {sorted(allowed)}"


def drafts_are_of_the_last_writer(history: History) -> Iterator[str]:
    """What a row holds as a task's draft was written by the last who held it and wrote one; refused ones never show."""
    writes: dict[int, set[str]] = {}
    for write in history.writes:
        writes.setdefault(write.fence, set()).add(write.outcome)
    for task, row, found in _final_values(history, "draft"):
        fences = [holding.fence for holding in history.by_row.get((task, row), [])]
        last = max((fence for fence in fences if "done" in writes.get(fence, ())), default=-1)
        allowed = {last, *(fence for fence in fences if fence > last and "unknown" in writes.get(fence, ()))}
        if found not in allowed:
            yield f"{task}/{row}: its draft is of fence {found}, the last write of {sorted(allowed)}"


def nobody_complains(history: History) -> Iterator[str]:
    """No process met what none should meet."""
    yield from history.complaints


def _commits(holdings: list[Holding]) -> list[tuple[Holding, Ending]]:
    """What may have been the commit that counted; of a shared claim not always the one that was acknowledged."""
    known = [holding for holding in holdings if holding.ended("commit", "done")] or holdings
    return [(holding, e) for holding in known for e in holding.endings if e.how == "commit" and _may_have_ended(e)]


def _final_values(history: History, column: str) -> Iterator[tuple[str, str, int]]:
    if history.final is not None:
        for row, values in history.final.values.items():
            for task in history.tasks:
                yield task, row, values[f"{task}_{column}"]


RULES: tuple[Callable[[History], Iterator[str]], ...] = (
    one_owner_at_a_time,
    the_living_keep_their_claims,
    the_living_keep_their_groups,
    claims_end_by_their_holders_alone,
    claims_are_handed_to_one,
    fences_grow,
    commits_happen_once,
    commits_carry_the_newest_fence,
    rows_stay_what_they_are,
    every_row_is_committed,
    nothing_else_is_delivered,
    groups_stay_whole,
    results_are_of_the_commit,
    drafts_are_of_the_last_writer,
    nobody_complains,
)
