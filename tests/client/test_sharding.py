"""BatchedDataDict.shard_by_batch_size: the fixed vectors, the checks, and every kind of column."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dataplane_client.batched_data_dict import (
    BatchedDataDict,
    DynamicBatchingArgs,
    SequencePackingArgs,
    SlicedDataDict,
)
from dataplane_client.packed_tensor import PackedTensor

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


def in_order(microbatch_order: Any) -> SequencePackingArgs:
    return {**PACKING, "algorithm": "concatenative", "microbatch_order": microbatch_order}


# --- plain ---


def test_every_shard_gets_its_part_of_every_chunk() -> None:
    batch: Batch = BatchedDataDict(a=list("AABBCCDD"))
    assert [shard["a"] for shard in batch.shard_by_batch_size(2, batch_size=2)] == [list("ABCD")] * 2


def test_without_a_batch_size_all_rows_are_one_chunk() -> None:
    shards = BatchedDataDict[Any](a=list("AABBCCDD")).shard_by_batch_size(2)
    assert [shard["a"] for shard in shards] == [list("AABB"), list("CCDD")]
    assert {type(shard) for shard in shards} == {SlicedDataDict}
    assert shards[0].micro_batch_indices is None


def test_shards_hold_copies() -> None:
    batch: Batch = BatchedDataDict(a=torch.zeros(4))
    batch.shard_by_batch_size(2)[0]["a"].fill_(9)
    assert batch["a"].tolist() == [0, 0, 0, 0]


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


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        pytest.param(
            lambda: with_lengths(LENGTHS).shard_by_batch_size(2, 4, allow_uneven_shards=True),
            "batch_size must be None when allow_uneven_shards",
            id="uneven_with_batch_size",
        ),
        pytest.param(
            lambda: with_lengths(LENGTHS).shard_by_batch_size(  # type: ignore[call-overload]
                2, dynamic_batching_args=DYNAMIC, sequence_packing_args=PACKING
            ),
            "dynamic_batching_args and sequence_packing_args cannot be passed together",
            id="both_args",
        ),
        pytest.param(
            lambda: BatchedDataDict[Any](a=[1, 2, 3], b=[1, 2]).shard_by_batch_size(1),
            r"Batch sizes are not the same across the rollout batch, found sizes: \[2, 3\]",
            id="columns_differ",
        ),
        pytest.param(
            lambda: with_lengths(LENGTHS).shard_by_batch_size(3, 3),
            r"Total batch size \(8\) is not a multiple of batch_size \(3\)",
            id="batch_size",
        ),
        pytest.param(
            lambda: with_lengths(LENGTHS).shard_by_batch_size(3, 4),
            r"Batch size \(4\) is not a multiple of shards \(3\)",
            id="shards",
        ),
        pytest.param(
            lambda: with_lengths(LENGTHS).shard_by_batch_size(3, sequence_packing_args=PACKING),
            r"Batch size \(8\) is not a multiple of shards \(3\)",
            id="shards_of_packed_data",
        ),
        pytest.param(
            lambda: with_lengths(LENGTHS).shard_by_batch_size(
                3, allow_uneven_shards=True, dynamic_batching_args=DYNAMIC
            ),
            r"Batch size \(8\) is not a multiple of shards \(3\)",
            id="uneven_dynamic",
        ),
        pytest.param(
            lambda: with_lengths([33, 40], width=64).shard_by_batch_size(2, dynamic_batching_args=DYNAMIC),
            "padded sequence length 40 exceeds max_tokens_per_microbatch 32",
            id="longer_than_a_microbatch",
        ),
    ],
)
def test_sizes_that_do_not_match_are_refused(shard: Callable[[], object], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        shard()


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        pytest.param(lambda: with_lengths(LENGTHS).shard_by_batch_size(0), "shards must be positive", id="shards"),
        pytest.param(
            lambda: with_lengths(LENGTHS).shard_by_batch_size(2, 0), "batch_size must be positive", id="batch_size"
        ),
        pytest.param(
            lambda: with_lengths([4, -1]).shard_by_batch_size(2, dynamic_batching_args=DYNAMIC),
            "length -1 in row 1 of column 'lengths' is negative",
            id="negative_length",
        ),
        pytest.param(
            lambda: with_lengths(LENGTHS).shard_by_batch_size(
                2, dynamic_batching_args={**DYNAMIC, "sequence_length_round": 0}
            ),
            "sequence_length_round must be positive",
            id="round",
        ),
        pytest.param(
            lambda: with_lengths(LENGTHS).shard_by_batch_size(
                2, sequence_packing_args={**PACKING, "sequence_length_pad_multiple": 0}
            ),
            "sequence_length_pad_multiple must be positive",
            id="pad_multiple",
        ),
        pytest.param(
            lambda: with_lengths(LENGTHS).shard_by_batch_size(2, sequence_packing_args=in_order("smallest_first")),
            "microbatch_order must be None, 'packer' or 'largest_first', got 'smallest_first'",
            id="microbatch_order",
        ),
        pytest.param(
            lambda: with_lengths(LENGTHS).shard_by_batch_size(
                2, sequence_packing_args={**PACKING, "algorithm": "best_fit"}
            ),
            "Unknown packing algorithm",
            id="algorithm",
        ),
        pytest.param(
            lambda: with_lengths(LENGTHS).shard_by_batch_size(2, sequence_packing_args={"max_tokens": 8}),  # type: ignore[call-overload]
            "lacks 'input_key' and .* has an unknown key 'max_tokens'; its keys are algorithm, input_key",
            id="keys",
        ),
        pytest.param(
            lambda: with_lengths([30, 33]).shard_by_batch_size(2, sequence_packing_args=PACKING),
            "Sequence length 36 exceeds bin capacity 32",
            id="longer_than_a_bin",
        ),
        pytest.param(
            lambda: with_lengths([4, 4]).shard_by_batch_size(
                3, allow_uneven_shards=True, sequence_packing_args=PACKING
            ),
            "Cannot create 3 bins with only 2 sequences",
            id="more_shards_than_sequences",
        ),
    ],
)
def test_bad_arguments_are_refused_by_name(shard: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shard()


@pytest.mark.parametrize(
    "ids",
    [
        [[1], [2]],
        torch.zeros(2),
        torch.nested.nested_tensor_from_jagged(torch.zeros(3), torch.tensor([0, 1, 3])),
    ],
    ids=["list", "flat", "jagged"],
)
def test_dynamic_batching_refuses_an_input_without_a_width(ids: object) -> None:
    batch: Batch = BatchedDataDict(ids=ids, lengths=torch.tensor([1, 1]))
    with pytest.raises(
        TypeError, match="dynamic batching needs a rectangular tensor of rows x positions in column 'ids'"
    ):
        batch.shard_by_batch_size(2, dynamic_batching_args=DYNAMIC)


@pytest.mark.parametrize("kind", [DynamicBatchingArgs, SequencePackingArgs])
def test_the_description_names_every_key_of_the_arguments(kind: Any) -> None:
    described = str(BatchedDataDict.shard_by_batch_size.__doc__)
    assert [key for key in kind.__annotations__ if key not in described] == []


@pytest.mark.parametrize("lengths", [torch.tensor([[1], [1]]), torch.tensor([1.0, 1.0])], ids=["2d", "float"])
def test_lengths_that_are_no_flat_integers_are_refused_by_name(lengths: torch.Tensor) -> None:
    batch: Batch = BatchedDataDict(ids=torch.zeros(2, 4), lengths=lengths)
    with pytest.raises(TypeError, match="column 'lengths' must be a flat sequence of integers"):
        batch.shard_by_batch_size(2, sequence_packing_args=PACKING)


# --- dynamic batching ---


@pytest.mark.parametrize(
    ("batch_size", "order", "indices", "lengths"),
    [
        pytest.param(
            None, [0, 2, 3, 5, 6, 1, 4, 7], [[[0, 2], [2, 3], [3, 4]]], [[8, 28, 32]], id="all_rows_in_one_chunk"
        ),
        pytest.param(
            4, [0, 1, 2, 3, 6, 5, 4, 7], [[[0, 2]], [[0, 1], [1, 2]]], [[16], [28, 32]], id="chunks_of_4_rows"
        ),
    ],
)
def test_dynamic_batching_gives_the_fixed_vectors(
    batch_size: int | None, order: list[int], indices: list[Any], lengths: list[Any]
) -> None:
    shards, sorted_indices = with_lengths(LENGTHS).shard_by_batch_size(2, batch_size, dynamic_batching_args=DYNAMIC)
    assert sorted_indices == order
    for shard in shards:
        assert (shard.micro_batch_indices, shard.micro_batch_lengths) == (indices, lengths)
        assert shard.elem_counts_per_gb is None


def test_dynamic_padded_lengths_are_capped_at_the_width_of_the_data() -> None:
    args = DynamicBatchingArgs({**DYNAMIC, "max_tokens_per_microbatch": 60, "sequence_length_round": 8})
    shards, _ = with_lengths([3, 10], width=10).shard_by_batch_size(1, dynamic_batching_args=args)
    assert (shards[0].micro_batch_indices, shards[0].micro_batch_lengths) == ([[[0, 2]]], [[10]])


def test_dynamic_shards_feed_the_microbatch_iterator() -> None:
    shards, _ = with_lengths(LENGTHS).shard_by_batch_size(2, 4, dynamic_batching_args=DYNAMIC)
    shapes = [
        [tuple(mb["ids"].shape) for mb in shards[0].get_batch(i, 2).make_microbatch_iterator_with_dynamic_shapes()]
        for i in range(2)
    ]
    assert shapes == [[(2, 16)], [(1, 28), (1, 32)]]


def test_sharding_leaves_the_batch_alone() -> None:
    batch = with_lengths(LENGTHS)
    batch.shard_by_batch_size(2, dynamic_batching_args=DYNAMIC)
    batch.shard_by_batch_size(2, sequence_packing_args=PACKING)
    assert rows_of(batch) == list(range(8))
    assert batch.micro_batch_indices is None


# --- sequence packing ---


def test_sequence_packing_gives_the_fixed_vector() -> None:
    shards, sorted_indices = with_lengths(LENGTHS).shard_by_batch_size(2, 4, sequence_packing_args=PACKING)
    assert sorted_indices == [3, 1, 0, 5, 4, 2, 7, 6]
    assert [rows_of(shard) for shard in shards] == [[3, 1, 0, 5, 4], [2, 7, 6]]
    assert [shard.micro_batch_indices for shard in shards] == [
        [[[0, 3]], [[0, 1], [1, 2]]],
        [[[0, 1]], [[0, 1], [1, 2]]],
    ]
    assert [shard.micro_batch_lengths for shard in shards] == [[[28], [32, 28]], [[4], [32, 4]]]
    assert [shard.elem_counts_per_gb for shard in shards] == [[3, 2], [1, 2]]


@pytest.mark.parametrize("order", ["packer", None, "largest_first"])
def test_microbatches_of_a_shard_come_in_the_order_asked_for(order: Any) -> None:
    args = in_order(order)
    shards, sorted_indices = with_lengths([8, 28, 16, 20, 32, 24]).shard_by_batch_size(1, sequence_packing_args=args)
    largest_first = order == "largest_first"
    assert shards[0].micro_batch_lengths == [[32, 28, 24, 20, 16, 8] if largest_first else [8, 28, 16, 20, 32, 24]]
    assert sorted_indices == ([4, 1, 5, 3, 2, 0] if largest_first else [0, 1, 2, 3, 4, 5])


def test_equally_full_microbatches_keep_the_order_of_the_packer() -> None:
    args = in_order("largest_first")
    _, sorted_indices = with_lengths([20, 24, 20, 24]).shard_by_batch_size(1, sequence_packing_args=args)
    assert sorted_indices == [1, 3, 0, 2]


def test_packed_shards_may_be_uneven_in_rows_but_have_as_many_microbatches() -> None:
    shards, _ = with_lengths([32, 4, 4, 4, 4]).shard_by_batch_size(
        2, allow_uneven_shards=True, sequence_packing_args=PACKING
    )
    assert [shard.size for shard in shards] == [1, 4]
    assert [shard.get_microbatch_iterator_for_packable_sequences_len() for shard in shards] == [(1, 32), (1, 16)]


@pytest.mark.parametrize("lengths", [list(LENGTHS), np.array(LENGTHS)], ids=["list", "ndarray"])
def test_lengths_may_be_a_list_or_an_array(lengths: object) -> None:
    batch = with_lengths(LENGTHS)
    batch["lengths"] = lengths
    _, sorted_indices = batch.shard_by_batch_size(2, 4, sequence_packing_args=PACKING)
    assert sorted_indices == [3, 1, 0, 5, 4, 2, 7, 6]


@pytest.mark.parametrize("mode", ["dynamic", "packing"])
def test_ten_thousand_rows_shard_well_under_two_seconds(mode: str) -> None:
    lengths = [1 + (i * 7919) % 2000 for i in range(10_000)]
    batch = with_lengths(lengths, width=1)
    batch["ids"] = torch.zeros(10_000, 2000, dtype=torch.int8)
    started = time.process_time()
    if mode == "dynamic":
        batch.shard_by_batch_size(8, 2000, dynamic_batching_args={**DYNAMIC, "max_tokens_per_microbatch": 8192})
    else:
        batch.shard_by_batch_size(8, 2000, sequence_packing_args={**PACKING, "max_tokens_per_microbatch": 8192})
    assert time.process_time() - started < 2.0
