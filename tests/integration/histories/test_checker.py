"""The checker finds each kind of violation in a history made by hand, and nothing in those that are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.integration.histories import checker
from tests.integration.histories.checker import violations
from tests.integration.histories.handmade import (
    LONG,
    commit,
    deliver,
    new_history,
    put,
    release,
    released_and_committed_by_another,
    silence,
    stopped_fenced_and_redelivered,
)
from tests.integration.histories.history import (
    NEVER,
    Batch,
    Delivery,
    Final,
    History,
    Outcome,
    TaskCounts,
    WriteBack,
)


@pytest.fixture
def history() -> History:
    return new_history()


def rules(history: History) -> set[str]:
    return {violation.rule for violation in violations(history)}


# -- histories that are right ------------------------------------------------------------------------------------------


def committed(history: History) -> None:
    deliver(history, "first", 1, 20, 30)
    commit(history, "first", 1, 40)


def stopped_before_its_claim_returned(history: History) -> None:
    silence(history, "first", 21, 5000)
    deliver(history, "first", 1, 20, 5010)
    deliver(history, "second", 2, 20, 1041)
    commit(history, "second", 2, 1100)
    commit(history, "first", 1, 5020, "fenced")


def killed_with_rows(history: History) -> None:
    silence(history, "first", 35, LONG)
    deliver(history, "first", 1, 20, 30)
    deliver(history, "second", 2, 20, 2000)
    commit(history, "second", 2, 2100)


def killed_in_a_commit_that_took_effect(history: History) -> None:
    silence(history, "first", 41, LONG)
    deliver(history, "first", 1, 20, 30)
    commit(history, "first", 1, 40, "unknown", columns=True)


def killed_in_a_commit_that_did_not(history: History) -> None:
    killed_in_a_commit_that_took_effect(history)
    deliver(history, "second", 2, 20, 1200)
    commit(history, "second", 2, 1300)


def killed_in_a_put_that_did_not_take_effect(history: History) -> None:
    committed(history)
    put(history, "cd", outcome="unknown")


def killed_in_a_put_that_took_effect(history: History) -> None:
    committed(history)
    put(history, "cd", outcome="unknown")
    deliver(history, "second", 2, 40, 50, "cd")
    commit(history, "second", 2, 60)


def stopped_with_a_group(history: History) -> None:
    silence(history, "first", 30, 5000)
    committed(history)
    history.batches.append(Batch("first", "lost", ("c",), NEVER, "refused", reserved_at=20, fenced_at=5010))


def shared_by_two_and_ended_by_one(history: History) -> None:
    history.shared_tasks = frozenset({"rows"})
    deliver(history, "first", 1, 20, 30)
    deliver(history, "second", 1, 25, 35)
    commit(history, "first", 1, 40)
    commit(history, "second", 1, 41, "gone")


def shared_and_committed_by_both(history: History) -> None:
    shared_by_two_and_ended_by_one(history)
    history.endings[-1] = replace(history.endings[-1], outcome="done")


def a_group_taken_apart_by_who_may(history: History) -> None:
    deliver(history, "first", 1, 20, 30, "a")
    deliver(history, "second", 2, 20, 30, "b")
    commit(history, "first", 1, 40)
    commit(history, "second", 2, 40)


def a_group_taken_whole_beside_another_row(history: History) -> None:
    put(history, "c")
    deliver(history, "first", 1, 20, 30, "abc", whole=True)
    commit(history, "first", 1, 40)


@pytest.mark.parametrize(
    "happen",
    [
        committed,
        released_and_committed_by_another,
        stopped_fenced_and_redelivered,
        stopped_before_its_claim_returned,
        killed_with_rows,
        killed_in_a_commit_that_took_effect,
        killed_in_a_commit_that_did_not,
        killed_in_a_put_that_did_not_take_effect,
        killed_in_a_put_that_took_effect,
        stopped_with_a_group,
        shared_by_two_and_ended_by_one,
        shared_and_committed_by_both,
        a_group_taken_apart_by_who_may,
        a_group_taken_whole_beside_another_row,
    ],
)
def test_nothing_is_found_in_a_history_that_is_right(history: History, happen: Callable[[History], None]) -> None:
    happen(history)
    assert violations(history) == []


# -- histories that are wrong ------------------------------------------------------------------------------------------


def two_owners(history: History) -> None:
    deliver(history, "first", 1, 20, 30)
    deliver(history, "second", 2, 20, 100)
    release(history, "first", 1, 200)
    commit(history, "second", 2, 300)


def two_owners_one_of_which_was_stopped_too_briefly(history: History) -> None:
    silence(history, "first", 40, 400)
    two_owners(history)


def two_owners_one_of_which_was_stopped_only_later(history: History) -> None:
    two_owners(history)
    silence(history, "first", 300, 5000)


def two_owners_with_a_third_that_woke_late(history: History) -> None:
    silence(history, "second", 45, 9000)
    deliver(history, "first", 1, 20, 30)
    deliver(history, "second", 2, 20, 9000)
    deliver(history, "third", 3, 20, 60)
    commit(history, "third", 3, 70)


def an_owner_is_fenced_without_a_pause(history: History) -> None:
    deliver(history, "first", 1, 20, 30)
    commit(history, "first", 1, 40, "fenced")
    deliver(history, "second", 2, 20, 100)
    commit(history, "second", 2, 110)


def a_holder_is_fenced_although_another_lives(history: History) -> None:
    history.shared_tasks = frozenset({"rows"})
    silence(history, "first", 35, 4000)
    deliver(history, "first", 1, 20, 30)
    deliver(history, "second", 1, 20, 30)
    commit(history, "first", 1, 4010, "fenced")
    commit(history, "second", 1, 4020)


def a_claim_vanishes(history: History) -> None:
    deliver(history, "first", 1, 20, 30)
    commit(history, "first", 1, 40, "gone")
    deliver(history, "second", 2, 45, 50)
    commit(history, "second", 2, 60)


def a_claim_for_two(history: History) -> None:
    deliver(history, "first", 1, 20, 30)
    deliver(history, "second", 1, 20, 30)
    commit(history, "first", 1, 40)


def a_shard_that_differs(history: History) -> None:
    history.shared_tasks = frozenset({"rows"})
    put(history, "c")
    deliver(history, "first", 1, 20, 30, "ab")
    deliver(history, "second", 1, 20, 30, "abc")
    commit(history, "first", 1, 40)
    deliver(history, "second", 2, 50, 60, "c")
    commit(history, "second", 2, 70)


def a_fence_that_shrinks(history: History) -> None:
    deliver(history, "first", 5, 20, 30)
    release(history, "first", 5, 40)
    deliver(history, "second", 4, 60, 70)
    commit(history, "second", 4, 80)


def two_commits_in_one_name(history: History) -> None:
    deliver(history, "first", 1, 20, 30)
    commit(history, "first", 1, 40)
    commit(history, "first", 1, 60)


def two_commits(history: History) -> None:
    deliver(history, "first", 1, 20, 30)
    commit(history, "first", 1, 40)
    deliver(history, "second", 2, 20, 50)
    commit(history, "second", 2, 60)


def delivered_after_its_commit(history: History) -> None:
    deliver(history, "first", 1, 20, 30)
    commit(history, "first", 1, 40)
    deliver(history, "second", 2, 20, 50)


def a_late_commit_is_taken(history: History) -> None:
    silence(history, "first", 40, 5000)
    deliver(history, "first", 1, 20, 30)
    deliver(history, "second", 2, 20, 1041)
    release(history, "second", 2, 2000)
    commit(history, "first", 1, 5010)


def a_row_is_replaced(history: History) -> None:
    deliver(history, "first", 1, 20, 30)
    release(history, "first", 1, 40)
    history.deliveries.append(Delivery("second", "rows", "c-2", 2, 20, 41, ("a", "b"), (1, 7)))
    commit(history, "second", 2, 50)


def a_row_is_lost(history: History) -> None:
    deliver(history, "first", 1, 20, 30, "a")
    commit(history, "first", 1, 40)


def a_row_stays_released(history: History) -> None:
    deliver(history, "first", 1, 20, 30)
    release(history, "first", 1, 40)


def a_commit_of_which_nobody_knows_was_not_the_last_word(history: History) -> None:
    killed_in_a_commit_that_took_effect(history)
    deliver(history, "second", 2, 20, 1200)
    release(history, "second", 2, 1300)


def half_of_a_put_shows(history: History) -> None:
    committed(history)
    put(history, "cd", outcome="unknown")
    deliver(history, "second", 2, 40, 50, "c")
    commit(history, "second", 2, 60)


def a_row_from_nowhere(history: History) -> None:
    committed(history)
    deliver(history, "second", 2, 20, 30, "z")
    commit(history, "second", 2, 40)


def a_row_of_an_aborted_group(history: History) -> None:
    committed(history)
    put(history, "cd", "aborted", "refused", NEVER)
    deliver(history, "second", 2, 20, 30, "c")
    commit(history, "second", 2, 40)


def a_row_before_its_group_is_finished(history: History) -> None:
    committed(history)
    put(history, "cd", "slow", "done", begun_at=100)
    deliver(history, "second", 2, 20, 30, "cd")
    commit(history, "second", 2, 200)


def a_group_is_split(history: History) -> None:
    deliver(history, "first", 1, 20, 30, "a", whole=True)
    deliver(history, "second", 2, 20, 30, "b")
    commit(history, "first", 1, 40)
    commit(history, "second", 2, 40)


def a_group_is_fenced_without_a_pause(history: History) -> None:
    committed(history)
    history.batches.append(Batch("first", "lost", ("c",), NEVER, "refused", reserved_at=20, fenced_at=60))


def somebody_complains(history: History) -> None:
    committed(history)
    history.complaints.append("first: InternalError")


WRONG: list[tuple[Callable[[History], None], set[str]]] = [
    (two_owners, {"one_owner_at_a_time"}),
    (two_owners_one_of_which_was_stopped_too_briefly, {"one_owner_at_a_time"}),
    (two_owners_one_of_which_was_stopped_only_later, {"one_owner_at_a_time"}),
    (two_owners_with_a_third_that_woke_late, {"one_owner_at_a_time"}),
    (an_owner_is_fenced_without_a_pause, {"the_living_keep_their_claims"}),
    (a_holder_is_fenced_although_another_lives, {"the_living_keep_their_claims"}),
    (a_claim_vanishes, {"claims_end_by_their_holders_alone"}),
    (a_claim_for_two, {"claims_are_handed_to_one"}),
    (a_shard_that_differs, {"claims_are_handed_to_one"}),
    (a_fence_that_shrinks, {"fences_grow", "one_owner_at_a_time", "commits_carry_the_newest_fence"}),
    (two_commits_in_one_name, {"commits_happen_once"}),
    (two_commits, {"commits_happen_once", "commits_carry_the_newest_fence"}),
    (delivered_after_its_commit, {"commits_carry_the_newest_fence"}),
    (a_late_commit_is_taken, {"commits_carry_the_newest_fence"}),
    (a_row_is_replaced, {"rows_stay_what_they_are"}),
    (a_row_is_lost, {"every_row_is_committed"}),
    (a_row_stays_released, {"every_row_is_committed"}),
    (a_commit_of_which_nobody_knows_was_not_the_last_word, {"every_row_is_committed"}),
    (half_of_a_put_shows, {"every_row_is_committed"}),
    (a_row_from_nowhere, {"nothing_else_is_delivered"}),
    (a_row_of_an_aborted_group, {"nothing_else_is_delivered"}),
    (a_row_before_its_group_is_finished, {"nothing_else_is_delivered"}),
    (a_group_is_split, {"groups_stay_whole"}),
    (a_group_is_fenced_without_a_pause, {"the_living_keep_their_groups"}),
    (somebody_complains, {"nobody_complains"}),
]


@pytest.mark.parametrize(("happen", "broken"), WRONG, ids=[happen.__name__ for happen, _ in WRONG])
def test_each_kind_of_violation_is_found_and_named(
    history: History, happen: Callable[[History], None], broken: set[str]
) -> None:
    happen(history)
    assert rules(history) == broken


# -- values that stay --------------------------------------------------------------------------------------------------


def final(result: int, draft: int) -> Final:
    """What the server says of the fixture's rows when they were delivered once and committed."""
    values = {row: {"rows_result": result, "rows_draft": draft} for row in "ab"}
    return Final(values, 2, 2, {}, {"rows": TaskCounts(0, 0, 2, 2, {"committed": 2})})


@pytest.mark.parametrize(("columns", "result"), [(True, 2), (False, -1)])
def test_the_result_is_the_committed_one(history: History, columns: bool, result: int) -> None:
    stopped_fenced_and_redelivered(history)
    history.endings[-1] = replace(history.endings[-1], columns=columns)
    history.endings[0] = replace(history.endings[0], columns=True)
    for found in (-1, 1, 2, 9):
        history.final = final(found, -1)
        assert rules(history) == (set() if found == result else {"results_are_of_the_commit"})


def test_the_result_is_either_one_when_nobody_knows_whether_the_commit_took_effect(history: History) -> None:
    killed_in_a_commit_that_took_effect(history)
    commit(history, "first", 1, 39, "unknown")
    history.final = final(1, -1)
    assert rules(history) == set()
    history.final = final(-1, -1)
    assert rules(history) == set()
    history.final = final(7, -1)
    assert rules(history) == {"results_are_of_the_commit"}


def test_of_a_shared_claim_the_first_commit_counts_whether_or_not_its_answer_came(history: History) -> None:
    shared_by_two_and_ended_by_one(history)
    history.endings[-1] = replace(history.endings[-1], outcome="unknown", columns=True)
    for found in (-1, 1, 2):
        history.final = final(found, -1)
        assert rules(history) == (set() if found in (-1, 1) else {"results_are_of_the_commit"})


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
def test_the_draft_is_the_last_writers(history: History, outcomes: dict[int, Outcome], allowed: set[int]) -> None:
    released_and_committed_by_another(history)
    history.writes += [WriteBack("somebody", fence, outcome) for fence, outcome in outcomes.items()]
    for found in (-1, 1, 2, 9):
        history.final = final(-1, found)
        assert rules(history) == (set() if found in allowed else {"drafts_are_of_the_last_writer"})


def test_every_rule_has_a_history_that_breaks_it() -> None:
    broken = set().union(*(rules for _, rules in WRONG))
    of_values = {"results_are_of_the_commit", "drafts_are_of_the_last_writer"}
    assert broken | of_values == {rule.__name__ for rule in checker.RULES}
