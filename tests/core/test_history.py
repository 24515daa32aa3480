"""The history beside a list of all calls: it tells the same story, as long as it remembers."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import SampleEvent
from dataplane_server.core.state.state import Fact
from dataplane_server.core.stats.history import History

LEAST_CELLS = 8
"""As many rows count a call with fewer."""


def whats(history: History, sample_id: str, partition_id: str = "p") -> list[str]:
    return [event.what for event in history.events(partition_id, sample_id)]


@given(
    calls=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(1, 20)), max_size=40),
    limit=st.integers(0, 60),
)
def test_the_last_calls_are_remembered_and_no_others(calls: list[tuple[int, int, int]], limit: int) -> None:
    """The model keeps all calls, and forgets from the front while what is left is too much."""
    history, kept = History(limit), list[tuple[str, str, list[str]]]()
    for number, (partition, first, rows) in zip(count(), calls, strict=False):
        call = (f"what{number}", f"p{partition}", [f"s{first + row}" for row in range(rows)][-limit or rows :])
        history.note(Fact(call[0], call[1], [f"s{first + row}" for row in range(rows)]), float(number))
        kept.append(call)
    while sum(max(len(ids), LEAST_CELLS) for _, _, ids in kept) > limit:
        kept.pop(0)
    for partition_id in ("p0", "p1"):
        for sample_id in (f"s{number}" for number in range(52)):
            told = [what for what, place, ids in kept if place == partition_id and sample_id in ids]
            assert whats(history, sample_id, partition_id) == told


def test_of_a_long_story_the_last_events_are_told() -> None:
    history = History(1 << 15)
    for number in range(2000):
        history.note(Fact(f"what{number}", "p", ["a"]), float(number))
    assert whats(history, "a") == [f"what{number}" for number in range(2000 - 1024, 2000)]


def test_words_are_still_told_after_more_kinds_of_calls_than_are_kept_once() -> None:
    history = History(1 << 16)
    for number in range(5000):
        history.note(Fact("released", "p", [f"s{number}"], reason=f"reason {number}"), 1.0)
    for number in (0, 4095, 4096, 4999):
        assert [event.reason for event in history.events("p", f"s{number}")] == [f"reason {number}"]


# -- whole partitions --------------------------------------------------------------------------------------------------


def test_what_happens_to_a_whole_partition_happens_to_every_row_in_it() -> None:
    history = History(64)
    history.note(Fact("put", "p", ["a"]), 1.0)
    history.note(Fact("put", "q", ["a"]), 1.0)
    history.note(Fact("reset", "p", None, who="operator", task="train", reason="epoch 2"), 2.0)
    assert history.events("p", "a")[1] == SampleEvent(2.0, "reset", "operator", "train", "", (), "epoch 2")
    assert whats(history, "a", "q") == ["put"]


@pytest.mark.parametrize("birth", ["put", "reserved"])
@pytest.mark.parametrize("end", ["cleared", "rolled_back"])
def test_what_happened_before_a_row_came_or_after_it_went_is_not_its_story(birth: str, end: str) -> None:
    history = History(200)
    history.note(Fact("reset", "p", None), 0.0)
    history.note(Fact(birth, "p", ["a"]), 1.0)
    history.note(Fact("reset", "p", None), 2.0)
    history.note(Fact(end, "p", ["a"]), 3.0)
    history.note(Fact("reset", "p", None), 4.0)
    history.note(Fact("fenced", "p", ["a"]), 5.0)
    history.note(Fact("cleared", "p", None), 6.0)
    history.note(Fact(birth, "p", ["a"]), 7.0)
    history.note(Fact("cleared", "p", None), 8.0)
    history.note(Fact("cleared", "p", None), 9.0)
    assert [event.at for event in history.events("p", "a")] == [1.0, 2.0, 3.0, 5.0, 7.0, 8.0]


def test_calls_on_whole_partitions_are_forgotten_as_calls_of_eight_rows() -> None:
    history = History(16)
    history.note(Fact("put", "p", ["a"]), 1.0)
    history.note(Fact("reset", "p", None), 2.0)
    assert whats(history, "a") == ["put", "reset"]
    history.note(Fact("reset", "q", None), 3.0)
    assert whats(history, "a") == []


# -- on a data plane ---------------------------------------------------------------------------------------------------


def test_the_story_outlives_the_row_and_goes_on_with_the_next_of_its_id(caller: Caller) -> None:
    first = caller.put_rows(["s"], "a").generations
    caller.clear(["s"])
    gone = caller.plane.sample("p", "s")
    assert (gone.resident, [event.what for event in gone.events]) == (None, ["put", "cleared"])
    second = caller.put_rows(["s"], "a").generations
    again = caller.plane.sample("p", "s")
    assert again.resident is not None
    assert again.resident.generation == int(second[0]) > int(first[0])
    assert [event.what for event in again.events] == ["put", "cleared", "put"]
