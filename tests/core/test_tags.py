"""Tags come back exactly as they were put, though equal ones are kept once."""

from __future__ import annotations

import math

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.values import Tags


def granted(caller: Caller, *tags: Tags) -> tuple[Tags, ...]:
    ids = [f"s{row}" for row in range(len(tags))]
    caller.put(caller.put_call(ids, {"a": [1] * len(ids)}, tags=tags))
    return caller.take("a", batch_size=len(ids)).tags


def test_the_callers_dict_is_not_kept(caller: Caller) -> None:
    mine: list[Tags] = [{"k": 0.5}, {"k": 1}]
    put = caller.put_call(["s1", "s2"], {"a": [1, 1]}, tags=mine)
    caller.put(put)
    for tags in mine:
        tags["k"] = "changed"
    assert caller.take("a", batch_size=2).tags == ({"k": 0.5}, {"k": 1})


def test_values_that_compare_equal_keep_their_types_and_signs(caller: Caller) -> None:
    found = granted(caller, {"k": 1}, {"k": True}, {"k": 1.0}, {"k": 0}, {"k": False}, {"k": -0.0}, {"k": 0.0})
    assert [type(tags["k"]) for tags in found] == [int, bool, float, int, bool, float, float]
    assert [math.copysign(1, tags["k"]) for tags in found[5:]] == [-1, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [300, 1000])
def test_many_different_tags_come_back_as_they_were_put(caller: Caller, count: int) -> None:
    tags: list[Tags] = [{f"key{row}": row, "both": str(row % 7)} for row in range(count)]
    assert list(granted(caller, *tags)) == tags
