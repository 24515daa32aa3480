"""Inference on one batch: one tensor for the batch, row for row in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor
from trainer_adapter.automodel.config import TrainingSamplingParams, required
from trainer_adapter.automodel.data import ProcessedMicrobatch, check_sequence_dim
from trainer_adapter.automodel.qkv_calibration import QkvCalibration
from trainer_adapter.automodel.rank import queue_copy
from trainer_adapter.automodel.train import (
    LogprobsPostProcessor,
    ScorePostProcessor,
    TopkLogitsPostProcessor,
    automodel_forward_backward,
)
from trainer_adapter.microbatch_args import Stage
from trainer_adapter.sharding import PLAN_KEYS
from trainer_adapter.worker._loaded_policy import LoadedPolicy
from trainer_adapter.worker._planning import plan_microbatches

Watcher: TypeAlias = Callable[[Iterator[ProcessedMicrobatch], int], Iterator[ProcessedMicrobatch]]
"""Passes the microbatches through; the second argument is the number of real ones."""


def logprobs(
    policy: LoadedPolicy,
    data: BatchedDataDict[Any],
    micro_batch_size: int | None,
    sampling_params: TrainingSamplingParams | None,
) -> Tensor:
    """[B,S] float32 on the CPU; column 0 and padding are 0.

    A token that the sampling excludes has -inf: losses leave it out, and 0 would say that its probability is 1.
    """
    processor = LogprobsPostProcessor(
        **policy.processor_settings, sampling_params=sampling_params, excluded=float("-inf")
    )
    return _run_inference(policy, data, micro_batch_size, processor, sampling_params)[0]


def topk_logits(
    policy: LoadedPolicy, data: BatchedDataDict[Any], k: int, micro_batch_size: int | None
) -> tuple[Tensor, Tensor]:
    """Values [B,S,k] float32 and vocabulary ids [B,S,k] int64, on the CPU; 0 after the last position of a row's
    microbatch.
    """
    processor = TopkLogitsPostProcessor(**policy.processor_settings, k=k)
    values, ids = _run_inference(policy, data, micro_batch_size, processor, policy.runtime.sampling_params)
    return values, ids


def scores(policy: LoadedPolicy, data: BatchedDataDict[Any]) -> Tensor:
    """[B] float32 on the CPU."""
    size = required(policy.config, "batch_size")
    return _run_inference(policy, data, size, ScorePostProcessor(policy.config), None)[0]


def fp8_scales(
    policy: LoadedPolicy, data: BatchedDataDict[Any], micro_batch_size: int | None, calibration: QkvCalibration
) -> dict[str, Any]:
    """Run forward passes over the batch and compute the scales of `calibration`."""
    processor = LogprobsPostProcessor(**policy.processor_settings)
    with calibration:
        _run_inference(policy, data, micro_batch_size, processor, None, calibration.watched)
    return calibration.scales(policy.context.device_mesh)


def _run_inference(
    policy: LoadedPolicy,
    data: BatchedDataDict[Any],
    micro_batch_size: int | None,
    processor: LogprobsPostProcessor | TopkLogitsPostProcessor | ScorePostProcessor,
    sampling_params: TrainingSamplingParams | None,
    watched: Watcher | None = None,
) -> tuple[Tensor, ...]:
    """Run the model and `processor` over every microbatch, and concatenate each of its output tensors."""
    _, width = check_sequence_dim(data)
    batch, order = plan_batch(policy, data, "logprob")
    policy.model.eval()
    mbs = required(policy.config, "logprob_batch_size") if micro_batch_size is None else micro_batch_size
    found: list[tuple[Tensor, ...]] = []
    for part, size in _split_evenly(batch, mbs):
        microbatches, real = policy.microbatches(part, size)
        results = automodel_forward_backward(
            policy.model,
            microbatches if watched is None else watched(microbatches, real),
            processor,
            forward_only=True,
            is_reward_model=policy.runtime.is_reward_model,
            allow_flash_attn_args=policy.runtime.allow_flash_attn_args,
            sampling_params=sampling_params,
            train_context_fn=policy.forward_contexts(),
        )
        found += [result if isinstance(result, tuple) else (result,) for result, _ in results[:real]]
    return tuple(_concat_results(list(column), width, order) for column in zip(*found, strict=True))


def _split_evenly(batch: BatchedDataDict[Any], mbs: int) -> list[tuple[BatchedDataDict[Any], int]]:
    """Parts of the batch, with a number of rows that divides each. The remainder of a batch without a plan becomes one
    smaller microbatch.
    """
    even = batch.size - batch.size % mbs if mbs > 0 else 0
    if batch.micro_batch_indices is not None or even in (0, batch.size):
        return [(batch, min(mbs, batch.size))]
    return [(batch.slice(0, even), mbs), (batch.slice(even, batch.size), batch.size - even)]


def plan_batch(
    policy: LoadedPolicy, data: BatchedDataDict[Any], stage: Stage, batch_size: int | None = None
) -> tuple[BatchedDataDict[Any], list[int] | None]:
    """Return a copy of the batch on this rank's device, with the plan of its microbatches, and its order.

    See plan_microbatches for the order. input_lengths stay on the host, where microbatches are planned and packed.
    token_mask becomes 0 behind each row: packed rows have no padding, and the others count none either.
    """
    moved: BatchedDataDict[Any] = BatchedDataDict(
        {name: _move(name, value, policy.device) for name, value in data.items()}
    )
    if "token_mask" in moved and "input_lengths" in moved:
        mask, lengths = moved["token_mask"], queue_copy(moved["input_lengths"], policy.device)
        moved["token_mask"] = mask * (torch.arange(mask.shape[1], device=mask.device) < lengths[:, None])
    for name in PLAN_KEYS:
        setattr(moved, name, getattr(data, name))
    return plan_microbatches(moved, policy.config, stage, policy.dp_group, batch_size)


def _move(name: str, value: Any, device: torch.device) -> Any:
    if isinstance(value, PackedTensor):
        return value.slice(range(len(value))).to(device)  # which moves in place
    if not isinstance(value, Tensor):
        return value
    return value.cpu() if name == "input_lengths" else queue_copy(value, device)


def _concat_results(parts: list[Tensor], width: int, order: list[int] | None) -> Tensor:
    """Concatenate on the CPU and restore the order of the batch. order: see plan_microbatches."""
    rows = torch.cat([_pad_to_width(part, width) for part in parts]).cpu()
    if order is None:
        return rows
    restored = torch.empty_like(rows)
    restored[torch.tensor(order)] = rows
    return restored


def _pad_to_width(part: Tensor, width: int) -> Tensor:
    """[b,S,...] with zeros after [b,s,...]; a tensor [b] is returned as it is."""
    if part.ndim == 1:
        return part
    return torch.nn.functional.pad(part, (*(0, 0) * (part.ndim - 2), 0, width - part.shape[1]))
