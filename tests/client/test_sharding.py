"""BatchedDataDict.shard_by_batch_size: the fixed vectors, the checks, and every kind of column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dataplane_client.batched_data_dict import BatchedDataDict, DynamicBatchingArgs, SequencePackingArgs, SlicedDataDict
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor

Batch = BatchedDataDict[Any]
LENGTHS = [2, 8, 4, 16, 28, 32, 2, 32]
DYNAMIC = DynamicBatchingArgs(
    max_tokens_per_microbatch=32, sequence_length_round=4, input_key="ids", input_lengths_key="lengths"
)
PACKING = SequencePackingArgs(
    max_tokens_per_microbatch=32,
    input_key="ids",
    input_lengths_key="lengths",
    algorithm="modified_first_fit_decreasing",
    sequence_length_pad_multiple=4,
)


def with_lengths(lengths: list[int], width: int = 32) -> Batch:
    """Row i holds i everywhere."""
    rows = len(lengths)
    return BatchedDataDict(ids=torch.arange(rows)[:, None].expand(rows, width), lengths=torch.tensor(lengths))


def rows_of(shard: Batch) -> list[int]:
    return [int(i) for i in shard["ids"][:, 0]]


# --- plain ---


@pytest.mark.parametrize(
    ("batch_size", "parts"), [(2, ["ABCD", "ABCD"]), (None, ["AABB", "CCDD"])], ids=["chunks of 2", "one chunk"]
)
def test_every_shard_gets_its_part_of_every_chunk(batch_size: int | None, parts: list[str]) -> None:
    shards = BatchedDataDict[Any](a=list("AABBCCDD")).shard_by_batch_size(2, batch_size)
    assert ["".join(shard["a"]) for shard in shards] == parts
    assert {(type(shard), shard.micro_batch_indices is None) for shard in shards} == {(SlicedDataDict, True)}


def test_arrays_become_lists_and_packed_tensors_stay_packed() -> None:
    tags = np.empty(4, dtype=object)
    tags[0], tags[1], tags[2], tags[3] = [1], "b", None, 4
    batch: Batch = BatchedDataDict(tags=tags, n=np.arange(4), image=PackedTensor([torch.zeros(i) for i in range(4)], 0))
    first, second = batch.shard_by_batch_size(2)
    assert (first["tags"], first["n"]) == ([[1], "b"], [0, 1])
    assert (second["tags"], second["n"]) == ([None, 4], [2, 3])
    assert [row.shape[0] for row in second["image"].tensors] == [2, 3]


def test_uneven_shards_are_rounded_up_and_the_last_ones_may_be_empty_but_keep_every_column() -> None:
    batch: Batch = BatchedDataDict(
        ids=torch.arange(5)[:, None].expand(5, 3), names=list("abcde"), image=PackedTensor([torch.ones(1)] * 5, 0)
    )
    shards = batch.shard_by_batch_size(4, allow_uneven_shards=True)
    assert [rows_of(shard) for shard in shards] == [[0, 1], [2, 3], [4], []]
    last = shards[-1]
    assert (last["ids"].shape, last["names"], last["image"].as_tensor()) == ((0, 3), [], None)
    assert BatchedDataDict[Any].from_batches(shards)["names"] == list("abcde")


@pytest.mark.parametrize("columns", [{}, {"ids": torch.zeros(0, 4), "lengths": torch.zeros(0, dtype=torch.int64)}])
def test_a_batch_without_rows_makes_shards_without_rows(columns: dict[str, Any]) -> None:
    shards = BatchedDataDict[Any](columns).shard_by_batch_size(2)
    assert [shard.size for shard in shards] == [0, 0]
    assert [sorted(shard) for shard in shards] == [sorted(columns)] * 2


# --- checks ---


def dynamic(batch: Batch, shards: int = 2, uneven: bool = False, **changed: Any) -> Any:
    args: Any = {**DYNAMIC, **changed}
    return batch.shard_by_batch_size(shards, allow_uneven_shards=uneven, dynamic_batching_args=args)


def packed(batch: Batch, shards: int = 2, uneven: bool = False, **changed: Any) -> Any:
    args: Any = {**PACKING, **changed}
    return batch.shard_by_batch_size(shards, allow_uneven_shards=uneven, sequence_packing_args=args)


def eight() -> Batch:
    return with_lengths(LENGTHS)


def with_ids(ids: object) -> Batch:
    return BatchedDataDict(ids=ids, lengths=torch.tensor([1, 1]))


BOTH: Any = {"dynamic_batching_args": DYNAMIC, "sequence_packing_args": PACKING}
JAGGED = torch.nested.nested_tensor_from_jagged(torch.zeros(3), torch.tensor([0, 1, 3]))
NOT_BY_3 = r"Batch size \(8\) is not a multiple of shards \(3\)"
NO_WIDTH = "dynamic batching needs a rectangular tensor of rows x positions in column 'ids'"
NO_LENGTHS = "column 'lengths' must be a flat sequence of integers"
ORDERS = "microbatch_order must be None, 'packer' or 'largest_first', got 'smallest_first'"
KEYS = "lacks 'input_key' and .* has an unknown key 'max_tokens'; its keys are algorithm, input_key"
REFUSED: dict[type[Exception], dict[str, tuple[Callable[[], object], str]]] = {
    AssertionError: {
        "uneven with batch_size": (
            lambda: eight().shard_by_batch_size(2, 4, allow_uneven_shards=True),
            "batch_size must be None when allow_uneven_shards",
        ),
        "both args": (lambda: eight().shard_by_batch_size(2, **BOTH), "_args and sequence_packing_args cannot be pass"),
        "columns differ": (
            lambda: Batch(a=[1, 2, 3], b=[1, 2]).shard_by_batch_size(1),
            r"\[2, 3\]",
        ),
        "batch_size": (lambda: eight().shard_by_batch_size(3, 3), r"size \(8\) is not a multiple of batch_size \(3\)"),
        "shards": (lambda: eight().shard_by_batch_size(3, 4), r"size \(4\) is not a multiple of shards \(3\)"),
        "packed shards": (lambda: packed(eight(), 3), NOT_BY_3),
        "dynamic shards": (lambda: dynamic(eight(), 3, uneven=True), NOT_BY_3),
        "a long row": (
            lambda: dynamic(with_lengths([33, 40], width=64)),
            "padded sequence length 40 exceeds max_tokens_per_microbatch 32",
        ),
    },
    ValueError: {
        "no shards": (lambda: eight().shard_by_batch_size(0), "shards"),
        "batch_size 0": (lambda: eight().shard_by_batch_size(2, 0), "batch_size must be positive"),
        "a negative length": (
            lambda: dynamic(with_lengths([4, -1])),
            "length -1 in row 1 of column 'lengths' is negative",
        ),
        "round": (lambda: dynamic(eight(), sequence_length_round=0), "sequence_length_round must be positive"),
        "pad multiple": (lambda: packed(eight(), sequence_length_pad_multiple=0), "pad_multiple must be positive"),
        "order": (lambda: packed(eight(), algorithm="concatenative", microbatch_order="smallest_first"), ORDERS),
        "keys": (lambda: eight().shard_by_batch_size(2, sequence_packing_args={"max_tokens": 8}), KEYS),  # type: ignore[call-overload]
    },
    KeyError: {"lengths": (lambda: packed(eight(), input_lengths_key="l"), "no column 'l'; the batch holds 'ids'")},
    TypeError: {
        "a list for ids": (lambda: dynamic(with_ids([[1], [2]])), NO_WIDTH),
        "flat ids": (lambda: dynamic(with_ids(torch.zeros(2))), NO_WIDTH),
        "jagged ids": (lambda: dynamic(with_ids(JAGGED)), NO_WIDTH),
        "2-d lengths": (lambda: packed(Batch(ids=torch.zeros(2, 4), lengths=torch.tensor([[1], [1]]))), NO_LENGTHS),
        "float lengths": (lambda: packed(Batch(ids=torch.zeros(2, 4), lengths=torch.tensor([1.0, 1.0]))), NO_LENGTHS),
    },
}


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [pytest.param(error, *rule, id=name) for error, rules in REFUSED.items() for name, rule in rules.items()],
)
def test_bad_arguments_are_refused_by_name(error: type[Exception], call: Callable[[], object], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# --- dynamic batching ---


def test_sharding_leaves_the_batch_alone() -> None:
    batch = with_lengths(LENGTHS)
    batch.shard_by_batch_size(2, dynamic_batching_args=DYNAMIC)
    batch.shard_by_batch_size(2, sequence_packing_args=PACKING)
    assert rows_of(batch) == list(range(8))
    assert batch.micro_batch_indices is None


# --- sequence packing ---


@pytest.mark.parametrize(
    "lengths", [torch.tensor(LENGTHS), list(LENGTHS), np.array(LENGTHS)], ids=lambda x: type(x).__name__
)
def test_sequence_packing_gives_the_fixed_vector(lengths: object) -> None:
    batch = with_lengths(LENGTHS)
    batch["lengths"] = lengths
    shards, sorted_indices = batch.shard_by_batch_size(2, 4, sequence_packing_args=PACKING)
    assert sorted_indices == [3, 1, 0, 5, 4, 2, 7, 6]
    assert [rows_of(shard) for shard in shards] == [[3, 1, 0, 5, 4], [2, 7, 6]]
    spans = [[[[0, 3]], [[0, 1], [1, 2]]], [[[0, 1]], [[0, 1], [1, 2]]]]
    assert [shard.micro_batch_indices for shard in shards] == spans
    assert [shard.micro_batch_lengths for shard in shards] == [[[28], [32, 28]], [[4], [32, 4]]]
    assert [shard.elem_counts_per_gb for shard in shards] == [[3, 2], [1, 2]]


def test_packed_shards_may_be_uneven_in_rows_but_have_as_many_microbatches() -> None:
    shards, _ = with_lengths([32, 4, 4, 4, 4]).shard_by_batch_size(
        2, allow_uneven_shards=True, sequence_packing_args=PACKING
    )
    assert [shard.size for shard in shards] == [1, 4]
    assert [shard.get_microbatch_iterator_for_packable_sequences_len() for shard in shards] == [(1, 32), (1, 16)]
