"""The checker finds each kind of violation in a history made by hand, and nothing in those that are right."""

from __future__ import annotations

import pytest
from tests.integration.histories import checker
from tests.integration.histories.checker import violations
from tests.integration.histories.handmade import (
    LONG,
    RELEASED_AND_COMMITTED_BY_ANOTHER,
    Complaint,
    Event,
    Shared,
    Silence,
    Slow,
    commit,
    deliver,
    history_of,
    put,
    release,
    stopped_fenced_and_redelivered,
)
from tests.integration.histories.history import NEVER, Batch, Delivery, Final, History, Outcome, TaskCounts, WriteBack


def rules(history: History) -> set[str]:
    return {violation.rule for violation in violations(history)}


COMMITTED: list[Event] = [deliver("first", 1, 20, 30), commit("first", 1, 40)]
TWO_OWNERS: list[Event] = [
    deliver("first", 1, 20, 30),
    deliver("second", 2, 20, 100),
    release("first", 1, 200),
    commit("second", 2, 300),
]
KILLED_IN_A_COMMIT: list[Event] = [
    Silence("first", 41, LONG),
    deliver("first", 1, 20, 30),
    commit("first", 1, 40, "unknown", columns=True),
]
SHARED: list[Event] = [Shared(), deliver("first", 1, 20, 30), deliver("second", 1, 25, 35), commit("first", 1, 40)]


RIGHT: dict[str, list[Event]] = {
    "committed": COMMITTED,
    "released, and committed by another": RELEASED_AND_COMMITTED_BY_ANOTHER,
    "stopped, fenced and redelivered": stopped_fenced_and_redelivered(),
    "stopped before its claim returned": [Silence("first", 21, 5000), deliver("first", 1, 20, 5010),
        deliver("second", 2, 20, 1041), commit("second", 2, 1100), commit("first", 1, 5020, "fenced")],
    "killed with rows": [Silence("first", 35, LONG), deliver("first", 1, 20, 30), deliver("second", 2, 20, 2000),
        commit("second", 2, 2100)],
    "killed in a commit that took effect": KILLED_IN_A_COMMIT,
    "killed in a commit that did not": [*KILLED_IN_A_COMMIT, deliver("second", 2, 20, 1200), commit("second", 2, 1300)],
    "killed in a put that did not take effect": [*COMMITTED, put("cd", outcome="unknown")],
    "killed in a put that took effect": [*COMMITTED, put("cd", outcome="unknown"), deliver("second", 2, 40, 50, "cd"),
        commit("second", 2, 60)],
    "stopped with a group": [Silence("first", 30, 5000), *COMMITTED,
        Batch("first", "lost", ("c",), NEVER, "refused", reserved_at=20, fenced_at=5010)],
    "shared by two and ended by one": [*SHARED, commit("second", 1, 41, "gone")],
    "shared and committed by both": [*SHARED, commit("second", 1, 41)],
    "a group taken apart by who may": [deliver("first", 1, 20, 30, "a"), deliver("second", 2, 20, 30, "b"),
        commit("first", 1, 40), commit("second", 2, 40)],
    "a holder is fenced where all is slow": [Slow("first", 3), deliver("first", 1, 1020, 1030),
        commit("first", 1, 2040, "fenced"), deliver("second", 2, 1020, 2100), commit("second", 2, 2110)],
    "a group taken whole beside another row": [put("c"), deliver("first", 1, 20, 30, "abc", whole=True),
        commit("first", 1, 40)],
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_found_in_a_history_that_is_right(name: str) -> None:
    assert violations(history_of(RIGHT[name])) == []


WRONG: dict[str, tuple[set[str], list[Event]]] = {
    "two owners": ({"one_owner_at_a_time"}, TWO_OWNERS),
    "two owners, one of which was stopped too briefly": ({"one_owner_at_a_time"}, [Silence("first", 40, 400),
        *TWO_OWNERS]),
    "two owners, one of which was stopped only later": ({"one_owner_at_a_time"}, [Silence("first", 300, 5000),
        *TWO_OWNERS]),
    "two owners, with a third that woke late": ({"one_owner_at_a_time"}, [Silence("second", 45, 9000),
        deliver("first", 1, 20, 30), deliver("second", 2, 20, 9000), deliver("third", 3, 20, 60),
        commit("third", 3, 70)]),
    "an owner is fenced without a pause": ({"the_living_keep_their_claims"}, [deliver("first", 1, 20, 30),
        commit("first", 1, 40, "fenced"), deliver("second", 2, 20, 100), commit("second", 2, 110)]),
    "an owner is fenced where all is a little slow": ({"the_living_keep_their_claims"}, [Slow("first", 2),
        deliver("first", 1, 1020, 1030), commit("first", 1, 2040, "fenced"), deliver("second", 2, 1020, 2100),
        commit("second", 2, 2110)]),
    "a holder is fenced although another lives": ({"the_living_keep_their_claims"}, [Shared(),
        Silence("first", 35, 4000), deliver("first", 1, 20, 30), deliver("second", 1, 20, 30),
        commit("first", 1, 4010, "fenced"), commit("second", 1, 4020)]),
    "a claim vanishes": ({"claims_end_by_their_holders_alone"}, [deliver("first", 1, 20, 30),
        commit("first", 1, 40, "gone"), deliver("second", 2, 45, 50), commit("second", 2, 60)]),
    "a claim for two": ({"claims_are_handed_to_one"}, [deliver("first", 1, 20, 30), deliver("second", 1, 20, 30),
        commit("first", 1, 40)]),
    "a shard that differs": ({"claims_are_handed_to_one"}, [Shared(), put("c"), deliver("first", 1, 20, 30, "ab"),
        deliver("second", 1, 20, 30, "abc"), commit("first", 1, 40), deliver("second", 2, 50, 60, "c"),
        commit("second", 2, 70)]),
    "a fence that shrinks": ({"fences_grow", "one_owner_at_a_time", "commits_carry_the_newest_fence"},
        [deliver("first", 5, 20, 30), release("first", 5, 40), deliver("second", 4, 60, 70), commit("second", 4, 80)]),
    "two commits in one name": ({"commits_happen_once"}, [*COMMITTED, commit("first", 1, 60)]),
    "two commits": ({"commits_happen_once", "commits_carry_the_newest_fence"}, [*COMMITTED,
        deliver("second", 2, 20, 50), commit("second", 2, 60)]),
    "delivered after its commit": ({"commits_carry_the_newest_fence"}, [*COMMITTED, deliver("second", 2, 20, 50)]),
    "a late commit is taken": ({"commits_carry_the_newest_fence"}, [Silence("first", 40, 5000),
        deliver("first", 1, 20, 30), deliver("second", 2, 20, 1041), release("second", 2, 2000),
        commit("first", 1, 5010)]),
    "a row is replaced": ({"rows_stay_what_they_are"}, [deliver("first", 1, 20, 30), release("first", 1, 40),
        Delivery("second", "rows", "c-2", 2, 20, 41, ("a", "b"), (1, 7)), commit("second", 2, 50)]),
    "a row is lost": ({"every_row_is_committed"}, [deliver("first", 1, 20, 30, "a"), commit("first", 1, 40)]),
    "a row stays released": ({"every_row_is_committed"}, [deliver("first", 1, 20, 30), release("first", 1, 40)]),
    "a commit of which nobody knows was not the last word": ({"every_row_is_committed"}, [*KILLED_IN_A_COMMIT,
        deliver("second", 2, 20, 1200), release("second", 2, 1300)]),
    "half of a put shows": ({"every_row_is_committed"}, [*COMMITTED, put("cd", outcome="unknown"),
        deliver("second", 2, 40, 50, "c"), commit("second", 2, 60)]),
    "a row from nowhere": ({"nothing_else_is_delivered"}, [*COMMITTED, deliver("second", 2, 20, 30, "z"),
        commit("second", 2, 40)]),
    "a row of an aborted group": ({"nothing_else_is_delivered"}, [*COMMITTED, put("cd", "aborted", "refused", NEVER),
        deliver("second", 2, 20, 30, "c"), commit("second", 2, 40)]),
    "a row before its group is finished": ({"nothing_else_is_delivered"}, [*COMMITTED, put("cd", "slow", begun_at=100),
        deliver("second", 2, 20, 30, "cd"), commit("second", 2, 200)]),
    "a group is split": ({"groups_stay_whole"}, [deliver("first", 1, 20, 30, "a", whole=True),
        deliver("second", 2, 20, 30, "b"), commit("first", 1, 40), commit("second", 2, 40)]),
    "a group is fenced without a pause": ({"the_living_keep_their_groups"}, [*COMMITTED,
        Batch("first", "lost", ("c",), NEVER, "refused", reserved_at=20, fenced_at=60)]),
    "somebody complains": ({"nobody_complains"}, [*COMMITTED, Complaint("first: InternalError")]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_each_kind_of_violation_is_found_and_named(name: str) -> None:
    broken, events = WRONG[name]
    assert rules(history_of(events)) == broken


OF_VALUES = {"rows_result": "results_are_of_the_commit", "rows_draft": "drafts_are_of_the_last_writer"}
"""Columns, and the rule about each."""


def allowed_in(column: str, history: History) -> set[int]:
    """Which of some fences may stay in a column, if its rows were delivered once and committed."""
    found = set()
    for fence in (-1, 1, 2, 9):
        values = {row: dict.fromkeys(OF_VALUES, -1) | {column: fence} for row in "ab"}
        history.final = Final(values, 2, 2, {}, {"rows": TaskCounts(0, 0, 2, 2, {"committed": 2})})
        broken = rules(history)
        assert broken <= {OF_VALUES[column]}
        found |= set() if broken else {fence}
    return found


@pytest.mark.parametrize(
    ("events", "allowed"),
    [
        (stopped_fenced_and_redelivered(columns=True, late_columns=True), {2}),
        (stopped_fenced_and_redelivered(late_columns=True), {-1}),
        ([*KILLED_IN_A_COMMIT, commit("first", 1, 39, "unknown")], {-1, 1}),
        ([*SHARED, commit("second", 1, 41, "unknown", columns=True)], {-1, 1}),  # whether or not an answer came
    ],
    ids=["with columns", "without", "nobody knows which commit took effect", "the first one of a shared claim"],
)
def test_the_result_is_the_committed_one(events: list[Event], allowed: set[int]) -> None:
    assert allowed_in("rows_result", history_of(events)) == allowed


@pytest.mark.parametrize(
    ("outcomes", "allowed"),
    [
        ({}, {-1}),
        ({1: "done"}, {1}),
        ({1: "done", 2: "done"}, {2}),
        ({1: "fenced", 2: "done"}, {2}),
        ({1: "fenced"}, {-1}),
        ({1: "done", 2: "unknown"}, {1, 2}),
        ({1: "unknown", 2: "done"}, {2}),
        ({1: "unknown"}, {-1, 1}),
    ],
)
def test_the_draft_is_the_last_writers(outcomes: dict[int, Outcome], allowed: set[int]) -> None:
    writes = [WriteBack("somebody", fence, outcome) for fence, outcome in outcomes.items()]
    history = history_of([*RELEASED_AND_COMMITTED_BY_ANOTHER, *writes])
    assert allowed_in("rows_draft", history) == allowed


def test_every_rule_has_a_history_that_breaks_it() -> None:
    broken = set().union(*(rules for rules, _ in WRONG.values()))
    assert broken.union(OF_VALUES.values()) == {rule.__name__ for rule in checker.RULES}
