"""Global batches: the rows of one optimizer step, and the counts that its loss is divided by."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
import torch.distributed

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.rank import to_compute_device
from trainer_adapter.losses import LossFunction, LossType
from trainer_adapter.losses._interface import value_of


def process_global_batch(
    data: BatchedDataDict[Any],
    loss_fn: LossFunction,
    dp_group: torch.distributed.ProcessGroup | None,
    *,
    batch_idx: int,
    batch_size: int,
) -> dict[str, Any]:
    """Return global batch batch_idx of this rank's data and the divisors of its loss; a collective call.

    batch_size: samples per rank; for packed data the plan gives the number instead.
    dp_group: the data-parallel ranks, over which the counts are summed; None: this rank is alone.

    Returns `batch`, and 0-d `global_valid_seqs` and `global_valid_toks`: the sums of sample_mask [B] and of token_mask
    [B,S] over valid samples, without column 0, because nothing predicts a first token. Without a token_mask all S
    tokens of a valid sample count. int64, or float32 if a mask is floating point.

    Raises AssertionError without a sample_mask, and for a token-level loss without a token_mask.
    """
    batch = data.get_batch(batch_idx=batch_idx, batch_size=batch_size)
    if "sample_mask" not in batch:
        raise AssertionError("sample_mask must be present in the data: it marks the valid samples")
    counts = to_compute_device(_count_valid(batch))
    if dp_group is not None:
        torch.distributed.all_reduce(counts, group=dp_group)
    if value_of(loss_fn, "loss_type") == LossType.TOKEN_LEVEL.value and "token_mask" not in batch:
        raise AssertionError("token_mask must be present in the data when the loss is token-level")
    seqs, toks = counts.float() if counts.is_floating_point() else counts
    return {"batch": batch, "global_valid_seqs": seqs, "global_valid_toks": toks}


def _count_valid(batch: BatchedDataDict[Any]) -> torch.Tensor:
    """[valid samples, valid tokens] of this rank, in float64 or int64: float32 miscounts from 2**24 on."""
    sample_mask, token_mask = batch["sample_mask"], batch.get("token_mask")
    if sample_mask.ndim != 1:
        raise ValueError(f"sample_mask must have shape (B,), got {tuple(sample_mask.shape)}")
    masks = [sample_mask] if token_mask is None else [sample_mask, token_mask]
    dtype = torch.float64 if any(mask.is_floating_point() for mask in masks) else torch.int64
    seqs = sample_mask.sum(dtype=dtype)
    if token_mask is None:
        return torch.stack([seqs, seqs * batch["input_ids"].shape[1]])
    toks = (token_mask[:, 1:] * sample_mask[:, None]).sum(dtype=dtype)
    return torch.stack([seqs, toks])


def check_sequence_dim(data: Mapping[str, Any], *, skip_keys: Collection[str] | None = None) -> tuple[int, int]:
    """Return (1, S) if every tensor of two or more dimensions has the S positions of input_ids in dim 1.

    Raises AssertionError for any other tensor, unless skip_keys contains its name.
    """
    width = data["input_ids"].shape[1]
    for key, value in data.items():
        if key in (skip_keys or ()) or not isinstance(value, torch.Tensor) or value.ndim <= 1:
            continue
        if value.is_nested or value.shape[1] != width:
            shape = "a nested tensor" if value.is_nested else f"of shape {tuple(value.shape)}"
            raise AssertionError(
                f"Dim 1 must be the sequence dim, which has {width} positions in input_ids: {key!r} is {shape}"
            )
    return 1, width
