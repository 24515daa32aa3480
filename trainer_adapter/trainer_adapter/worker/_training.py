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
from trainer_adapter.automodel.train import aggregate_training_statistics
from trainer_adapter.losses import LossFunction
from trainer_adapter.microbatch_args import microbatch_args
from trainer_adapter.worker._inference import plan_batch
from trainer_adapter.worker._loaded_policy import LoadedPolicy
from trainer_adapter.worker._training_step import TrainingStep


def train(
    policy: LoadedPolicy,
    data: BatchedDataDict[Any],
    loss_fn: LossFunction,
    eval_mode: bool,
    gbs: int | None,
    mbs: int | None,
) -> dict[str, Any]:
    """A collective call of all ranks, each with its shard. Returns what aggregate_training_statistics returns.

    ValueError on all ranks if their number does not divide gbs, their rows are not whole global batches or planned for
    another number of them, or a rank has too few rows; see _count_batches.
    """
    size = required(policy.config, "train_global_batch_size") if gbs is None else gbs
    rows_at_once = required(policy.config, "train_micro_batch_size") if mbs is None else mbs
    if data.micro_batch_indices is None and "input_lengths" in data:  # which are read twice then, here and to plan
        data = BatchedDataDict({**data, "input_lengths": data["input_lengths"].cpu()})
    own, batches = _count_batches(policy, data, size)
    check_sequence_dim(data)
    rows, _ = plan_batch(policy, data, "train", own)
    steps: list[TrainingStep] = []
    grad_norm: Tensor | None = None
    for index in range(batches):
        batch = process_global_batch(rows, loss_fn, policy.dp_group, batch_idx=index, batch_size=own)
        valid = (batch["global_valid_seqs"], batch["global_valid_toks"])
        step = TrainingStep(policy, loss_fn, *valid, num_global_batches=batches, differentiates=not eval_mode)
        step.microbatches(batch["batch"], rows_at_once)
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
    return aggregate_training_statistics(
        losses=[step.loss for step in steps],
        all_mb_metrics=[metrics for step in steps for metrics in step.metrics],
        grad_norm=grad_norm,
        dp_group=policy.dp_group if policy.context.dp_size > 1 else None,
        dtype=policy.runtime.dtype,
    )


def _count_batches(policy: LoadedPolicy, data: BatchedDataDict[Any], gbs: int) -> tuple[int, int]:
    """Rows of a global batch on this rank, and the number of global batches in all ranks' rows.

    Ranks have equal parts of a global batch, unless a driver's plan says otherwise, or packed rows of all ranks are one
    global batch together: then it is clear which rows belong to it.
    """
    ranks = policy.context.dp_size
    if gbs < 1 or gbs % ranks:
        raise ValueError(f"gbs must be a positive multiple of the {ranks} data-parallel ranks, got {gbs}")
    rows = [data.size] if ranks == 1 else _rows_of_ranks(data, policy)
    batches, rest = divmod(sum(rows), gbs)
    if rest or batches == 0:
        raise ValueError(f"all ranks together have {sum(rows)} samples, not one or more whole global batches of {gbs}")
    if data.micro_batch_indices is not None:
        if len(data.micro_batch_indices) != batches:
            raise ValueError(
                f"the plan of microbatches is for {len(data.micro_batch_indices)} global batches, but with gbs={gbs} "
                f"the {sum(rows)} samples of all ranks are {batches}"
            )
        return gbs // ranks, batches
    is_divided = policy.runtime.enable_seq_packing and sum(rows) == gbs
    least = 1 if is_divided else gbs // ranks * batches
    if min(rows) < least:
        raise ValueError(
            f"data-parallel ranks have {min(rows)} to {max(rows)} rows and need at least {least} each; only packed "
            f"rows that are one global batch together, here of {gbs}, may be divided unevenly"
        )
    return data.size if is_divided else gbs // ranks, batches


def _rows_of_ranks(data: BatchedDataDict[Any], policy: LoadedPolicy) -> list[int]:
    """If a rank's own rows cannot be packed, it raises that error and the others RuntimeError.

    It takes part with -1: telling the others in a later collective would cost every step a wait for the device.
    """
    error: Exception | None = None
    if policy.runtime.enable_seq_packing and data.micro_batch_indices is None:
        error = _packing_error(data, policy)
    counts = torch.zeros(policy.context.dp_size, dtype=torch.int64)
    counts[policy.context.device_mesh["dp"].get_local_rank()] = data.size if error is None else -1
    shared = to_compute_device(counts)
    torch.distributed.all_reduce(shared, group=policy.dp_group)
    rows = [int(count) for count in shared.tolist()]
    if error is not None:
        raise error
    if min(rows) < 0:
        raise RuntimeError("another rank failed: planning microbatches; see that rank's error")
    return rows


def _packing_error(data: BatchedDataDict[Any], policy: LoadedPolicy) -> Exception | None:
    """Which rows can be packed does not depend on the global batches that they will be divided into."""
    try:
        lengths: BatchedDataDict[Any] = BatchedDataDict(input_lengths=data["input_lengths"])
        microbatch_args(policy.config, "train").shard(lengths, 1, None)
    except Exception as error:  # noqa: BLE001  # raised once the other ranks know
        return error
    return None
