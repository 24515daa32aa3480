"""Where values lie: what was stored is found, however many entries it has, and stays as the table changes its size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.core.caller import Caller, int64

from dataplane_server.core.calls.columns import MAX_ENTRIES
from dataplane_server.core.calls.requests import EndRead
from dataplane_server.core.calls.values import Int64Array
from dataplane_server.core.rows.places import Places

BYTES = [1, 1 << 12, 1 << 32, 1 << 40, (1 << 62) - 1]


def places_of(capacity: int, rows: int = 4, width: int = 3) -> Places:
    places = Places(capacity)
    places.set_width(width)
    places.grow(rows)
    return places


def every(places: Places, rows: int = 4, width: int = 3) -> tuple[Int64Array, Int64Array]:
    return places.load(places.at(np.arange(width), np.arange(rows)))


@pytest.mark.parametrize("capacity", BYTES)
@pytest.mark.parametrize("most", [0, 1, 1000, MAX_ENTRIES])
def test_offsets_and_entries_are_found_as_they_were_stored(capacity: int, most: int) -> None:
    places = places_of(capacity)
    index = places.at(int64([2, 0]), int64([3, 1]))
    offsets, entries = int64([0, capacity, 5 % capacity, 1]).reshape(2, 2), int64([most, 0, 1, most]).reshape(2, 2)
    places.store(index, offsets, entries)
    found = places.load(index)
    assert (found[0].tolist(), found[1].tolist()) == (offsets.tolist(), entries.tolist())
    assert every(places)[1].sum() == entries.sum(), "no other place was touched"


@pytest.mark.parametrize("later", [3, MAX_ENTRIES])
def test_values_keep_their_places_when_one_with_many_entries_comes(later: int) -> None:
    places = places_of((1 << 62) - 1)
    places.store(places.at(int64([0, 1]), int64([0])), int64([70, 80])[:, None], int64([1, 0])[:, None])
    places.store(places.at(int64([1]), int64([2])), int64([90])[None], int64([later])[None])
    offsets, entries = every(places)
    assert offsets.tolist() == [[70, 0, 0, 0], [80, 0, 90, 0], [0] * 4]
    assert entries.tolist() == [[1, 0, 0, 0], [0, 0, later, 0], [0] * 4]


@pytest.mark.parametrize("entries", [2, MAX_ENTRIES])
def test_places_stay_while_rows_and_fields_come_and_go(entries: int) -> None:
    places = places_of(1 << 40)
    places.store(places.at(int64([1]), int64([3])), int64([64])[None], int64([entries])[None])
    places.grow(1000)
    places.set_width(5)
    assert every(places, 1000, 5)[0].sum() == 64
    places.set_width(2)
    assert [found[1, 3] for found in every(places, 1000, 2)] == [64, entries]
    places.erase(int64([3]))
    assert not any(found.any() for found in every(places, 1000, 2))


def test_rows_of_very_many_entries_live_beside_others(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=1 << 60)  # two bits are left for entries
    caller.register()
    caller.put_rows(["s1", "s2"], "a", size=1)
    caller.put_rows(["s3"], "a", "b", size=1 << 30)
    caller.put_rows(["s1"], "a", size=7)
    plan = caller.read(["s3", "s1", "s2"], "a")
    assert plan.columns[0].entries.tolist() == [1 << 30, 7, 1]
    caller.apply(EndRead(plan.ticket))
    caller.clear(["s3", "s1"])
    assert caller.used == 1
