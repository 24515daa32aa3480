"""BatchedDataDict: rows of one batch, whatever the kind of its columns."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tensors import objects

from dataplane_client.batched_data_dict import BatchedDataDict, SlicedDataDict
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor

Batch = BatchedDataDict[Any]


def rows(count: int) -> Batch:
    """One column of each kind; row i holds 10 + i everywhere."""
    numbers, lengths = range(10, 10 + count), [i % 3 for i in range(count)]
    return BatchedDataDict(
        ids=torch.tensor([[n, 0] for n in numbers]).reshape(count, 2),
        logs=[{"n": n} for n in numbers],
        tags=objects(*(tag_of(n) for n in numbers)),
        jagged=torch.nested.nested_tensor_from_jagged(
            torch.arange(10, 10 + count).repeat_interleave(torch.tensor(lengths, dtype=torch.int64)),
            torch.tensor([0, *lengths]).cumsum(0),
        ),
        image=PackedTensor([torch.full((n - 10, 2), n) for n in numbers], 0) if count else PackedTensor([None], 0),
    )


def four_rows() -> Batch:
    return rows(4)


def tag_of(number: int) -> object:
    return [[number], str(number), number, None][number % 4]


def rows_of(batch: Mapping[str, Any]) -> list[int]:
    """The rows that batch holds, after a check that all its columns agree."""
    numbers = [int(n) for n in batch["ids"][:, 0]]
    assert [entry["n"] for entry in batch["logs"]] == numbers
    assert list(batch["tags"]) == [tag_of(n) for n in numbers]
    assert batch["jagged"].values().tolist() == [n for n in numbers for _ in range((n - 10) % 3)]
    if "image" in batch:
        assert [tuple(row.shape) for row in batch["image"].tensors] == [(n - 10, 2) for n in numbers]
    return [n - 10 for n in numbers]


def taken(rng: random.Random, batch: Batch, held: list[int]) -> tuple[Batch, list[int]]:
    """Some rows of a batch that holds these, at least one, by one of its verbs, and which these are."""
    count = len(held)
    verb = rng.choice(["slice", "select", "chunk", "reorder", "repeat", "join"])
    if verb == "slice":
        start = rng.randrange(count)
        end = rng.randint(start + 1, count)
        return batch.slice(start, end), held[start:end]
    if verb == "select":
        chosen = [rng.randrange(count) for _ in range(rng.randint(1, 4))]
        given = chosen if rng.random() < 0.5 else torch.tensor(chosen)
        return batch.select_indices(given), [held[row] for row in chosen]
    if verb == "chunk":
        chunks = rng.choice([n for n in range(1, count + 1) if count % n == 0])
        rank, size = rng.randrange(chunks), count // chunks
        return batch.chunk(rank, chunks), held[rank * size : (rank + 1) * size]
    if verb == "reorder":
        order = rng.sample(range(count), count)
        batch = batch.select_indices(range(count))
        batch.reorder_data(order if rng.random() < 0.5 else torch.tensor(order))
        return batch, [held[order.index(place)] for place in range(count)]
    if verb == "repeat":
        without = BatchedDataDict[Any]({name: column for name, column in batch.items() if name != "image"})
        return without.repeat_interleave(2), [row for row in held for _ in range(2)]
    return BatchedDataDict[Any].from_batches([batch, batch]), held + held


@given(count=st.integers(1, 6), verbs=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_rows_that_are_taken_from_rows_that_were_taken_are_those_of_lists(count: int, verbs: int, seed: int) -> None:
    """In every kind of column, by whatever verbs one after the other."""
    rng, batch, held = random.Random(seed), rows(count), list(range(count))
    for _ in range(verbs):
        batch, held = taken(rng, batch, held)
        assert rows_of(batch) == held
        if len(held) > 12:
            return


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_metadata_survives_copying(copied: Callable[[Batch], Batch]) -> None:
    batch: Batch = BatchedDataDict(a=[1, 2])
    batch.micro_batch_indices = [[[0, 2]]]
    assert copied(batch).micro_batch_indices == [[[0, 2]]]
    assert copied(batch) == batch


@pytest.mark.parametrize(
    "value", [3, "text", None, {"n": 1}, torch.tensor(3), np.array(3)], ids=["int", "str", "none", "dict", "0d", "0da"]
)
@pytest.mark.parametrize(
    "use",
    [
        lambda batch: batch.slice(0, 1),
        lambda batch: batch.select_indices([0]),
        lambda batch: batch.chunk(0, 1),
        lambda batch: batch.shard_by_batch_size(1),
    ],
    ids=["slice", "select_indices", "chunk", "shard"],
)
def test_a_value_without_rows_is_refused_by_name(use: Callable[[Batch], object], value: object) -> None:
    with pytest.raises(TypeError, match="'lr'"):
        use(BatchedDataDict(ids=torch.zeros(1), lr=value))


# --- slice ---


def test_slice_takes_the_rows_of_every_column_and_no_metadata() -> None:
    batch = four_rows()
    batch.micro_batch_indices, batch.micro_batch_lengths, batch.elem_counts_per_gb = [[[0, 4]]], [[2]], [4]
    part = batch.slice(1, 3)
    assert (type(part), rows_of(part)) == (SlicedDataDict, [1, 2])
    assert (part.micro_batch_indices, part.micro_batch_lengths, part.elem_counts_per_gb) == (None, None, None)


def test_slice_of_a_tensor_is_a_view() -> None:
    batch = four_rows()
    batch.slice(1, 3)["ids"][0, 0] = 99
    assert batch["ids"][1, 0] == 99


@pytest.mark.parametrize("column", [[1, 2, 3, 4], objects(1, 2, 3, 4)], ids=["list", "ndarray"])
def test_slice_beyond_the_end_of_a_list_ends_with_it(column: object) -> None:
    assert list(BatchedDataDict[Any](x=column).slice(3, 9)["x"]) == [4]


# --- select_indices, chunk ---


@pytest.mark.parametrize(
    "use",
    [lambda b: b.select_indices([0, 1]), lambda b: b.chunk(0, 2), lambda b: b.shard_by_batch_size(2)[0]],
    ids=["select_indices", "chunk", "shard"],
)
def test_parts_other_than_slices_hold_copies(use: Callable[[Batch], Batch]) -> None:
    batch = four_rows()
    use(batch)["ids"].fill_(99)
    assert rows_of(batch) == [0, 1, 2, 3]


def test_select_indices_of_no_rows_keeps_every_column() -> None:
    empty = four_rows().select_indices([])
    assert (empty["ids"].shape, empty["logs"], empty["tags"].shape, len(empty["image"])) == ((0, 2), [], (0,), 0)


# --- reorder_data ---


@pytest.mark.parametrize("indices", [[0, 0, 1, 2], [1, 2, 3, 4], [-1, 0, 1, 2]])
def test_reorder_data_refuses_what_is_no_permutation_and_changes_nothing(indices: list[int]) -> None:
    batch = four_rows()
    with pytest.raises(ValueError, match="0 to 3"):
        batch.reorder_data(indices)
    assert rows_of(batch) == [0, 1, 2, 3]


# --- repeat_interleave, truncate_tensors, to ---


def test_repeating_rows_no_times_leaves_the_columns() -> None:
    batch = four_rows()
    del batch["image"]
    assert (rows_of(batch.repeat_interleave(0)), rows_of(batch.repeat_interleave(1))) == ([], [0, 1, 2, 3])


def test_repeat_interleave_copies_list_and_object_elements_for_each_repeat() -> None:
    batch = four_rows()
    del batch["image"]
    repeated = batch.repeat_interleave(2)
    repeated["logs"][0]["n"] = 99
    repeated["tags"][4].append(99)
    assert (repeated["logs"][1], repeated["tags"][5]) == ({"n": 10}, [12])
    assert (batch["logs"][0], batch["tags"][2]) == ({"n": 10}, [12])


def test_truncate_tensors_cuts_every_tensor_that_has_the_dimension() -> None:
    batch: Batch = BatchedDataDict(
        a=torch.zeros(2, 5), b=torch.zeros(2, 3, 4), c=torch.zeros(2), d=[[1, 2, 3, 4]] * 2, e=np.zeros((2, 5))
    )
    batch.truncate_tensors(dim=1, truncated_len=3)
    assert [tuple(batch[key].shape) for key in "abce"] == [(2, 3), (2, 3, 4), (2,), (2, 5)]
    assert batch["d"] == [[1, 2, 3, 4]] * 2


def test_truncate_tensors_refuses_a_shorter_tensor_by_name_and_changes_nothing() -> None:
    batch: Batch = BatchedDataDict(a=torch.zeros(2, 5), b=torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"'b' .*3 .*dim 1.* 4"):
        batch.truncate_tensors(dim=1, truncated_len=4)
    assert batch["a"].shape == (2, 5)


def test_to_moves_tensors_and_packed_tensors_in_place() -> None:
    batch = four_rows()
    assert batch.to("meta") is batch
    assert (batch["ids"].device.type, batch["image"].tensors[0].device.type) == ("meta", "meta")
    assert (batch["logs"][0], batch["tags"][3]) == ({"n": 10}, "13")


# --- get_multimodal_dict ---


def multimodal() -> Batch:
    return BatchedDataDict(
        pixel_values=torch.zeros(2, 3, 4, 4),
        image=PackedTensor([torch.zeros(1, 2), torch.ones(2, 2)], 0),
        video=PackedTensor([None, None], 0),
        token_type_ids=torch.ones(2, 3),
        mm_token_type_ids=PackedTensor([torch.zeros(1), torch.ones(2)], 0),
        logs=["a", "b"],
    )


def test_multimodal_dict_holds_packed_and_token_type_columns_only() -> None:
    found = multimodal().get_multimodal_dict()
    assert type(found) is dict
    assert sorted(found) == ["image", "mm_token_type_ids", "token_type_ids", "video"]
    assert isinstance(found["image"], PackedTensor)


def test_multimodal_dict_concatenates_rows_on_request() -> None:
    found = multimodal().get_multimodal_dict(as_tensors=True)
    assert (found["image"].shape, found["video"]) == ((3, 2), None)
    assert found["mm_token_type_ids"].tolist() == [0, 1, 1]


@pytest.mark.parametrize("as_tensors", [True, False])
def test_multimodal_dict_lies_on_the_device_asked_for_and_the_batch_stays(as_tensors: bool) -> None:
    batch = multimodal()
    found = batch.get_multimodal_dict(as_tensors=as_tensors, device="meta")
    image = found["image"] if as_tensors else found["image"].tensors[0]
    assert (image.device.type, found["token_type_ids"].device.type) == ("meta", "meta")
    assert (batch["image"].tensors[0].device.type, batch["token_type_ids"].device.type) == ("cpu", "cpu")


# --- refusals ---

BEYOND = "end 5 .*'x'"
NOT_FLAT = "integers"
REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "slice beyond a tensor": (lambda: Batch(x=torch.zeros(4)).slice(3, 5), AssertionError, BEYOND),
    "slice beyond packed rows": (lambda: Batch(x=PackedTensor([None] * 4, 0)).slice(3, 5), AssertionError, BEYOND),
    "slice from -1": (lambda: four_rows().slice(-1, 2), ValueError, "0 <= start <= end"),
    "slice backwards": (lambda: four_rows().slice(3, 2), ValueError, "0 <= start <= end"),
    "select by a mask": (lambda: four_rows().select_indices([True, False]), TypeError, NOT_FLAT),
    "select by a tensor mask": (lambda: four_rows().select_indices(torch.tensor([True])), TypeError, NOT_FLAT),
    "select by a list of bools": (lambda: four_rows().select_indices([*torch.tensor([True])]), TypeError, NOT_FLAT),
    "select in two dims": (lambda: four_rows().select_indices(torch.tensor([[0]])), TypeError, NOT_FLAT),
    "select a scalar": (lambda: four_rows().select_indices(torch.tensor(0)), TypeError, NOT_FLAT),
    "select by a float": (lambda: four_rows().select_indices([0.0]), TypeError, NOT_FLAT),  # type: ignore[list-item]
    "chunk behind the last": (lambda: Batch(a=torch.zeros(100)).chunk(2, 2), AssertionError, "index OOB"),
    "chunk before the first": (lambda: Batch(a=torch.zeros(100)).chunk(-1, 2), AssertionError, "index OOB"),
    "3 chunks of 4 rows": (lambda: four_rows().chunk(0, 3), AssertionError, "multiple of chunks"),
    "no chunks": (lambda: four_rows().chunk(0, 0), AssertionError, "multiple of chunks"),
    "chunk of uneven columns": (lambda: Batch(a=[1, 2], b=[1]).chunk(0, 1), AssertionError, "sizes"),
    "reorder uneven columns": (lambda: Batch(a=[1, 2], b=[1]).reorder_data([0, 1]), AssertionError, "sizes"),
    "reorder by too many": (lambda: Batch(a=[1, 2]).reorder_data([0, 1, 2]), AssertionError, "sizes"),
    "repeat packed tensors": (lambda: four_rows().repeat_interleave(2), NotImplementedError, "'image'"),
    "repeat -1 times": (lambda: Batch(a=[1]).repeat_interleave(-1), ValueError, "num_repeats"),
    "an absent column": (lambda: Batch(a=[1])["b"], KeyError, "'b'.*'a'"),
    "a row as a column": (lambda: Batch(a=[1])[0], KeyError, "slice"),  # type: ignore[index]
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
