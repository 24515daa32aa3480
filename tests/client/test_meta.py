"""KVBatchMeta is a value: its transforms keep rows, lengths and tags together and leave the original alone."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from dataplane_client.meta import KVBatchMeta


@pytest.fixture
def meta() -> KVBatchMeta:
    return KVBatchMeta(
        partition_id="p",
        task_name="train",
        sample_ids=["a", "b", "c", "d"],
        fields=["x", "y"],
        sequence_lengths=[1, 2, 3, 4],
        extra_info={"step": 7},
        tags=[{"n": 1}, {"n": 2}, {}, {"n": 4}],
        generations=[11, 12, 13, 14],
    )


TRANSFORMS: dict[str, Callable[[KVBatchMeta], KVBatchMeta]] = {
    "subset": lambda meta: meta.subset([2, 0]),
    "slice": lambda meta: meta.slice(1, 3),
    "drop": lambda meta: meta.drop(["b"]),
    "stamp_tags": lambda meta: meta.stamp_tags({"n": 9}),
    "with_fields": lambda meta: meta.with_fields(["z"]),
    "concat": lambda meta: KVBatchMeta.concat([meta]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_leaves_the_meta_alone(meta: KVBatchMeta, name: str) -> None:
    before = copy.deepcopy(meta)
    changed = TRANSFORMS[name](meta)
    changed.extra_info["step"] = 8
    assert meta == before


def test_size_counts_rows(meta: KVBatchMeta) -> None:
    assert meta.size == 4
    assert KVBatchMeta("p", None, []).size == 0


@pytest.mark.parametrize(
    "column",
    [{"sequence_lengths": [1]}, {"tags": [{}]}, {"generations": [1]}],
    ids=["sequence_lengths", "tags", "generations"],
)
def test_columns_of_another_length_than_the_ids_are_refused(column: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(column))} must have one entry for each of 2 sample ids, got 1"):
        KVBatchMeta("p", None, ["a", "b"], **column)


def test_metas_cannot_be_assigned_to(meta: KVBatchMeta) -> None:
    with pytest.raises(FrozenInstanceError):
        meta.task_name = "eval"  # type: ignore[misc]


def test_metas_survive_pickling(meta: KVBatchMeta) -> None:
    again = pickle.loads(pickle.dumps(meta))  # noqa: S301  # trainers hand metas to their workers
    assert (again, again.generations) == (meta, meta.generations)


def test_metas_of_equal_content_are_equal_whatever_their_generations(meta: KVBatchMeta) -> None:
    assert meta == replace(meta, generations=[1, 2, 3, 4]) == replace(meta, generations=None)
    assert meta != replace(meta, sample_ids=["a", "b", "c", "e"])


@pytest.mark.parametrize(
    ("name", "generations"),
    [
        ("subset", [13, 11]),
        ("slice", [12, 13]),
        ("drop", [11, 13, 14]),
        ("stamp_tags", [11, 12, 13, 14]),
        ("with_fields", [11, 12, 13, 14]),
        ("concat", [11, 12, 13, 14]),
    ],
)
def test_a_transform_keeps_generations_with_their_rows(meta: KVBatchMeta, name: str, generations: list[int]) -> None:
    assert TRANSFORMS[name](meta).generations == generations
    assert TRANSFORMS[name](replace(meta, generations=None)).generations is None


# -- rows --------------------------------------------------------------------------------------------------------------


def test_subset_takes_rows_in_the_order_given(meta: KVBatchMeta) -> None:
    chosen = meta.subset([3, 0])
    assert (chosen.sample_ids, chosen.sequence_lengths, chosen.tags) == (["d", "a"], [4, 1], [{"n": 4}, {"n": 1}])
    assert (chosen.partition_id, chosen.task_name, chosen.fields) == ("p", "train", ["x", "y"])
    assert chosen.extra_info == {"step": 7}


def test_subset_takes_any_iterable(meta: KVBatchMeta) -> None:
    assert meta.subset(row for row in range(4) if row % 2).sample_ids == ["b", "d"]


@pytest.mark.parametrize("index", [-1, 4])
def test_subset_refuses_positions_outside_the_rows(meta: KVBatchMeta, index: int) -> None:
    with pytest.raises(IndexError, match=f"row {index} is outside a meta of 4 rows"):
        meta.subset([0, index])


@pytest.mark.parametrize(
    ("start", "end", "ids"), [(1, 3, ["b", "c"]), (0, 0, []), (2, 99, ["c", "d"]), (3, 1, [])], ids=str
)
def test_slice_cuts_bounds_beyond_the_rows(meta: KVBatchMeta, start: int, end: int, ids: list[str]) -> None:
    piece = meta.slice(start, end)
    assert piece.sample_ids == ids
    assert piece.sequence_lengths == [meta.sample_ids.index(sample) + 1 for sample in ids]


def test_slices_put_together_are_the_whole(meta: KVBatchMeta) -> None:
    assert KVBatchMeta.concat([meta.slice(0, 1), meta.slice(1, 3), meta.slice(3, 4)]) == meta


def test_drop_keeps_the_order_of_the_rest_and_ignores_unknown_ids(meta: KVBatchMeta) -> None:
    rest = meta.drop(["c", "zzz", "a"])
    assert (rest.sample_ids, rest.sequence_lengths, rest.tags) == (["b", "d"], [2, 4], [{"n": 2}, {"n": 4}])


def test_unknown_columns_stay_unknown() -> None:
    bare = KVBatchMeta("p", None, ["a", "b"])
    assert bare.subset([1]) == KVBatchMeta("p", None, ["b"])
    assert bare.drop(["b"]) == KVBatchMeta("p", None, ["a"])


# -- tags and fields ---------------------------------------------------------------------------------------------------


def test_one_mapping_of_tags_goes_to_every_row_and_wins(meta: KVBatchMeta) -> None:
    assert meta.stamp_tags({"n": 9, "v": 1}).tags == [{"n": 9, "v": 1}] * 4


def test_a_mapping_for_each_row_is_merged_into_its_row(meta: KVBatchMeta) -> None:
    stamped = meta.stamp_tags([{"v": 1}, {}, {"n": 3}, {"n": 5}])
    assert stamped.tags == [{"n": 1, "v": 1}, {"n": 2}, {"n": 3}, {"n": 5}]


def test_tags_can_be_stamped_where_none_are_known() -> None:
    assert KVBatchMeta("p", None, ["a", "b"]).stamp_tags({"v": 1}).tags == [{"v": 1}, {"v": 1}]


def test_tags_for_another_number_of_rows_are_refused(meta: KVBatchMeta) -> None:
    with pytest.raises(ValueError, match="tags for 3 rows, but the meta has 4"):
        meta.stamp_tags([{}] * 3)


@pytest.mark.parametrize("fields", [["z"], [], None], ids=str)
def test_with_fields_names_other_fields(meta: KVBatchMeta, fields: list[str] | None) -> None:
    assert meta.with_fields(fields).fields == fields


# -- concat ------------------------------------------------------------------------------------------------------------


def other(**settings: object) -> KVBatchMeta:
    what: dict[str, object] = {
        "partition_id": "p",
        "task_name": "train",
        "sample_ids": ["e"],
        "fields": ["y", "x"],
        "sequence_lengths": [5],
        "extra_info": {"step": 8, "dp_rank": 0},
        "tags": [{"n": 5}],
        "generations": [15],
        **settings,
    }
    return KVBatchMeta(**what)  # type: ignore[arg-type]


def test_concat_joins_rows_in_order(meta: KVBatchMeta) -> None:
    whole = KVBatchMeta.concat([meta, other()])
    assert whole.sample_ids == ["a", "b", "c", "d", "e"]
    assert whole.sequence_lengths == [1, 2, 3, 4, 5]
    assert whole.tags == [{"n": 1}, {"n": 2}, {}, {"n": 4}, {"n": 5}]
    assert whole.generations == [11, 12, 13, 14, 15]
    assert (whole.task_name, whole.fields) == ("train", ["x", "y"])
    assert whole.extra_info == {"step": 8, "dp_rank": 0}


@pytest.mark.parametrize(
    ("settings", "attribute", "expected"),
    [
        ({"task_name": "eval"}, "task_name", None),
        ({"fields": ["y", "z"]}, "fields", ["y"]),
        ({"fields": None}, "fields", None),
        ({"sequence_lengths": None}, "sequence_lengths", None),
        ({"tags": None}, "tags", None),
        ({"generations": None}, "generations", None),
    ],
    ids=str,
)
def test_concat_keeps_what_all_metas_know(
    meta: KVBatchMeta, settings: dict[str, object], attribute: str, expected: object
) -> None:
    assert getattr(KVBatchMeta.concat([meta, other(**settings)]), attribute) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"partition_id": "q"}, "must be of one partition, got p, q"), ({"sample_ids": ["a"]}, "duplicate sample id 'a'")],
    ids=["partitions", "samples"],
)
def test_concat_refuses_metas_that_do_not_belong_together(
    meta: KVBatchMeta, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        KVBatchMeta.concat([meta, other(**settings)])


def test_concat_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        KVBatchMeta.concat([])
