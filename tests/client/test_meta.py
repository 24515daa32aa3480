"""KVBatchMeta keeps rows, lengths and tags together; its transforms leave the original alone."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dataplane_client.errors import UnsupportedTypeError
from dataplane_client.records.meta import KVBatchMeta


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


def kept(meta: KVBatchMeta | None) -> KVBatchMeta:
    assert meta is not None
    return meta


TRANSFORMS: dict[str, tuple[Callable[[KVBatchMeta], KVBatchMeta], list[int]]] = {
    "subset": (lambda meta: meta.subset([2, 0]), [13, 11]),
    "subset of an iterable": (lambda meta: meta.subset(row for row in range(4) if row % 2), [12, 14]),
    "slice": (lambda meta: meta.slice(1, 3), [12, 13]),
    "slice of none": (lambda meta: meta.slice(0, 0), []),
    "slice beyond the end": (lambda meta: meta.slice(2, 99), [13, 14]),
    "slice backwards": (lambda meta: meta.slice(3, 1), []),
    "drop": (lambda meta: kept(meta.drop([2, 0, 2])), [12, 14]),
    "without": (lambda meta: meta.without(["c", "zzz", "a"]), [12, 14]),
    "without all": (lambda meta: meta.without(meta), []),
    "with_fields": (lambda meta: meta.with_fields(["z"]), [11, 12, 13, 14]),
    "concat": (lambda meta: meta.concat(), [11, 12, 13, 14]),
    "concat of slices": (lambda meta: meta.slice(0, 1).concat(meta.slice(1, 3), meta.slice(3, 4)), [11, 12, 13, 14]),
    "joined": (lambda meta: KVBatchMeta.joined([meta]), [11, 12, 13, 14]),
}
"""Each with the generations of the rows that it keeps."""


@pytest.mark.parametrize(("transform", "generations"), TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_transform_keeps_what_belongs_to_its_rows_and_leaves_the_meta_alone(
    meta: KVBatchMeta, transform: Callable[[KVBatchMeta], KVBatchMeta], generations: list[int]
) -> None:
    before, rows = copy.deepcopy(meta), [generation - 11 for generation in generations]
    changed = transform(meta)
    assert changed.generations == generations
    assert changed.sample_ids == ["abcd"[row] for row in rows]
    assert changed.sequence_lengths == [row + 1 for row in rows]
    assert changed.tags == [before.tags[row] for row in rows]  # type: ignore[index]
    assert (changed.partition_id, changed.task_name, changed.extra_info) == ("p", "train", {"step": 7})
    assert (changed.fields or [])[:2] == ["x", "y"]
    changed.extra_info["step"] = 8
    assert meta == before
    bare = transform(KVBatchMeta("p", None, ["a", "b", "c", "d"]))
    assert (bare.generations, bare.sequence_lengths, bare.tags) == (None, None, None)
    assert bare.sample_ids == changed.sample_ids


@pytest.mark.parametrize(
    "column",
    [{"sequence_lengths": [1]}, {"tags": [{}]}, {"generations": [1]}, {"generations": 1}],
    ids=str,
)
def test_columns_of_another_length_than_the_ids_are_refused(column: dict[str, Any]) -> None:
    with pytest.raises((ValueError, UnsupportedTypeError), match=f"{next(iter(column))} .* 2 .* 1"):
        KVBatchMeta("p", None, ["a", "b"], **column)


def test_a_meta_counts_its_rows_and_gives_their_ids(meta: KVBatchMeta) -> None:
    assert (len(meta), meta.size, list(meta)) == (4, 4, ["a", "b", "c", "d"])


@pytest.mark.parametrize("name", ["x" * 256, "ä" * 128, "new\nline"], ids=["long", "wide", "two lines"])
def test_a_meta_shows_itself_in_a_hundred_characters_whatever_it_holds(name: str) -> None:
    shown = repr(KVBatchMeta(name, name, [f"{name}{row}" for row in range(65_536)], [name] * 300))
    assert len(shown) <= 100
    assert "65536 rows" in shown
    assert shown.isprintable()


def test_a_table_of_a_meta_shows_its_first_rows() -> None:
    assert KVBatchMeta("p", None, [f"s{row}" for row in range(50)])._repr_html_().count("<tr>") == 21


def test_metas_survive_pickling(meta: KVBatchMeta) -> None:
    again = pickle.loads(pickle.dumps(meta))  # noqa: S301  # trainers hand metas to their workers
    assert (again, again.generations) == (meta, meta.generations)


def test_metas_of_equal_content_are_equal_whatever_their_generations(meta: KVBatchMeta) -> None:
    assert meta == replace(meta, generations=[1, 2, 3, 4]) == replace(meta, generations=None)
    assert meta != replace(meta, sample_ids=["a", "b", "c", "e"])


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["subset", "drop"])
@pytest.mark.parametrize("index", [-1, 4])
def test_positions_outside_the_rows_are_refused(meta: KVBatchMeta, verb: str, index: int) -> None:
    with pytest.raises(IndexError, match=f"row {index} .* 4 rows"):
        getattr(meta, verb)([0, index])


@pytest.mark.parametrize("verb", ["subset", "drop"])
@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_a_mask_is_no_list_of_positions(meta: KVBatchMeta, verb: str, kind: Callable[[list[Any]], Any]) -> None:
    assert getattr(meta, verb)(kind([1, 3])).sample_ids == {"subset": ["b", "d"], "drop": ["a", "c"]}[verb]
    with pytest.raises(UnsupportedTypeError, match=f"{verb} .*not a mask"):
        getattr(meta, verb)(kind([True, False, True, True]))


# -- tags and fields ---------------------------------------------------------------------------------------------------


def test_stamp_tags_sets_tags_by_column_in_place(meta: KVBatchMeta) -> None:
    piece = meta.subset([0])
    meta.stamp_tags({"n": [9, 8, 7, 6], "v": (True, None, "x", 0.5)})
    assert meta.tags == [{"n": 9, "v": True}, {"n": 8, "v": None}, {"n": 7, "v": "x"}, {"n": 6, "v": 0.5}]
    assert piece.tags == [{"n": 1}]
    bare = KVBatchMeta("p", None, ["a", "b"])
    bare.stamp_tags({"v": [1, 2]})
    assert bare.tags == [{"v": 1}, {"v": 2}]


@pytest.mark.parametrize("column", [[1, 2, 3], [], "abcd"], ids=str)
def test_tags_for_another_number_of_rows_are_refused(meta: KVBatchMeta, column: list[int]) -> None:
    before = copy.deepcopy(meta)
    with pytest.raises(ValueError, match=r"'v' .* 4 rows"):
        meta.stamp_tags({"n": [0] * 4, "v": column})
    assert meta == before


@pytest.mark.parametrize(
    ("own", "more", "merged"), [(["x"], ["y", "x"], ["x", "y"]), ([], ["y"], ["y"]), (None, ["y"], ["y"])], ids=str
)
def test_with_fields_merges(meta: KVBatchMeta, own: list[str] | None, more: list[str], merged: list[str]) -> None:
    assert replace(meta, fields=own).with_fields(more).fields == merged


@pytest.mark.parametrize("verb", ["without", "with_fields"])
def test_one_str_is_no_list_of_names(meta: KVBatchMeta, verb: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=f"{verb}: .*'abc'"):
        getattr(meta, verb)("abc")


# -- concat ------------------------------------------------------------------------------------------------------------


def other(**settings: Any) -> KVBatchMeta:
    last = KVBatchMeta("p", "train", ["e"], ["y", "x"], [5], {"step": 8, "dp_rank": 0}, [{"n": 5}], [15])
    return replace(last, **settings)


@pytest.mark.parametrize(
    ("settings", "attribute", "expected"),
    [
        ({}, "task_name", "train"),
        ({}, "fields", ["x", "y"]),
        ({}, "extra_info", {"step": 8, "dp_rank": 0}),
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
    assert getattr(KVBatchMeta.joined([meta, other(**settings)]), attribute) == expected


def test_concat_refuses_metas_that_do_not_belong_together(meta: KVBatchMeta) -> None:
    with pytest.raises(ValueError, match="p, q"):
        meta.concat(other(partition_id="q"))
    with pytest.raises(ValueError, match="'a'"):
        meta.concat(other(sample_ids=["a"]))
    with pytest.raises(ValueError, match="no metas"):
        KVBatchMeta.joined([])
