"""The journal beside a list of all calls: it tells the same story, as long as it remembers."""

from __future__ import annotations

import os
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane_server.core.calls.messages import SampleEvent
from dataplane_server.core.stats.history import Journal

PROFILE = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
LEAST_CELLS = 8
"""As many rows count a call with fewer."""


def whats(journal: Journal, sample_id: str, partition_id: str = "p") -> list[str]:
    return [event.what for event in journal.story(partition_id, sample_id)]


def test_a_story_tells_all_that_was_noted_oldest_first() -> None:
    journal = Journal(64)
    journal.note("put", "p", ["a", "b"], 1.0, who="worker", fields=("x", "y"))
    journal.note("claimed", "p", ["b", "c"], 2.0, who="trainer", task="train", claim_id="c-7")
    journal.note("released", "p", ["b"], 3.5, task="train", claim_id="c-7", reason="no room")
    assert journal.story("p", "b") == (
        SampleEvent(1.0, "put", "worker", "", "", ("x", "y"), ""),
        SampleEvent(2.0, "claimed", "trainer", "train", "c-7", (), ""),
        SampleEvent(3.5, "released", "", "train", "c-7", (), "no room"),
    )
    assert whats(journal, "a") == ["put"]
    assert whats(journal, "unknown") == []


def test_samples_of_one_id_in_two_partitions_have_two_stories() -> None:
    journal = Journal(64)
    journal.note("put", "p", ["a"], 1.0)
    journal.note("reserved", "q", ["a"], 2.0)
    assert whats(journal, "a", "p") == ["put"]
    assert whats(journal, "a", "q") == ["reserved"]


@settings(PROFILE)
@given(
    calls=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(1, 20)), max_size=40),
    limit=st.integers(0, 60),
)
def test_the_last_calls_are_remembered_and_no_others(calls: list[tuple[int, int, int]], limit: int) -> None:
    """The model keeps all calls, and forgets from the front while what is left is too much."""
    journal, kept = Journal(limit), list[tuple[str, str, list[str]]]()
    for number, (partition, first, rows) in zip(count(), calls, strict=False):
        call = (f"what{number}", f"p{partition}", [f"s{first + row}" for row in range(rows)][-limit or rows :])
        journal.note(call[0], call[1], [f"s{first + row}" for row in range(rows)], float(number))
        kept.append(call)
    while sum(max(len(ids), LEAST_CELLS) for _, _, ids in kept) > limit:
        kept.pop(0)
    for partition_id in ("p0", "p1"):
        for sample_id in (f"s{number}" for number in range(52)):
            told = [what for what, place, ids in kept if place == partition_id and sample_id in ids]
            assert whats(journal, sample_id, partition_id) == told


def test_calls_of_one_row_each_are_forgotten_as_calls_of_eight() -> None:
    journal = Journal(80)
    for number in range(100):
        journal.note(f"what{number}", "p", ["a"], float(number))
    assert whats(journal, "a") == [f"what{number}" for number in range(90, 100)]


def test_of_a_long_story_the_last_events_are_told() -> None:
    journal = Journal(1 << 15)
    for number in range(2000):
        journal.note(f"what{number}", "p", ["a"], float(number))
    assert whats(journal, "a") == [f"what{number}" for number in range(2000 - 1024, 2000)]


def test_words_that_calls_repeat_are_kept_once() -> None:
    journal = Journal(64)
    for _ in range(2):
        journal.note("put", "p", ["a"], 1.0, who=b"worker".decode(), fields=(b"prompt".decode(),))
    first, second = journal.story("p", "a")
    assert first.who is second.who
    assert first.fields is second.fields


def test_words_are_still_told_after_more_kinds_of_calls_than_are_kept_once() -> None:
    journal = Journal(1 << 16)
    for number in range(5000):
        journal.note("released", "p", [f"s{number}"], 1.0, reason=f"reason {number}")
    for number in (0, 4095, 4096, 4999):
        assert [event.reason for event in journal.story("p", f"s{number}")] == [f"reason {number}"]


# -- whole partitions --------------------------------------------------------------------------------------------------


def test_what_happens_to_a_whole_partition_happens_to_every_row_in_it() -> None:
    journal = Journal(64)
    journal.note("put", "p", ["a"], 1.0)
    journal.note("put", "q", ["a"], 1.0)
    journal.note_all("reset", "p", 2.0, who="operator", task="train", reason="epoch 2")
    assert journal.story("p", "a")[1] == SampleEvent(2.0, "reset", "operator", "train", "", (), "epoch 2")
    assert whats(journal, "a", "q") == ["put"]


@pytest.mark.parametrize("birth", ["put", "reserved"])
@pytest.mark.parametrize("end", ["cleared", "rolled_back"])
def test_what_happened_before_a_row_came_or_after_it_went_is_not_its_story(birth: str, end: str) -> None:
    journal = Journal(200)
    journal.note_all("reset", "p", 0.0)
    journal.note(birth, "p", ["a"], 1.0)
    journal.note_all("reset", "p", 2.0)
    journal.note(end, "p", ["a"], 3.0)
    journal.note_all("reset", "p", 4.0)
    journal.note("fenced", "p", ["a"], 5.0)
    journal.note_all("cleared", "p", 6.0)
    journal.note(birth, "p", ["a"], 7.0)
    journal.note_all("cleared", "p", 8.0)
    journal.note_all("cleared", "p", 9.0)
    assert [event.at for event in journal.story("p", "a")] == [1.0, 2.0, 3.0, 5.0, 7.0, 8.0]


def test_a_row_whose_put_is_forgotten_was_there_when_it_was_claimed() -> None:
    journal = Journal(64)
    journal.note("claimed", "p", ["a"], 1.0)
    journal.note_all("cleared", "p", 2.0)
    assert whats(journal, "a") == ["claimed", "cleared"]


def test_calls_on_whole_partitions_are_forgotten_as_calls_of_eight_rows() -> None:
    journal = Journal(16)
    journal.note("put", "p", ["a"], 1.0)
    journal.note_all("reset", "p", 2.0)
    assert whats(journal, "a") == ["put", "reset"]
    journal.note_all("reset", "q", 3.0)
    assert whats(journal, "a") == []


def test_a_journal_without_room_remembers_nothing() -> None:
    journal = Journal(0)
    journal.note("put", "p", ["a"], 1.0)
    journal.note_all("reset", "p", 2.0)
    assert journal.story("p", "a") == ()
