"""KVBatchMeta keeps rows, lengths and tags together; its transforms leave the original alone."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dataplane_client.errors import UnsupportedTypeError
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


def kept(meta: KVBatchMeta | None) -> KVBatchMeta:
    assert meta is not None
    return meta


TRANSFORMS: dict[str, Callable[[KVBatchMeta], KVBatchMeta]] = {
    "subset": lambda meta: meta.subset([2, 0]),
    "slice": lambda meta: meta.slice(1, 3),
    "drop": lambda meta: kept(meta.drop([1])),
    "without": lambda meta: meta.without(["b"]),
    "with_fields": lambda meta: meta.with_fields(["z"]),
    "concat": lambda meta: meta.concat(),
    "joined": lambda meta: KVBatchMeta.joined([meta]),
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


def test_a_meta_counts_its_rows_and_gives_their_ids(meta: KVBatchMeta) -> None:
    assert (len(meta), list(meta)) == (4, ["a", "b", "c", "d"])


def test_a_meta_carries_what_its_holder_adds(meta: KVBatchMeta) -> None:
    meta.extra_info["dp_rank"] = 1
    meta.task_name = "eval"
    assert (meta.extra_info, meta.task_name) == ({"step": 7, "dp_rank": 1}, "eval")


def test_a_meta_shows_itself_in_a_line(meta: KVBatchMeta) -> None:
    assert repr(meta) == "<KVBatchMeta p/train 4 rows: a, b, c, d with x, y>"
    assert repr(KVBatchMeta("p", None, [])) == "<KVBatchMeta p 0 rows: >"


@pytest.mark.parametrize("name", ["x" * 256, "ä" * 128, "new\nline"], ids=["long", "wide", "two lines"])
def test_a_meta_shows_itself_in_a_hundred_characters_whatever_it_holds(name: str) -> None:
    shown = repr(KVBatchMeta(name, name, [f"{name}{row}" for row in range(65_536)], [name] * 300))
    assert len(shown) <= 100
    assert "65536 rows" in shown
    assert shown.isprintable()


def test_a_table_of_a_meta_shows_its_first_rows_and_escapes_names() -> None:
    hostile = "<script>alert('x')</script>&"
    meta = KVBatchMeta(
        hostile, None, [f"{hostile}{row}" for row in range(50)], None, [5] * 50, tags=[{hostile: "<b>"}] * 50
    )
    table = meta._repr_html_()
    assert table.count("<tr>") == 21
    assert "<script" not in table
    assert "<b>" not in table
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;0" in table


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
        ("without", [11, 13, 14]),
        ("with_fields", [11, 12, 13, 14]),
        ("concat", [11, 12, 13, 14]),
        ("joined", [11, 12, 13, 14]),
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
    assert meta.slice(0, 1).concat(meta.slice(1, 3), meta.slice(3, 4)) == meta


def test_drop_takes_positions_and_keeps_the_order_of_the_rest(meta: KVBatchMeta) -> None:
    rest = kept(meta.drop([2, 0, 2]))
    assert (rest.sample_ids, rest.sequence_lengths, rest.tags) == (["b", "d"], [2, 4], [{"n": 2}, {"n": 4}])


def test_a_meta_from_which_all_rows_are_dropped_is_none(meta: KVBatchMeta) -> None:
    assert meta.drop(range(4)) is None


@pytest.mark.parametrize("index", [-1, 4])
def test_drop_refuses_positions_outside_the_rows(meta: KVBatchMeta, index: int) -> None:
    with pytest.raises(IndexError, match=f"row {index} is outside a meta of 4 rows"):
        meta.drop([index])


def test_without_keeps_the_order_of_the_rest_and_ignores_unknown_ids(meta: KVBatchMeta) -> None:
    rest = meta.without(["c", "zzz", "a"])
    assert (rest.sample_ids, rest.sequence_lengths, rest.tags) == (["b", "d"], [2, 4], [{"n": 2}, {"n": 4}])
    assert len(meta.without(meta)) == 0


def test_unknown_columns_stay_unknown() -> None:
    bare = KVBatchMeta("p", None, ["a", "b"])
    assert bare.subset([1]) == KVBatchMeta("p", None, ["b"])
    assert bare.without(["b"]) == KVBatchMeta("p", None, ["a"])


# -- tags and fields ---------------------------------------------------------------------------------------------------


def test_stamp_tags_sets_tags_by_column_in_place(meta: KVBatchMeta) -> None:
    piece = meta.subset([0])
    meta.stamp_tags({"n": [9, 8, 7, 6], "v": (True, None, "x", 0.5)})
    assert meta.tags == [{"n": 9, "v": True}, {"n": 8, "v": None}, {"n": 7, "v": "x"}, {"n": 6, "v": 0.5}]
    assert piece.tags == [{"n": 1}]


def test_tags_can_be_stamped_where_none_are_known() -> None:
    bare = KVBatchMeta("p", None, ["a", "b"])
    bare.stamp_tags({"v": [1, 2]})
    assert bare.tags == [{"v": 1}, {"v": 2}]


@pytest.mark.parametrize("column", [[1, 2, 3], [], "abcd"], ids=str)
def test_tags_for_another_number_of_rows_are_refused(meta: KVBatchMeta, column: list[int]) -> None:
    before = copy.deepcopy(meta)
    with pytest.raises(ValueError, match="tag 'v' must have one value for each of 4 rows, got"):
        meta.stamp_tags({"n": [0] * 4, "v": column})
    assert meta == before


@pytest.mark.parametrize(
    ("own", "more", "merged"), [(["x"], ["y", "x"], ["x", "y"]), ([], ["y"], ["y"]), (None, ["y"], ["y"])], ids=str
)
def test_with_fields_merges(meta: KVBatchMeta, own: list[str] | None, more: list[str], merged: list[str]) -> None:
    assert replace(meta, fields=own).with_fields(more).fields == merged


@pytest.mark.parametrize("verb", ["without", "with_fields"])
def test_one_str_is_no_list_of_names(meta: KVBatchMeta, verb: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=f"{verb}: .* must be a sequence of str, got the str 'abc'"):
        getattr(meta, verb)("abc")


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
    whole = meta.concat(other())
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
    assert getattr(KVBatchMeta.joined([meta, other(**settings)]), attribute) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"partition_id": "q"}, "must be of one partition, got p, q"), ({"sample_ids": ["a"]}, "duplicate sample id 'a'")],
    ids=["partitions", "samples"],
)
def test_concat_refuses_metas_that_do_not_belong_together(
    meta: KVBatchMeta, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        meta.concat(other(**settings))


def test_no_metas_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match="no metas to join"):
        KVBatchMeta.joined([])
