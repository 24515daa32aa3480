"""Books of a server that contradict a history, or themselves, are found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.integration.histories import counters
from tests.integration.histories.handmade import (
    RELEASED_AND_COMMITTED_BY_ANOTHER,
    history_of,
    put,
    stopped_fenced_and_redelivered,
)
from tests.integration.histories.history import NEVER, Final, History, TaskCounts


def counted(history: History, books: Final) -> list[str]:
    history.final = books
    return list(counters.disagreements(history))


def books(delivered: int = 4, put: int = 5, resident: int = 2, rolled_back: int = 3, **ended: int) -> Final:
    """What the server says when both rows were released once, then committed, and a group of three was rolled back."""
    ended = {"committed": 2, "released": 2, **ended}
    return Final({}, resident, put, {"rolled_back": rolled_back}, {"rows": TaskCounts(0, 0, 2, delivered, ended)})


@pytest.fixture
def rolled_back() -> History:
    """Both rows were released once, then committed; group lost was rolled back."""
    return history_of([*RELEASED_AND_COMMITTED_BY_ANOTHER, put("xyz", "lost", "refused", NEVER)])


def test_books_that_agree_with_the_history_are_accepted(rolled_back: History) -> None:
    assert counted(rolled_back, books()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        books(put=6),
        books(put=6, resident=3),
        books(rolled_back=4, put=6),
        books(delivered=5),
        books(delivered=6, expired=2),
        books(delivered=3, released=1),
        books(delivered=3, committed=1),
        books(delivered=5, committed=3),
        books(released=1, expired=1),
    ],
)
def test_books_that_contradict_the_history_or_themselves_are_found(rolled_back: History, wrong: Final) -> None:
    assert counted(rolled_back, wrong) != []


def test_fenced_deliveries_must_have_expired_in_the_books() -> None:
    history = history_of(stopped_fenced_and_redelivered())
    agreed = Final({}, 2, 2, {}, {"rows": TaskCounts(0, 0, 2, 4, {"committed": 2, "expired": 2})})
    assert counted(history, agreed) == []
    wrong = TaskCounts(0, 0, 2, 4, {"committed": 2, "released": 2})
    assert counted(history, replace(agreed, tasks={"rows": wrong})) != []
