"""What callers may call things."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.names import check_definition, check_distinct, check_sample_ids, check_tags
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Definition

LIMITS = Limits(max_fields=3, max_tasks=2, max_rows_per_call=3, max_id_bytes=8, max_tag_bytes=4)


def samples(*sample_ids: str) -> Callable[[], None]:
    return lambda: check_sample_ids(sample_ids, LIMITS)


def definition(
    name: str = "p", fields: Sequence[str] = "a", tasks: Sequence[str] = "", **more: object
) -> Callable[[], object]:
    return lambda: check_definition(Definition(name, tuple(fields), tuple(tasks), **more), LIMITS)  # type: ignore[arg-type]


def tags(**of_second: object) -> Callable[[], object]:
    return lambda: check_tags(["s1", "s2"], [{}, of_second], LIMITS)  # type: ignore[list-item]


R = Reason
MALFORMED = {
    "no sample": (samples(), R.INVALID_REQUEST, "sample | 3"),
    "too many samples": (samples(*"abcd"), R.INVALID_REQUEST, "sample | 4"),
    "an empty id": (samples("a", ""), R.INVALID_REQUEST, "sample | 8 bytes"),
    "an id is measured in bytes": (samples("ééééé"), R.INVALID_REQUEST, "sample | 10"),
    "an id twice": (samples("a", "b", "a"), R.DUPLICATE, "sample | 'a'"),
    "no partition id": (definition(""), R.INVALID_REQUEST, "partition id"),
    "a long partition id": (definition("x" * 9), R.INVALID_REQUEST, "partition id"),
    "no field": (definition(fields=""), R.INVALID_REQUEST, "3 fields"),
    "too many fields": (definition(fields="abcd"), R.INVALID_REQUEST, "4"),
    "an empty field name": (definition(fields=["a", ""]), R.INVALID_REQUEST, "field name"),
    "a field twice": (definition(fields="aa"), R.DUPLICATE, "field name 'a'"),
    "too many tasks": (definition(tasks="xyz"), R.INVALID_REQUEST, "2 tasks"),
    "a long task name": (definition(tasks=["x" * 9]), R.INVALID_REQUEST, "task name"),
    "a task twice": (definition(tasks="tt"), R.DUPLICATE, "task name 't'"),
    "a per-token field that is none": (definition(per_token_fields=frozenset("ba")), R.FIELD_NOT_DECLARED, "'b'"),
    "an empty key": (tags(**{"": 1}), R.INVALID_REQUEST, "'s2'"),
    "a long key, in bytes": (tags(ééé=1), R.INVALID_REQUEST, "'s2'"),
    "a long value": (tags(k="x" * 5), R.INVALID_REQUEST, "'s2'"),
    "an int over 64 bits": (tags(k=1 << 63), R.INVALID_REQUEST, "'s2'"),
    "an int under 64 bits": (tags(k=-(1 << 63) - 1), R.INVALID_REQUEST, "'s2'"),
    "bytes, after a good tag": (tags(good=1, k=b"x"), R.INVALID_REQUEST, "'s2'"),
}


@pytest.mark.parametrize(("check", "reason", "words"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_malformed_is_refused(check: Callable[[], None], reason: Reason, words: str) -> None:
    with pytest.raises(Refusal) as caught:
        check()
    assert caught.value.reason is reason
    assert all(word in caught.value.message for word in words.split(" | ")), caught.value.message


def test_names_and_tags_at_the_bounds_are_fine() -> None:
    samples("x" * 8, "éééé", "a")()
    definition(fields="abc", per_token_fields=frozenset("abc"))()
    tags(none=None, yes=True, min=-(1 << 63), max=(1 << 63) - 1, nan=float("nan"), str="éé")()


def test_what_is_there_twice_is_named() -> None:
    with pytest.raises(Refusal) as caught:
        check_distinct("field", ["a", "b", "c", "b", "a"])
    assert caught.value.metadata == {"name": "b"}
