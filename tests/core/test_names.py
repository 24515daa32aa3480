"""What callers may call things."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.names import check_definition, check_distinct, check_sample_ids, check_tags
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Definition

LIMITS = Limits(max_fields=3, max_tasks=2, max_rows_per_call=3, max_id_bytes=8, max_tag_bytes=4)


@pytest.mark.parametrize(
    ("sample_ids", "reason", "word"),
    [
        pytest.param([], Reason.INVALID_REQUEST, "1 to 3 samples", id="none"),
        pytest.param(["a", "b", "c", "d"], Reason.INVALID_REQUEST, "got 4", id="too many"),
        pytest.param(["a", ""], Reason.INVALID_REQUEST, "1 to 8 bytes", id="an empty id"),
        pytest.param(["x" * 9], Reason.INVALID_REQUEST, "got 9", id="a long id"),
        pytest.param(["ééééé"], Reason.INVALID_REQUEST, "got 10", id="an id is measured in bytes"),
        pytest.param(["a", "b", "a"], Reason.DUPLICATE, "'a'", id="an id that stands twice"),
    ],
)
def test_malformed_sample_ids_are_refused(sample_ids: list[str], reason: Reason, word: str) -> None:
    with pytest.raises(Refusal, match="sample") as caught:
        check_sample_ids(sample_ids, LIMITS)
    assert caught.value.reason is reason
    assert word in caught.value.message


def test_ids_of_the_greatest_length_and_number_are_fine() -> None:
    check_sample_ids(["x" * 8, "éééé", "a"], LIMITS)


def test_what_stands_twice_is_named() -> None:
    with pytest.raises(Refusal) as caught:
        check_distinct("field", ["a", "b", "c", "b", "a"])
    assert caught.value.metadata == {"name": "b"}


@pytest.mark.parametrize(
    ("definition", "reason", "word"),
    [
        pytest.param(Definition("", ("a",), ()), Reason.INVALID_REQUEST, "partition id", id="no partition id"),
        pytest.param(Definition("x" * 9, ("a",), ()), Reason.INVALID_REQUEST, "partition id", id="long partition id"),
        pytest.param(Definition("p", (), ()), Reason.INVALID_REQUEST, "1 to 3 fields", id="no field"),
        pytest.param(Definition("p", tuple("abcd"), ()), Reason.INVALID_REQUEST, "got 4", id="too many fields"),
        pytest.param(Definition("p", ("a", ""), ()), Reason.INVALID_REQUEST, "field name", id="empty field name"),
        pytest.param(Definition("p", ("a", "a"), ()), Reason.DUPLICATE, "field 'a'", id="field twice"),
        pytest.param(Definition("p", ("a",), tuple("xyz")), Reason.INVALID_REQUEST, "0 to 2 tasks", id="many tasks"),
        pytest.param(Definition("p", ("a",), ("x" * 9,)), Reason.INVALID_REQUEST, "task name", id="long task name"),
        pytest.param(Definition("p", ("a",), ("t", "t")), Reason.DUPLICATE, "task 't'", id="task twice"),
        pytest.param(
            Definition("p", ("a",), (), per_token_fields=frozenset("ba")),
            Reason.FIELD_NOT_DECLARED,
            "'b'",
            id="per-token field that is no field",
        ),
    ],
)
def test_malformed_definitions_are_refused(definition: Definition, reason: Reason, word: str) -> None:
    with pytest.raises(Refusal) as caught:
        check_definition(definition, LIMITS)
    assert caught.value.reason is reason
    assert word in caught.value.message


def test_a_definition_without_tasks_is_fine() -> None:
    check_definition(Definition("p", ("a", "b", "c"), (), per_token_fields=frozenset("abc")), LIMITS)


@pytest.mark.parametrize(
    "tags",
    [
        pytest.param({"": 1}, id="empty key"),
        pytest.param({"x" * 5: 1}, id="long key"),
        pytest.param({"ééé": 1}, id="a key is measured in bytes"),
        pytest.param({1: 1}, id="key that is no str"),
        pytest.param({"k": "x" * 5}, id="long value"),
        pytest.param({"k": 1 << 63}, id="int over 64 bits"),
        pytest.param({"k": -(1 << 63) - 1}, id="int under 64 bits"),
        pytest.param({"k": [1]}, id="list"),
        pytest.param({"k": b"x"}, id="bytes"),
        pytest.param({"good": 1, "k": {}}, id="a bad one after a good one"),
    ],
)
def test_a_value_that_is_no_tag_is_refused_by_sample(tags: Mapping[object, object]) -> None:
    with pytest.raises(Refusal, match="'s2'") as caught:
        check_tags(["s1", "s2"], [{}, dict(tags)], LIMITS)  # type: ignore[arg-type]
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.metadata == {"sample_id": "s2"}


def test_every_kind_of_scalar_is_a_tag() -> None:
    check_tags(
        ["s"],
        [{"none": None, "yes": True, "min": -(1 << 63), "max": (1 << 63) - 1, "nan": float("nan"), "str": "éé"}],
        LIMITS,
    )


def test_tags_of_another_number_of_rows_are_refused() -> None:
    with pytest.raises(Refusal, match="2 rows but names 1") as caught:
        check_tags(["s"], [{}, {}], LIMITS)
    assert caught.value.reason is Reason.ROW_COUNT_MISMATCH
