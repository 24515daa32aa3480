"""Optimizer steps of a policy on claimed rows, as every trainer of the example takes them.

All ranks call these methods together, with the same rows.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from dataplane_client import DataPlaneClient, KVBatchMeta
from dataplane_client.batched_data_dict import BatchedDataDict
from settings import GrpoSettings
from trainer_adapter.losses import ClippedPolicyGradientLoss, ClippedPolicyGradientOptions, LossFunction
from trainer_adapter.policy import DataPlanePolicy
from trainer_adapter.worker_groups import WorkerGroup


class PolicySteps:
    """client: used by the driver only. truncated_ratio: the largest weight of a token by which its loss is corrected
    for rollouts of older weights; None for no correction.
    """

    def __init__(
        self,
        client: DataPlaneClient,
        group: WorkerGroup,
        policy: DataPlanePolicy,
        settings: GrpoSettings,
        truncated_ratio: float | None = None,
    ) -> None:
        self._client = client
        self._group = group
        self._policy = policy
        self._settings = settings
        options = ClippedPolicyGradientOptions(
            ratio_clip_min=settings.clip_low,
            ratio_clip_max=settings.clip_high,
            use_importance_sampling_correction=truncated_ratio is not None,
            truncated_importance_sampling_ratio=truncated_ratio,
        )
        self._policy_loss = ClippedPolicyGradientLoss(options)

    def _learn_in_parts(self, meta: KVBatchMeta, tokens: float) -> dict[str, float]:
        """Take the optimizer steps of a batch of rollouts; the loss is a mean over `tokens` response tokens."""
        self._policy.prepare_for_training()
        parts = self._settings.optimizer_steps_per_batch
        cuts = [part * meta.size // parts for part in range(parts + 1)]
        updates = [self._update(meta.slice(a, b), self._policy_loss, tokens / parts) for a, b in pairwise(cuts)]
        return {
            "loss": sum(update["loss"] for update in updates) / parts,
            "grad_norm": sum(update["grad_norm"] for update in updates) / parts,
            "tokens": sum(update["tokens"] for update in updates),
        }

    def _update(self, batch: KVBatchMeta | BatchedDataDict[Any], loss: LossFunction, tokens: float) -> dict[str, float]:
        """Take one optimizer step on rows of the data plane, or on a batch in memory; the loss is a mean over `tokens`
        response tokens.
        """
        self._policy.begin_train_step(loss, global_valid_seqs=batch.size, global_valid_toks=tokens)
        rows = math.gcd(batch.size // self._group.dp_size, self._settings.micro_batch_rows)
        if isinstance(batch, KVBatchMeta):
            microbatches = self._policy.train_microbatches_from_meta(batch, mbs=rows)
        else:
            microbatches = self._policy.train_microbatches(batch, mbs=rows)
        report = self._policy.finish_train_step()
        return {
            "loss": float(report["loss"].sum()),
            "grad_norm": float(report["grad_norm"]),
            "tokens": sum(metrics["num_unmasked_tokens"] for metrics in microbatches),
        }


def known(meta: KVBatchMeta | None) -> KVBatchMeta:
    """What the driver named."""
    if meta is None:
        raise RuntimeError("the driver named no rows")
    return meta
