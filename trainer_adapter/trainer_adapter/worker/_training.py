"""Training on a batch: one optimizer step for each of its global batches, and one step of the learning-rate
schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.config import required
from trainer_adapter.automodel.data import check_sequence_dim, process_global_batch
from trainer_adapter.automodel.rank import to_compute_device
from trainer_adapter.losses import LossFunction
from trainer_adapter.worker._inference import plan_batch
from trainer_adapter.worker._loaded_policy import LoadedPolicy
from trainer_adapter.worker._training_step import TrainingStep, report


def train(
    policy: LoadedPolicy,
    data: BatchedDataDict[Any],
    loss_fn: LossFunction,
    eval_mode: bool,
    gbs: int | None,
    mbs: int | None,
) -> dict[str, Any]:
    """A collective call of all ranks, each with its shard. Returns what aggregate_training_statistics returns.

    Rows after the last whole global batch are not used. ValueError if the number of ranks does not divide gbs, or the
    data is smaller than one global batch.
    """
    size = gbs or required(policy.config, "train_global_batch_size")
    own, batches = _count_batches(policy, data.size, size)
    check_sequence_dim(data)
    rows, _ = plan_batch(policy, _whole_global_batches(data, own * batches), "train", own)
    steps: list[TrainingStep] = []
    grad_norm: Tensor | None = None
    for index in range(batches):
        batch = process_global_batch(rows, loss_fn, policy.dp_group, batch_idx=index, batch_size=own)
        valid = (batch["global_valid_seqs"], batch["global_valid_toks"])
        step = TrainingStep(policy, loss_fn, *valid, num_global_batches=batches, differentiates=not eval_mode)
        step.microbatches(batch["batch"], mbs or required(policy.config, "train_micro_batch_size"))
        grad_norm = step.update()
        steps.append(step)
    return finish_steps(policy, steps, grad_norm)


def finish_steps(policy: LoadedPolicy, steps: Sequence[TrainingStep], grad_norm: Tensor | None) -> dict[str, Any]:
    """Advance the learning-rate schedule and return the report of a call.

    The schedule advances by one for each call, for any number of global batches, unless no step was applied.
    """
    if policy.state.scheduler is not None and any(step.is_applied for step in steps):
        policy.state.scheduler.step()
    if policy.device.type == "cuda" and policy.config["dtensor_cfg"].get("empty_cache_after_training", False):
        torch.cuda.empty_cache()
    return report(policy, steps, grad_norm)


def _count_batches(policy: LoadedPolicy, rows: int, gbs: int) -> tuple[int, int]:
    """Rows of a global batch on this rank, and the number of global batches in all ranks' rows."""
    ranks = policy.context.dp_size
    if gbs < 1 or gbs % ranks:
        raise ValueError(f"gbs must be a positive multiple of the {ranks} data-parallel ranks, got {gbs}")
    total = rows if ranks == 1 else _sum_over(rows, policy)
    if total < gbs:
        raise ValueError(f"all ranks together have {total} samples, fewer than one global batch of {gbs}")
    return gbs // ranks, total // gbs


def _sum_over(rows: int, policy: LoadedPolicy) -> int:
    total = to_compute_device(torch.tensor([rows]))
    torch.distributed.all_reduce(total, group=policy.dp_group)
    return int(total)


def _whole_global_batches(data: BatchedDataDict[Any], rows: int) -> BatchedDataDict[Any]:
    """Drop the rows after the last whole global batch, which no plan could place. Planned data is complete already; a
    plan may give ranks different numbers of rows.
    """
    return data if data.micro_batch_indices is not None or data.size <= rows else data.slice(0, rows)
