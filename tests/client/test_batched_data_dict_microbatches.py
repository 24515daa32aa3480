"""BatchedDataDict: global batches and the microbatches in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dataplane_client.batched_data_dict import BatchedDataDict, SlicedDataDict

Batch = BatchedDataDict[Any]


def numbered(rows: int, width: int = 8) -> Batch:
    return BatchedDataDict(ids=torch.arange(rows)[:, None].expand(rows, width), name=[str(i) for i in range(rows)])


def packed() -> Batch:
    """Five rows: a global batch of 3 rows in 2 microbatches, then one of 2 rows in 1."""
    batch = numbered(5)
    batch.micro_batch_indices = [[[0, 2], [2, 3]], [[0, 2]]]
    batch.micro_batch_lengths = [[7, 6], [8]]
    batch.elem_counts_per_gb = [3, 2]
    return batch


def rows_of(batch: Batch) -> list[int]:
    rows = [int(i) for i in batch["ids"][:, 0]]
    assert batch["name"] == [str(i) for i in rows]
    return rows


def test_get_batch_takes_the_rows_and_metadata_recorded_for_packed_data() -> None:
    first, second = packed().get_batch(0, batch_size=99), packed().get_batch(1)
    assert (rows_of(first), rows_of(second)) == ([0, 1, 2], [3, 4])
    assert (second.micro_batch_indices, second.micro_batch_lengths) == ([[[0, 2]]], [[8]])
    assert (second.elem_counts_per_gb, type(first)) == ([2], SlicedDataDict)


def without_indices() -> Batch:
    batch = packed()
    batch.micro_batch_indices = None
    return batch


UNEVEN = "is not a multiple of the provided microbatch size"
REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "batch 2 of 2": (lambda: packed().get_batch(2), IndexError, "outside 2 global batches"),
    "batch -1": (lambda: packed().get_batch(-1), IndexError, "outside 2 global batches"),
    "no microbatches": (lambda: without_indices().get_batch(0), AssertionError, "micro_batch_indices must be present"),
    "no batch size": (lambda: numbered(6).get_batch(1), TypeError, "batch_size"),
    "6 rows by 4": (lambda: next(numbered(6).make_microbatch_iterator(4)), AssertionError, UNEVEN),
    "6 rows by 0": (lambda: next(numbered(6).make_microbatch_iterator(0)), AssertionError, UNEVEN),
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_a_batch_or_microbatch_that_is_not_there_is_refused(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_get_batch_of_plain_data_takes_batch_size_rows() -> None:
    assert rows_of(numbered(6).get_batch(1, 2)) == [2, 3]
    assert numbered(6).get_batch(1, 2).micro_batch_indices is None


def test_get_batch_of_dynamically_batched_data_takes_the_metadata_along() -> None:
    batch = numbered(4)
    batch.micro_batch_indices, batch.micro_batch_lengths = [[[0, 2]], [[0, 1], [1, 2]]], [[4], [6, 8]]
    second = batch.get_batch(1, 2)
    assert rows_of(second) == [2, 3]
    assert (second.micro_batch_indices, second.micro_batch_lengths) == ([[[0, 1], [1, 2]]], [[6, 8]])
    assert second.elem_counts_per_gb is None


def test_fixed_microbatches_are_consecutive_slices() -> None:
    assert [rows_of(mb) for mb in numbered(6).make_microbatch_iterator(2)] == [[0, 1], [2, 3], [4, 5]]


def test_dynamic_microbatches_are_cut_to_their_length() -> None:
    batch = packed().get_batch(0)
    microbatches = list(batch.make_microbatch_iterator_with_dynamic_shapes())
    assert [rows_of(mb) for mb in microbatches] == [[0, 1], [2]]
    assert [mb["ids"].shape for mb in microbatches] == [(2, 7), (1, 6)]
    assert batch.get_microbatch_iterator_dynamic_shapes_len() == 2
    assert batch["ids"].shape == (3, 8)


def test_dynamic_microbatches_can_be_cut_along_another_dimension() -> None:
    batch = packed().get_batch(0)
    batch["ids"] = torch.zeros(3, 4, 8)
    microbatches = batch.make_microbatch_iterator_with_dynamic_shapes(sequence_dim=2)
    assert [mb["ids"].shape for mb in microbatches] == [(2, 4, 7), (1, 4, 6)]


def test_packable_microbatches_are_not_cut() -> None:
    batch = packed().get_batch(0)
    microbatches = list(batch.make_microbatch_iterator_for_packable_sequences())
    assert [rows_of(mb) for mb in microbatches] == [[0, 1], [2]]
    assert [mb["ids"].shape for mb in microbatches] == [(2, 8), (1, 8)]
    assert batch.get_microbatch_iterator_for_packable_sequences_len() == (2, 7)


@pytest.mark.parametrize("batch", [packed(), numbered(5)], ids=["two_global_batches", "no_metadata"])
@pytest.mark.parametrize(
    "use",
    [
        lambda batch: next(batch.make_microbatch_iterator_with_dynamic_shapes()),
        lambda batch: batch.get_microbatch_iterator_dynamic_shapes_len(),
        lambda batch: next(batch.make_microbatch_iterator_for_packable_sequences()),
        lambda batch: batch.get_microbatch_iterator_for_packable_sequences_len(),
    ],
    ids=["dynamic", "dynamic_len", "packable", "packable_len"],
)
def test_microbatches_of_any_but_one_global_batch_are_refused(use: Callable[[Batch], object], batch: Batch) -> None:
    with pytest.raises(AssertionError, match="one global batch at a time"):
        use(batch)
