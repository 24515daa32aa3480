"""The abstract classes that algorithms are written against, and the outputs of their methods.

Shapes: B samples, S tokens of the padded batch, k candidates. Batches are right-padded; `input_ids` is [B,S] int64 and
`input_lengths` [B] int64. Results are on the CPU, row for row in the order of the batch. All methods block until every
rank is done, except those that return `list[ray.ObjectRef]`, one reference for each worker; the caller waits for these.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from dataplane_client.batched_data_dict import BatchedDataDict

if TYPE_CHECKING:
    import ray

    from trainer_adapter.losses import LossFunction


class GenerationDatumSpec(TypedDict):
    """A batch of prompts or rollouts. input_ids: [B,S] int64, right-padded; input_lengths: [B] int64."""

    input_ids: torch.Tensor
    input_lengths: torch.Tensor


class LogprobOutputSpec(TypedDict):
    """logprobs: [B,S] float32; column i is log p(token i | tokens before i), -inf for a token that top_k or top_p
    excludes; column 0 and padding are 0.
    """

    logprobs: torch.Tensor


class ReferenceLogprobOutputSpec(TypedDict):
    """reference_logprobs: [B,S] float32, like LogprobOutputSpec under the reference weights; nothing is excluded."""

    reference_logprobs: torch.Tensor


class ScoreOutputSpec(TypedDict):
    """scores: [B] float32."""

    scores: torch.Tensor


class TopkLogitsOutputSpec(TypedDict):
    """topk_logits: [B,S,k] float32; topk_indices: [B,S,k] int64 vocabulary ids."""

    topk_logits: torch.Tensor
    topk_indices: torch.Tensor


class PolicyInterface(abc.ABC):
    """A policy that computes log-probabilities and can be trained."""

    @abc.abstractmethod
    def get_logprobs(self, data: BatchedDataDict[GenerationDatumSpec]) -> BatchedDataDict[LogprobOutputSpec]:
        """Log-probabilities of the tokens under the current weights."""

    @abc.abstractmethod
    def get_reference_policy_logprobs(
        self, data: BatchedDataDict[GenerationDatumSpec], micro_batch_size: int | None = None
    ) -> BatchedDataDict[ReferenceLogprobOutputSpec]:
        """Log-probabilities of the tokens under the reference weights; the current weights are restored afterwards."""

    @abc.abstractmethod
    def get_topk_logits(
        self, data: BatchedDataDict[GenerationDatumSpec], k: int, micro_batch_size: int | None = None
    ) -> BatchedDataDict[TopkLogitsOutputSpec]:
        """The k largest logits of every position and their vocabulary ids.

        All S positions are returned, the last one included, because the result is stored beside its batch. A loss that
        aligns position i with token i + 1 drops the last one itself.
        """

    @abc.abstractmethod
    def train(
        self,
        data: BatchedDataDict[Any],
        loss_fn: LossFunction,
        eval_mode: bool = False,
        *,
        gbs: int | None = None,
        mbs: int | None = None,
    ) -> dict[str, Any]:
        """Run one optimizer step for each global batch of `gbs` samples (None: as configured), in microbatches of
        `mbs`.

        eval_mode: compute losses only, without an update. Returns at least `loss`, `grad_norm` and `all_mb_metrics`.
        """

    @abc.abstractmethod
    def calibrate_qkv_fp8_scales(
        self,
        data: BatchedDataDict[GenerationDatumSpec],
        micro_batch_size: int | None = None,
        percentile: float = 99.9,
        margin: float = 1.05,
        include_q: bool = False,
    ) -> dict[str, Any]:
        """FP8 scales for the K and V (and Q) activations of a quantised KV cache.

        They are the `percentile` of each tensor's largest absolute value, times the factor `margin`. Returns the
        settings and the scales by layer.
        """

    @abc.abstractmethod
    def prepare_for_training(self, *args: Any, **kwargs: Any) -> None:
        """Move weights and optimizer state to the device; training mode."""

    @abc.abstractmethod
    def finish_training(self, *args: Any, **kwargs: Any) -> None:
        """Called once after the last `train` of a stage."""

    @abc.abstractmethod
    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Write the weights, and the optimizer state if asked for."""

    @abc.abstractmethod
    def shutdown(self) -> bool:
        """Free all resources; returns whether that succeeded."""


class ColocatablePolicyInterface(PolicyInterface):
    """A policy that can send its weights to generation engines, on the same devices or on others."""

    @abc.abstractmethod
    def init_collective(
        self, ip: str, port: int, world_size: int, *, train_world_size: int
    ) -> list[ray.ObjectRef[Any]]:
        """Join a process group of `world_size` trainers and engines that meets at ip:port; trainers have the first
        ranks.
        """

    @abc.abstractmethod
    def offload_before_refit(self) -> None:
        """Move optimizer state to the CPU, to free memory on the device."""

    @abc.abstractmethod
    def offload_after_refit(self) -> None:
        """Move weights and optimizer state to the CPU; evaluation mode."""

    @abc.abstractmethod
    def prepare_refit_info(self) -> dict[str, Any] | None:
        """The name (as the engine uses it), full shape and dtype of every weight that will be sent."""

    @abc.abstractmethod
    def stream_weights_via_ipc_zmq(self, *args: Any, **kwargs: Any) -> list[ray.ObjectRef[Any]]:
        """Send the weights to engines on the same devices through shared device memory."""

    @abc.abstractmethod
    def broadcast_weights_for_collective(self, kv_scales: dict[str, float] | None = None) -> list[ray.ObjectRef[Any]]:
        """Send the weights to every engine of the group that `init_collective` made."""

    @abc.abstractmethod
    def prepare_for_lp_inference(self) -> None:
        """Move weights to the device; evaluation mode; optimizer state to the CPU if configured."""
