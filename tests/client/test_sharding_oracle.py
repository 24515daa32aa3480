"""Sharding against its rules written down in the plainest way, on random lengths; and the way back to the original."""

from __future__ import annotations

import random
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataplane_client.batched_data_dict import BatchedDataDict, DynamicBatchingArgs, SequencePackingArgs
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor
from dataplane_client.packing import PackingAlgorithm, get_packer

Metadata = tuple[list[int], Any, Any, Any]
"""Rows of a shard, micro_batch_indices, micro_batch_lengths, elem_counts_per_gb."""


def random_batch(rng: random.Random, rows: int, width: int, shortest: int = 1) -> BatchedDataDict[Any]:
    lengths = [rng.randint(shortest, width) for _ in range(rows)]
    return BatchedDataDict(ids=torch.arange(rows)[:, None].expand(rows, width), lengths=torch.tensor(lengths))


def rounded(length: int, multiple: int) -> int:
    while length % multiple:
        length += 1
    return length


def metadata_of(shards: list[Any]) -> list[Metadata]:
    return [
        (s["ids"][:, 0].tolist(), s.micro_batch_indices, s.micro_batch_lengths, s.elem_counts_per_gb) for s in shards
    ]


def naive_dynamic(
    lengths: list[int], width: int, shards: int, batch_size: int, rounding: int, budget: int
) -> tuple[list[Metadata], list[int]]:
    shard_rows: list[list[int]] = [[] for _ in range(shards)]
    order: list[int] = []
    all_spans, all_lengths = [], []
    for first in range(0, len(lengths), batch_size):
        ids = list(range(first, first + batch_size))
        ids.sort(key=lambda i: lengths[i])
        for k in range(shards):
            mine = [ids[p] for p in range(len(ids)) if p % shards == k]
            shard_rows[k] += mine
            order += mine
        spans: list[list[int]] = []
        longest: list[int] = []
        for p in range(batch_size // shards):
            length = min(rounded(max(1, *(lengths[ids[p * shards + k]] for k in range(shards))), rounding), width)
            assert length <= budget
            if spans:
                count = spans[-1][1] - spans[-1][0]
                if (count + 1) * max(length, longest[-1]) <= budget:
                    spans[-1][1] += 1
                    longest[-1] = max(length, longest[-1])
                    continue
            spans.append([p, p + 1])
            longest.append(length)
        all_spans.append(spans)
        all_lengths.append(longest)
    return [(rows, all_spans, all_lengths, None) for rows in shard_rows], order


def naive_packed(
    lengths: list[int], shards: int, batch_size: int, multiple: int, budget: int, algorithm: str, largest_first: bool
) -> tuple[list[Metadata], list[int]]:
    padded = [rounded(length, multiple) for length in lengths]
    packer = get_packer(algorithm, budget, min_bin_count=shards, bin_count_multiple=shards)
    result: list[Metadata] = []
    for k in range(shards):
        rows: list[int] = []
        indices, sums, counts = [], [], []
        for first in range(0, len(lengths), batch_size):
            bins = packer.pack(padded[first : first + batch_size])
            mine = [[first + i for i in bins[b]] for b in range(len(bins)) if b % shards == k]
            if largest_first:
                mine = sorted(mine, key=lambda b: sum(padded[i] for i in b), reverse=True)
            spans = []
            at = 0
            for b in mine:
                spans.append([at, at + len(b)])
                at += len(b)
                rows += b
            indices.append(spans)
            sums.append([sum(padded[i] for i in b) for b in mine])
            counts.append(at)
        result.append((rows, indices, sums, counts))
    return result, [row for rows, _, _, _ in result for row in rows]


def test_random_dynamic_shardings_equal_those_of_the_plain_rules() -> None:
    rng = random.Random(5)
    for _ in range(300):
        shards, chunks, per_shard = rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 6)
        batch_size = shards * per_shard
        width, rounding = rng.randint(4, 40), rng.choice([1, 4, 8])
        budget = rng.choice([width, width + 3, 3 * width])
        batch = random_batch(rng, batch_size * chunks, width, shortest=0)
        args = DynamicBatchingArgs(
            max_tokens_per_microbatch=budget,
            sequence_length_round=rounding,
            input_key="ids",
            input_lengths_key="lengths",
        )
        got, order = batch.shard_by_batch_size(shards, batch_size, dynamic_batching_args=args)
        expected = naive_dynamic(batch["lengths"].tolist(), width, shards, batch_size, rounding, budget)
        assert (metadata_of(got), order) == expected


@pytest.mark.parametrize("algorithm", ["concatenative", "first_fit_decreasing", "modified_first_fit_decreasing"])
def test_random_packed_shardings_equal_those_of_the_plain_rules(algorithm: str) -> None:
    rng = random.Random(6)
    for _ in range(150):
        shards, chunks = rng.randint(1, 4), rng.randint(1, 3)
        multiple, budget = rng.choice([1, 4]), rng.choice([40, 64])
        order_name: Literal["packer", "largest_first"] | None = rng.choice([None, "packer", "largest_first"])
        batch_size = shards * rng.randint(6, 10)
        batch = random_batch(rng, batch_size * chunks, rng.choice([10, 20]))
        args = SequencePackingArgs(
            max_tokens_per_microbatch=budget,
            input_key="ids",
            input_lengths_key="lengths",
            algorithm=algorithm,
            sequence_length_pad_multiple=multiple,
            microbatch_order=order_name,
        )
        got, order = batch.shard_by_batch_size(shards, batch_size, sequence_packing_args=args)
        expected = naive_packed(
            batch["lengths"].tolist(), shards, batch_size, multiple, budget, algorithm, order_name == "largest_first"
        )
        assert (metadata_of(got), order) == expected
        assert len({str([len(spans) for spans in shard.micro_batch_indices or []]) for shard in got}) == 1


def all_kinds(lengths: list[int]) -> BatchedDataDict[Any]:
    rows = range(len(lengths))
    tags = np.empty(len(lengths), dtype=object)
    for i in rows:
        tags[i] = {"row": i}
    return BatchedDataDict(
        ids=torch.arange(len(lengths))[:, None].expand(len(lengths), 20),
        lengths=torch.tensor(lengths),
        names=[f"row {i}" for i in rows],
        tags=tags,
        image=PackedTensor([torch.full((i % 3,), i) for i in rows], 0),
        jagged=torch.nested.nested_tensor_from_jagged(
            torch.arange(sum(lengths)), torch.tensor([0, *lengths]).cumsum(0)
        ),
    )


def assert_same_rows(got: BatchedDataDict[Any], expected: BatchedDataDict[Any]) -> None:
    assert torch.equal(got["ids"], expected["ids"])
    assert torch.equal(got["lengths"], expected["lengths"])
    assert (got["names"], list(got["tags"])) == (expected["names"], list(expected["tags"]))
    assert torch.equal(got["image"].as_tensor(), expected["image"].as_tensor())
    assert torch.equal(got["jagged"].values(), expected["jagged"].values())
    assert torch.equal(got["jagged"].offsets(), expected["jagged"].offsets())


@given(
    lengths=st.lists(st.integers(1, 20), min_size=12, max_size=12),
    shards=st.sampled_from([1, 2, 3]),
    batch_size=st.sampled_from([None, 6, 12]),
    algorithm=st.none() | st.sampled_from([algorithm.value for algorithm in PackingAlgorithm]),
)
def test_shards_joined_and_reordered_are_the_original(
    lengths: list[int], shards: int, batch_size: int | None, algorithm: str | None
) -> None:
    """algorithm: of packing; none: dynamic batching, which can be undone if all rows are one chunk."""
    batch = all_kinds(lengths)
    both: Any = {"max_tokens_per_microbatch": 60, "input_key": "ids", "input_lengths_key": "lengths"}
    args: Any
    if algorithm is None:
        args = {**both, "sequence_length_round": 4}
        parts, order = batch.shard_by_batch_size(shards, dynamic_batching_args=args)
    else:
        args = {**both, "algorithm": algorithm, "sequence_length_pad_multiple": 1}
        parts, order = batch.shard_by_batch_size(shards, batch_size, sequence_packing_args=args)
    joined = BatchedDataDict[Any].from_batches(parts)
    joined.reorder_data(order)
    assert_same_rows(joined, batch)
