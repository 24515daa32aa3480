"""Metas by key and by number."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from dataplane_transfer_queue import BatchMeta, KVBatchMeta


def by_key(*keys: str, **other: object) -> KVBatchMeta:
    arguments = {"partition_id": "p", "fields": ["x"], "extra_info": {"e": 1}, **other}
    return KVBatchMeta(list(keys), [{"t": key} for key in keys], **arguments)  # type: ignore[arg-type]


def by_number(*numbers: int, fields: tuple[str, ...] = ("x", "y"), **other: object) -> BatchMeta:
    arguments: dict[str, object] = {
        "partition_ids": ["p"] * len(numbers),
        "field_schema": {name: {"dtype": "int64"} for name in fields},
        "production_status": [1] * len(numbers),
        "extra_info": {"e": [1]},
        "custom_meta": [{"n": number} for number in numbers],
        "keys": [f"k{number}" for number in numbers],
        **other,
    }
    return BatchMeta(list(numbers), **arguments)  # type: ignore[arg-type]


def columns(meta: BatchMeta) -> tuple[object, ...]:
    return meta.global_indexes, [tags["n"] for tags in meta.custom_meta], meta.keys, meta.field_names, meta.extra_info


# -- by key ------------------------------------------------------------------------------------------------------------


def test_rows_by_key_are_selected_reordered_split_and_joined() -> None:
    meta = by_key("a", "b", "c")
    assert (meta.size, len(meta)) == (3, 3)
    assert meta.select_keys(["c", "a"]) == by_key("c", "a")
    assert meta.chunk(2) == [by_key("a", "b"), by_key("c")]
    assert meta.chunk(4) == [by_key("a"), by_key("b"), by_key("c"), by_key()]
    assert KVBatchMeta.concat([by_key(), *meta.chunk(3)]) == meta
    assert KVBatchMeta.concat([KVBatchMeta()]) == KVBatchMeta()
    meta.reorder([2, 0, 1])
    assert meta == by_key("c", "a", "b")


def test_parts_of_a_meta_share_no_extra_info() -> None:
    meta = by_key("a", "b", extra_info={"list": []})
    parts = meta.chunk(2)
    parts[0].extra_info["list"].append(1)  # type: ignore[index]
    assert (meta.extra_info, parts[1].extra_info) == ({"list": []}, {"list": []})


WRONG_BY_KEY: dict[str, tuple[type[Exception], Callable[[], object]]] = {
    "1 keys, but tags for 0": (ValueError, lambda: KVBatchMeta(["a"])),
    "key 'a' comes twice": (ValueError, lambda: by_key("a", "b", "a")),
    "keys \\['z'\\] are not among": (RuntimeError, lambda: by_key("a").select_keys(["z"])),
    "key 'b' comes twice": (ValueError, lambda: by_key("a", "b").select_keys(["b", "b"])),
    "to reorder 2 rows": (ValueError, lambda: by_key("a", "b").reorder([0, 0])),
    "number of parts must be at least 1, got -1": (ValueError, lambda: by_key("a").chunk(-1)),
    "to reorder 1 rows": (ValueError, lambda: by_key("a").reorder([])),
    "the first has \\('p', \\['x'\\]\\)": (
        ValueError,
        lambda: KVBatchMeta.concat([by_key("a"), by_key("b", fields=[])]),
    ),
    "\\('q', \\['x'\\]\\)": (ValueError, lambda: KVBatchMeta.concat([by_key("a"), by_key("b", partition_id="q")])),
    "'e' is 1 and 2": (ValueError, lambda: KVBatchMeta.concat([by_key("a"), by_key("b", extra_info={"e": 2})])),
}


@pytest.mark.parametrize("message", WRONG_BY_KEY)
def test_what_is_no_meta_by_key_is_refused(message: str) -> None:
    error, call = WRONG_BY_KEY[message]
    with pytest.raises(error, match=message):
        call()


# -- by number ---------------------------------------------------------------------------------------------------------


def test_rows_by_number_are_selected_reordered_split_and_joined() -> None:
    meta = by_number(5, 7, 9)
    assert (meta.size, len(meta), meta.is_ready) == (3, 3, True)
    assert columns(meta.select_samples([2, 0, 2])) == columns(by_number(9, 5, 9))
    assert columns(meta.select_fields(["y", "z"])) == columns(by_number(5, 7, 9, fields=("y",)))
    assert list(map(columns, meta.chunk(2))) == [columns(by_number(5, 7)), columns(by_number(9))]
    assert columns(BatchMeta.concat([BatchMeta.empty(), *meta.chunk(3)])) == columns(meta)
    assert BatchMeta.concat([]).size == 0
    assert BatchMeta.concat([meta, by_number(1, fields=())], validate=False).field_names == ["x", "y"]
    meta.reorder([2, 0, 1])
    assert columns(meta) == columns(by_number(9, 5, 7))
    assert repr(meta) == "BatchMeta(size=3, field_names=['x', 'y'], is_ready=True)"


def test_rows_of_several_partitions_are_split_by_partition() -> None:
    parts = by_number(1, 2, 3, 4, partition_ids=["q", "p", "q", "p"]).chunk_by_partition()
    assert [(part.partition_ids, part.global_indexes) for part in parts] == [(["q", "q"], [1, 3]), (["p", "p"], [2, 4])]


def test_a_union_has_the_fields_of_both_and_the_tags_of_the_second() -> None:
    first, second = by_number(1, 2, fields=("x",)), by_number(1, 2, fields=("y",), extra_info={"f": 2})
    second.update_custom_meta([{"m": 1}, {}])
    both = first.union(second)
    assert (both.field_names, both.extra_info) == (["x", "y"], {"e": [1], "f": 2})
    assert both.custom_meta == [{"n": 1, "m": 1}, {"n": 2}]
    assert not first.union(by_number(1, 2, production_status=[1, 0])).is_ready
    assert columns(first.union(BatchMeta.empty())) == columns(BatchMeta.empty().union(first)) == columns(first)


def test_a_meta_is_ready_when_it_has_rows_and_all_hold_the_fields() -> None:
    assert not BatchMeta.empty({"e": 1}).is_ready
    assert BatchMeta.empty({"e": 1}).extra_info == {"e": 1}
    half = by_number(1, 2, production_status=[1, 0])
    assert [half.is_ready, half.select_samples([0]).is_ready] == [False, True]
    assert not BatchMeta([1], ["p"]).is_ready


def test_copies_share_nothing() -> None:
    meta = by_number(1, 2)
    for other in (meta.copy(), copy.deepcopy(meta), meta.select_samples([0]), meta.union(meta)):
        other.extra_info["e"].append(2)
        other.custom_meta[0]["n"] = 7
    assert columns(meta) == columns(by_number(1, 2))


WRONG_BY_NUMBER: dict[str, Callable[[], object]] = {
    "2 global_indexes, but partition_ids for 1": lambda: BatchMeta([1, 2], ["p"]),
    "1 global_indexes, but custom_meta for 0": lambda: BatchMeta([1], ["p"], custom_meta=[]),
    "1 global_indexes, but keys for 2": lambda: BatchMeta([1], ["p"], keys=["a", "b"]),
    "custom_meta for 1 rows": lambda: by_number(1, 2).update_custom_meta([{}]),
    "row 2 is not in 0 to 1": lambda: by_number(1, 2).select_samples([2]),
    "row -1 is not in": lambda: by_number(1, 2).select_samples([-1]),
    "to reorder 2 rows": lambda: by_number(1, 2).reorder([1, 1]),
    "global_indexes are \\[1\\] and \\[2\\]": lambda: by_number(1).union(by_number(2)),
    "partition_ids are": lambda: by_number(1).union(by_number(1, partition_ids=["q"])),
    "a meta has the fields \\['x'\\]": lambda: BatchMeta.concat([by_number(1), by_number(2, fields=("x",))]),
    "'e' is \\[1\\] and 2": lambda: BatchMeta.concat([by_number(1), by_number(2, extra_info={"e": 2})]),
}


@pytest.mark.parametrize("message", WRONG_BY_NUMBER)
def test_what_is_no_meta_by_number_is_refused(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WRONG_BY_NUMBER[message]()


def test_extra_info_and_tags_of_a_meta_can_be_read_changed_and_forgotten() -> None:
    meta = BatchMeta([1, 2], ["p", "p"], custom_meta=[{"a": 1}, {"a": 2}])
    meta.set_extra_info("step", 3)
    meta.update_extra_info({"scale": 2.0})
    copied, tags = meta.get_all_extra_info(), meta.get_all_custom_meta()
    assert (meta.get_extra_info("step"), meta.get_extra_info("x", 7), meta.has_extra_info("x")) == (3, 7, False)
    assert (meta.remove_extra_info("step"), meta.remove_extra_info("step")) == (3, None)
    meta.clear_extra_info()
    meta.clear_custom_meta()
    assert (meta.extra_info, meta.custom_meta) == ({}, [{}, {}])
    assert (copied, tags) == ({"step": 3, "scale": 2.0}, [{"a": 1}, {"a": 2}])


@pytest.mark.parametrize(
    ("name", "instead"),
    [("samples", ": .*select_samples\\(\\[i\\]\\)"), ("get_shapes", ": .*get_data"), ("get_sizes", "$")],
)
def test_a_member_that_is_not_here_is_refused_with_what_to_use(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'{instead}"):
        getattr(BatchMeta([1], ["p"]), name)
