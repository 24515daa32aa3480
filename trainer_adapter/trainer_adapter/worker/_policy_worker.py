"""One rank of a policy. Every rank of a job makes one worker, and all ranks call the same methods in the same order:
almost all methods are collective.

Batches and metas are this data-parallel rank's own rows, the same on all its tensor- and context-parallel ranks.
Results are the same on all these ranks too, on the CPU, and row for row in the order of the batch. Shapes: B rows, S
positions, k candidates.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from dataplane_client import KVBatchMeta, connect
from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.config import PolicyConfig, required
from trainer_adapter.automodel.qkv_calibration import QkvCalibration
from trainer_adapter.data_plane import TRAIN_FIELDS, ReplicaClaim, ReplicaDataPlane, replica_group
from trainer_adapter.interfaces import (
    GenerationDatumSpec,
    LogprobOutputSpec,
    ReferenceLogprobOutputSpec,
    ScoreOutputSpec,
    TopkLogitsOutputSpec,
)
from trainer_adapter.losses import LossFunction
from trainer_adapter.microbatch_args import width_multiple
from trainer_adapter.refit import WeightPublisher
from trainer_adapter.worker import _inference
from trainer_adapter.worker._loaded_policy import LoadedPolicy, load_policy
from trainer_adapter.worker._packed_rows import check_packed_rows
from trainer_adapter.worker._training import finish_steps, train
from trainer_adapter.worker._training_step import TrainingStep
from trainer_adapter.worker._weights import move_model, move_optimizer, swap_weights

_log = logging.getLogger("trainer_adapter")
_CPU = torch.device("cpu")
_LOGPROB_INPUTS = ("input_ids", "input_lengths")


class AutomodelPolicyWorker:
    """Sets up the rank: see load_policy for its arguments, and trainer_adapter.automodel.setup for its errors.

    With sequence packing it also tries one packed row, and raises NotImplementedError if the model's sequences see each
    other.

    The reference weights are those after weights_path is loaded. To resume a run with its own reference, call
    load_checkpoint instead.

    RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and, with GPUs, LOCAL_RANK come from the environment. data_plane: address
    of the data plane's server; None: methods that take a meta or a partition raise RuntimeError.
    """

    def __init__(
        self,
        config: PolicyConfig,
        *,
        data_plane: str | None = None,
        init_optimizer: bool = True,
        init_reference_model: bool = True,
        weights_path: str | None = None,
        optimizer_path: str | None = None,
    ) -> None:
        self._policy: LoadedPolicy = load_policy(
            config,
            init_optimizer=init_optimizer,
            init_reference_model=init_reference_model,
            weights_path=weights_path,
            optimizer_path=optimizer_path,
        )
        check_packed_rows(self._policy)
        replica = replica_group(self._policy.context)
        self._client = connect(data_plane) if data_plane is not None and replica.is_leader else None
        self._columns = ReplicaDataPlane(
            self._client,
            replica=replica,
            dp_group=self._policy.dp_group,
            device=self._policy.device,
            pad_token_id=self._policy.pad_token_id,
            pad_multiple=width_multiple(config),
        )
        self._weights = WeightPublisher(
            self._policy.model, self._policy.runtime.dtype, self._policy.device, torch.distributed.get_rank()
        )
        self._step: TrainingStep | None = None

    def layout(self) -> dict[str, int]:
        """This rank's place: `rank` and `world_size`, and for each dimension its rank and size, such as `dp_rank` and
        `dp_size`.
        """
        mesh = self._policy.context.device_mesh
        own = {"rank": torch.distributed.get_rank(), "world_size": torch.distributed.get_world_size()}
        for name in ("dp", "cp", "tp"):
            own |= {f"{name}_rank": mesh[name].get_local_rank(), f"{name}_size": mesh[name].size()}
        return own

    # --- inference ---

    def get_logprobs(
        self, data: BatchedDataDict[GenerationDatumSpec], micro_batch_size: int | None = None
    ) -> BatchedDataDict[LogprobOutputSpec]:
        """`logprobs` [B,S] float32: column i is log p(token i | tokens before i), under the temperature, top_k and
        top_p of the configuration's generation; column 0 and padding are 0. A token that top_k or top_p excludes has
        -inf, and a warning counts these.

        data: `input_ids` [B,S] int64, right-padded, `input_lengths` [B] int64; the same number of rows on all
        data-parallel ranks or, with sequence packing, at least one on each.
        micro_batch_size: rows of a forward pass if microbatches are not planned by tokens; None: logprob_batch_size.
        """
        found = _inference.logprobs(self._policy, data, micro_batch_size, self._policy.runtime.sampling_params)
        return BatchedDataDict(logprobs=found)

    def get_reference_policy_logprobs(
        self, *, data: BatchedDataDict[GenerationDatumSpec], micro_batch_size: int | None = None
    ) -> BatchedDataDict[ReferenceLogprobOutputSpec]:
        """`reference_logprobs` [B,S] float32: get_logprobs under the reference weights, with the temperature but
        without top_k and top_p, because the reference may give probability to tokens that the policy could not sample.

        The current weights are always restored afterwards. RuntimeError without reference weights.
        """
        if self._policy.reference is None:
            raise RuntimeError("the policy has no reference weights: it was set up with init_reference_model=False")
        params = self._policy.runtime.sampling_params
        unfiltered = None if params is None else replace(params, top_k=None, top_p=1.0)
        with swap_weights(self._policy.model, self._policy.reference):
            found = _inference.logprobs(self._policy, data, micro_batch_size, unfiltered)
        return BatchedDataDict(reference_logprobs=found)

    def get_topk_logits(
        self, *, data: BatchedDataDict[GenerationDatumSpec], k: int, micro_batch_size: int | None = None
    ) -> BatchedDataDict[TopkLogitsOutputSpec]:
        """`topk_logits` [B,S,k] float32, largest first, divided by the temperature, and `topk_indices` [B,S,k] int64.

        All S positions are returned, see PolicyInterface. ValueError for k below 1; a smaller vocabulary gives all its
        logits.
        """
        values, ids = _inference.topk_logits(self._policy, data, k, micro_batch_size)
        return BatchedDataDict(topk_logits=values, topk_indices=ids)

    def score(self, *, data: BatchedDataDict[GenerationDatumSpec]) -> BatchedDataDict[ScoreOutputSpec]:
        """`scores` [B] float32 of a reward model, in microbatches of the configured `batch_size`."""
        return BatchedDataDict(scores=_inference.scores(self._policy, data))

    def calibrate_qkv_fp8_scales(
        self,
        *,
        data: BatchedDataDict[GenerationDatumSpec],
        micro_batch_size: int | None = None,
        percentile: float = 99.9,
        margin: float = 1.05,
        include_q: bool = False,
    ) -> dict[str, Any]:
        """FP8 scales for a quantised KV cache, see QkvCalibration.scales.

        data: as for get_logprobs; each microbatch is one sample.
        """
        calibration = QkvCalibration(self._policy.model, percentile, margin, include_q)
        return _inference.fp8_scales(self._policy, data, micro_batch_size, calibration)

    # --- training ---

    def train(
        self,
        data: BatchedDataDict[Any],
        loss_fn: LossFunction,
        eval_mode: bool = False,
        gbs: int | None = None,
        mbs: int | None = None,
    ) -> dict[str, Any]:
        """See PolicyInterface. gbs: samples of all ranks; mbs: of this rank.

        data: as for get_logprobs, with `sample_mask` [B] and, for a loss over tokens, `token_mask` [B,S]. The rows of
        all ranks together are one or more whole global batches. Ranks may have different numbers of rows only if these
        are one global batch together; ValueError on all ranks otherwise. Gradients are clipped to max_grad_norm. A step
        whose norm is not finite is skipped and logged. The learning-rate schedule advances by one step.

        Returns `global_loss` (float32, one entry for each global batch), `grad_norm` of the last one, before clipping
        (0-d float32; None in eval_mode), `rank`, `gpu_name`, `model_dtype`, and `all_mb_metrics`, a list for each
        metric.
        """
        self._check_no_step("train")
        return train(self._policy, data, loss_fn, eval_mode, gbs, mbs)

    def begin_train_step(
        self, loss_fn: LossFunction, global_valid_seqs: float, global_valid_toks: float, num_global_batches: int = 1
    ) -> None:
        """Begin a step whose rows arrive in parts.

        global_valid_seqs, global_valid_toks: of the whole step over all ranks; valid samples, and valid tokens without
        each sample's first one.

        RuntimeError while another step is open.
        """
        self._check_no_step("begin_train_step")
        # float32, torch's type of a float, is exact up to 2**24 only.
        counts = (int(n) if float(n).is_integer() else float(n) for n in (global_valid_seqs, global_valid_toks))
        seqs, toks = (torch.tensor(n, device=self._policy.device) for n in counts)
        self._step = TrainingStep(self._policy, loss_fn, seqs, toks, num_global_batches=num_global_batches)

    def train_microbatches(self, data: BatchedDataDict[Any], mbs: int | None = None) -> list[dict[str, Any]]:
        """Add the gradients of these rows to those of the open step. Returns the metrics of their microbatches.

        If it raises, the step stays open, but its gradients are unusable: abort it.
        """
        step = self._open_step()
        batch, _ = _inference.plan_batch(self._policy, data, "train")
        size = required(self._policy.config, "train_micro_batch_size") if mbs is None else mbs
        return step.microbatches(batch, size)

    def finish_train_step(self) -> dict[str, Any]:
        """Clip and apply the open step's gradients; returns what `train` returns."""
        step, self._step = self._open_step(), None
        return finish_steps(self._policy, [step], step.update())

    def abort_train_step(self) -> None:
        """Discard the open step; weights and optimizer are unchanged. Without an open step, does nothing."""
        step, self._step = self._step, None
        if step is not None:
            step.abort()

    def _open_step(self) -> TrainingStep:
        if self._step is None:
            raise RuntimeError("no training step is open: call begin_train_step first")
        return self._step

    def _check_no_step(self, method: str) -> None:
        if self._step is not None:
            raise RuntimeError(f"{method}: a training step is open; finish or abort it first")

    # --- rows of the data plane ---

    def claim_shard(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        *,
        step: int,
        **options: Any,
    ) -> ReplicaClaim:
        """Claim this data-parallel rank's rows of a step, for jobs without a driver. The claim's meta is for the
        methods below.

        Arguments, options and errors are those of DataPlaneClient.claim_shard; batch_size counts all ranks together.

            with worker.claim_shard("train", "prev_lp", fields, 64, step=step) as claim:
                worker.get_logprobs_from_meta(claim.meta)

        If ranks get different numbers of rows, sequence packing must be enabled, and no rank may be without one.
        """
        place = self.layout()
        shard = {"step": step, "dp_rank": place["dp_rank"], "dp_world": place["dp_size"]}
        return self._columns.claim_shard(partition_id, task_name, required_fields, batch_size, **shard, **options)

    def get_logprobs_from_meta(self, meta: KVBatchMeta, micro_batch_size: int | None = None) -> None:
        """Compute get_logprobs of the meta's rows and write it back as `prev_logprobs`."""
        data = self._columns.fetch(meta, _LOGPROB_INPUTS)
        result = {**self.get_logprobs(data, micro_batch_size), "input_lengths": data["input_lengths"]}
        self._columns.write_back(meta, result, result_key="logprobs", field="prev_logprobs")

    def get_reference_policy_logprobs_from_meta(self, meta: KVBatchMeta, micro_batch_size: int | None = None) -> None:
        """The same under the reference weights, written back as `reference_policy_logprobs`."""
        data = self._columns.fetch(meta, _LOGPROB_INPUTS)
        found = self.get_reference_policy_logprobs(data=data, micro_batch_size=micro_batch_size)
        result = {**found, "input_lengths": data["input_lengths"]}
        self._columns.write_back(meta, result, result_key="reference_logprobs", field="reference_policy_logprobs")

    def train_from_meta(
        self,
        meta: KVBatchMeta,
        loss_fn: LossFunction,
        eval_mode: bool = False,
        gbs: int | None = None,
        mbs: int | None = None,
    ) -> dict[str, Any]:
        """Run `train` on the meta's rows: on the fields that it names, or on TRAIN_FIELDS."""
        return self.train(self._training_rows(meta), loss_fn, eval_mode, gbs, mbs)

    def train_microbatches_from_meta(self, meta: KVBatchMeta, mbs: int | None = None) -> list[dict[str, Any]]:
        """Run `train_microbatches` on the meta's rows, with the fields of `train_from_meta`."""
        return self.train_microbatches(self._training_rows(meta), mbs)

    def _training_rows(self, meta: KVBatchMeta) -> BatchedDataDict[Any]:
        return self._columns.fetch(meta, TRAIN_FIELDS if meta.fields is None else meta.fields)

    # --- checkpoints ---

    def save_checkpoint(
        self,
        weights_path: str,
        optimizer_path: str | None = None,
        tokenizer_path: str | None = None,
        checkpointing_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        """See CheckpointManager.save_checkpoint."""
        policy = self._policy
        policy.checkpoints.save_checkpoint(
            policy.model,
            weights_path,
            policy.state.optimizer,
            optimizer_path,
            policy.state.scheduler,
            policy.tokenizer,
            tokenizer_path,
            checkpointing_cfg,
        )

    def finish_checkpoint(self) -> None:
        """See CheckpointManager.finish_checkpoint."""
        self._policy.checkpoints.finish_checkpoint()

    def load_checkpoint(self, weights_path: str, optimizer_path: str | None = None) -> None:
        """See CheckpointManager.load_checkpoint. The reference weights stay unchanged."""
        state = self._policy.state
        self._policy.checkpoints.load_checkpoint(
            state.model, weights_path, state.optimizer, optimizer_path, state.scheduler
        )

    # --- device and CPU memory: see the interfaces ---

    def prepare_for_training(self) -> None:
        self._weights_to_device()
        self._policy.model.train()
        if not self._policy.runtime.cpu_offload:
            move_optimizer(self._policy.state.optimizer, self._policy.device, self._policy.pins_host_memory)

    def prepare_for_lp_inference(self) -> None:
        """See PolicyInterface; the setting is offload_optimizer_for_logprob."""
        self._weights_to_device()
        self._policy.model.eval()
        if self._policy.runtime.offload_optimizer_for_logprob:
            move_optimizer(self._policy.state.optimizer, _CPU, self._policy.pins_host_memory)

    def finish_training(self) -> None:
        """No-op; the policy interface requires it."""

    def offload_before_refit(self) -> None:
        move_optimizer(self._policy.state.optimizer, _CPU, self._policy.pins_host_memory)

    def offload_after_refit(self) -> None:
        move_model(self._policy.model, _CPU, self._policy.pins_host_memory)
        self._policy.model.eval()
        self.offload_before_refit()

    def _weights_to_device(self) -> None:
        """With cpu_offload FSDP keeps the weights on the CPU and copies them as needed."""
        if not self._policy.runtime.cpu_offload:
            move_model(self._policy.model, self._policy.device, self._policy.pins_host_memory)

    # --- weights for generation engines ---

    def prepare_refit_info(self) -> dict[str, Any]:
        """The engine's name, full shape and dtype of every weight that will be sent, in order."""
        return self._weights.prepare_refit_info()

    def stream_weights_via_ipc_zmq(self, buffer_size_bytes: int = 0, kv_scales: dict[str, float] | None = None) -> None:
        """See WeightPublisher.stream_weights_via_ipc_zmq."""
        self._weights.stream_weights_via_ipc_zmq(buffer_size_bytes, kv_scales)

    def init_collective(self, ip: str, port: int, world_size: int, *, train_world_size: int) -> None:
        """See WeightPublisher.init_collective."""
        self._weights.init_collective(ip, port, world_size, train_world_size=train_world_size)

    def broadcast_weights_for_collective(self, kv_scales: dict[str, float] | None = None) -> None:
        """See WeightPublisher.broadcast_weights_for_collective."""
        self._weights.broadcast_weights_for_collective(kv_scales)

    # --- shutdown ---

    def shutdown(self) -> bool:
        """Close all resources of this rank, the process group included. Returns whether that succeeded."""
        try:
            with ExitStack() as closing:  # from the last one to the first, whichever of them fails
                if torch.distributed.is_initialized():
                    closing.callback(torch.distributed.destroy_process_group)
                if self._client is not None:
                    closing.callback(self._client.close)
                closing.callback(self._weights.close)
                closing.callback(self.abort_train_step)
                closing.callback(self._policy.checkpoints.close)  # a save in flight matters most
        except Exception:  # noqa: BLE001  # shutdown must not raise; the error is logged
            _log.exception("a worker did not shut down cleanly")
            return False
        return True
