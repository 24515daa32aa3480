"""Packed sequences, compared with a packer of Python lists, and their bounds."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest
import torch

from trainer_adapter.automodel.data import get_flash_attention_kwargs, pack_sequences

IDS = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 9]])


def packed_by_hand(rows: list[list[int]], sizes: list[int], padding: int, min_width: int) -> tuple[Any, Any, Any]:
    """Ids, positions and mask of sequences without their padding."""
    waiting = list(rows)
    groups = [[waiting.pop(0) for _ in range(size)] for size in sizes]
    width = max([min_width, *(sum(map(len, group)) for group in groups)])
    ids, positions, masks = [], [], []
    for group in groups:
        count = sum(map(len, group))
        ids.append([*chain(*group), *[padding] * (width - count)])
        positions.append([*chain(*(range(len(row)) for row in group)), *[0] * (width - count)])
        masks.append([[seen <= at < count for seen in range(width)] for at in range(width)])
    return ids, positions, masks


def test_any_rows_are_packed_as_by_hand() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        width = rng.randint(1, 9)
        rows = [[rng.randint(1, 99) for _ in range(rng.randint(0, width))] for _ in range(rng.randint(1, 7))]
        cuts = sorted(rng.randint(0, len(rows)) for _ in range(rng.randint(0, 3)))
        sizes = [end - start for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
        padding, min_width = rng.randint(-1, 5), rng.choice([0, 3, 20])
        dtype = rng.choice([torch.int64, torch.int32])

        filler = [[rng.randint(100, 200)] * (width - len(row)) for row in rows]  # padding must not be told by its value
        ids = torch.tensor([row + fill for row, fill in zip(rows, filler, strict=True)], dtype=dtype)
        lengths = torch.tensor([len(row) for row in rows], dtype=rng.choice([torch.int64, torch.int32]))
        packed_ids, positions, mask = pack_sequences(ids, lengths, sizes, padding, True, min_width)

        assert (packed_ids.dtype, positions.dtype) == (dtype, torch.int64)
        assert mask is not None
        found = (packed_ids.tolist(), positions.tolist(), mask.tolist())
        assert found == packed_by_hand(rows, sizes, padding, min_width), seed


@pytest.mark.parametrize(
    ("lengths", "sizes", "complaint"),
    [
        ([3, 2, -1], [3], "length -1 of row 2"),
        ([3, 5, 4], [3], "length 5 of row 1 is not between 0 and the width 4"),
        ([3, 2], [2], "2 entries for 3 rows"),
        ([3, 2, 4], [2], r"sum to 3 rows, got \[2\]"),
        ([3, 2, 4], [4, -1], r"sum to 3 rows, got \[4, -1\]"),
    ],
)
def test_lengths_and_sizes_that_do_not_fit_are_refused(lengths: list[int], sizes: list[int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        pack_sequences(IDS, torch.tensor(lengths), sizes)


@pytest.mark.parametrize(
    ("lengths", "bounds", "longest"),
    [([3, 2, 4], [0, 3, 5, 9], 4), ([5], [0, 5], 5), ([0, 2, 0], [0, 0, 2, 2], 2), ([], [0], 0)],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_bounds_are_int32_and_those_of_queries_and_keys_are_apart(
    lengths: list[int], bounds: list[int], longest: int, dtype: torch.dtype
) -> None:
    kwargs = get_flash_attention_kwargs(input_lengths=torch.tensor(lengths, dtype=dtype))
    assert kwargs.cu_seqlens_q.dtype == kwargs.cu_seqlens_k.dtype == torch.int32
    assert kwargs.cu_seqlens_q.tolist() == kwargs.cu_seqlens_k.tolist() == bounds
    assert kwargs.cu_seqlens_q.data_ptr() != kwargs.cu_seqlens_k.data_ptr()
    assert (kwargs.max_seqlen_q, kwargs.max_seqlen_k) == (longest, longest)
    assert type(kwargs.max_seqlen_q) is int
