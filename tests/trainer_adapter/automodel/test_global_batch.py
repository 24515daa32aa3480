"""Global batches, and the counts that losses are divided by, on one rank."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.trainer_adapter.planning import packing_args

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.data import check_sequence_dim, process_global_batch
from trainer_adapter.losses import LossType

ANY_LOSS: Any = SimpleNamespace()
TOKEN_LOSS: Any = SimpleNamespace(loss_type=LossType.TOKEN_LEVEL)
SEQUENCE_LOSS: Any = SimpleNamespace(loss_type=LossType.SEQUENCE_LEVEL)
FOREIGN = enum.Enum("FOREIGN", {"TOKEN_LEVEL": "token_level"})
SAMPLE_MASK = [1, 0, 1, 1]
Batch = BatchedDataDict[Any]
TOKEN_MASK = [[1, 0, 1], [1, 1, 1], [0, 1, 1], [1, 1, 0]]


def data(sample_dtype: torch.dtype = torch.int64, token_dtype: torch.dtype | None = torch.int64) -> Batch:
    made: Batch = BatchedDataDict(input_ids=torch.arange(12).reshape(4, 3))
    made["sample_mask"] = torch.tensor(SAMPLE_MASK, dtype=sample_dtype)
    if token_dtype is not None:
        made["token_mask"] = torch.tensor(TOKEN_MASK, dtype=token_dtype)
    return made


def counted(batch: Batch, loss_fn: Any = ANY_LOSS, **where: int) -> dict[str, Any]:
    return process_global_batch(batch, loss_fn, None, **{"batch_idx": 0, "batch_size": 4, **where})


def test_first_tokens_and_tokens_of_invalid_samples_do_not_count() -> None:
    result = counted(data(), TOKEN_LOSS)
    assert result.keys() == {"batch", "global_valid_seqs", "global_valid_toks"}
    assert (result["global_valid_seqs"], result["global_valid_toks"]) == (3, 4)
    assert result["global_valid_seqs"].shape == result["global_valid_toks"].shape == ()


def test_without_a_token_mask_all_positions_of_valid_samples_count() -> None:
    result = counted(data(token_dtype=None), SEQUENCE_LOSS)
    assert (result["global_valid_seqs"], result["global_valid_toks"]) == (3, 9)


@pytest.mark.parametrize(
    ("sample_dtype", "token_dtype", "counts_dtype"),
    [
        (torch.bool, torch.bool, torch.int64),
        (torch.int64, torch.bool, torch.int64),
        (torch.int32, None, torch.int64),
        (torch.float32, torch.int64, torch.float32),
        (torch.bool, torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.float32),
    ],
)
def test_counts_are_whole_numbers_unless_a_mask_is_not(
    sample_dtype: torch.dtype, token_dtype: torch.dtype | None, counts_dtype: torch.dtype
) -> None:
    result = counted(data(sample_dtype, token_dtype))
    toks = 4 if token_dtype is not None else 9
    assert (result["global_valid_seqs"].item(), result["global_valid_toks"].item()) == (3, toks)
    assert result["global_valid_seqs"].dtype == result["global_valid_toks"].dtype == counts_dtype


def test_of_packed_data_the_plan_says_which_rows_form_the_batch() -> None:
    batch = data()
    batch["input_lengths"] = torch.tensor([3, 1, 2, 3])
    args = packing_args(6, "concatenative")
    ((shard,), _) = batch.shard_by_batch_size(1, batch_size=2, sequence_packing_args=args)
    result = counted(shard, batch_idx=1, batch_size=999)
    assert result["batch"]["input_ids"].tolist() == [[6, 7, 8], [9, 10, 11]]
    assert result["batch"].micro_batch_indices == [[[0, 2]]]


@pytest.mark.parametrize(
    ("missing", "loss_fn", "complaint"),
    [
        ("sample_mask", ANY_LOSS, "sample_mask must be present"),
        *(
            ("token_mask", SimpleNamespace(loss_type=unit), "token_mask must be present")
            for unit in (LossType.TOKEN_LEVEL, "token_level", *FOREIGN)
        ),
    ],
)
def test_a_mask_that_is_needed_and_missing_is_named(missing: str, loss_fn: Any, complaint: str) -> None:
    batch = data()
    del batch[missing]
    with pytest.raises(AssertionError, match=complaint):
        counted(batch, loss_fn)


# --- the sequence dimension ---


def test_every_tensor_of_two_or_more_dimensions_has_the_positions_of_the_ids() -> None:
    rows = torch.zeros(2, 5)
    batch = {"logprobs": rows, "input_ids": rows, "topk": torch.zeros(2, 5, 3), "lengths": rows[:, 0], "texts": ["a"]}
    assert check_sequence_dim(batch) == (1, 5)


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(2, 4),
        torch.zeros(2, 4, 5),
        torch.nested.nested_tensor([torch.zeros(5), torch.zeros(4)], layout=torch.jagged),
    ],
    ids=["narrower", "transposed", "nested"],
)
def test_a_tensor_with_other_positions_is_named_unless_it_is_skipped(other: torch.Tensor) -> None:
    batch: dict[str, Any] = {"input_ids": torch.zeros(2, 5), "other": other}
    with pytest.raises(AssertionError, match="'other'"):
        check_sequence_dim(batch)
    assert check_sequence_dim(batch, skip_keys={"other"}) == (1, 5)
