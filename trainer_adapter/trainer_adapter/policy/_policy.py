"""The driver of a policy: it shards rows over workers and combines their results. It holds no weights.

Rows come in two ways. A batch in memory is sharded as tensors, and results return as tensors. A meta names rows of the
data plane: only names, lengths and plans go to the workers, which fetch the rows and write results back as columns; no
tensor passes through the driver.

Only the driver plans microbatches, for all ranks: ranks that planned for themselves could differ in number and
deadlock. One script serves any group of workers. Under torchrun every process runs it, and these methods are collective
calls of all processes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.checkpoint_files import begin_checkpoint, load_checkpoint
from dataplane_client.client import DataPlaneClient
from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter.automodel.checkpoint import _infer_checkpoint_root
from trainer_adapter.automodel.config import PolicyConfig, required
from trainer_adapter.interfaces import (
    ColocatablePolicyInterface,
    GenerationDatumSpec,
    LogprobOutputSpec,
    ReferenceLogprobOutputSpec,
    ScoreOutputSpec,
    TopkLogitsOutputSpec,
)
from trainer_adapter.losses import LossFunction
from trainer_adapter.microbatch_args import microbatch_args
from trainer_adapter.policy._shards import shard_for_inference, shard_for_training, shard_meta
from trainer_adapter.worker_groups import WorkerGroup

if TYPE_CHECKING:
    import ray

_log = logging.getLogger("trainer_adapter")


class DataPlanePolicy(ColocatablePolicyInterface):
    """A policy over `workers`, which are AutomodelPolicyWorkers made with the same `config`.

    All methods raise what the group's methods raise, see WorkerGroup. Raises AssertionError if config enables both
    dynamic batching and sequence packing, KeyError if the enabled one lacks a setting of training.
    """

    def __init__(self, config: PolicyConfig, workers: WorkerGroup) -> None:
        microbatch_args(config, "train")  # raises for settings that exclude each other
        self._config = config
        self._workers = workers
        self._complete_checkpoint: Callable[[], None] | None = None
        """For the driver to call when the files that are being written are on disk; None: there are none."""

    # --- inference on batches; B rows, S positions, k candidates ---

    def get_logprobs(
        self, data: BatchedDataDict[GenerationDatumSpec], micro_batch_size: int | None = None
    ) -> BatchedDataDict[LogprobOutputSpec]:
        """`logprobs` [B,S] float32: see LogprobOutputSpec.

        micro_batch_size: rows of a rank's forward pass if microbatches are not planned by tokens; None: as configured.
        Any number of rows is accepted: see `_shards`.
        """
        return self._infer("get_logprobs", data, micro_batch_size=micro_batch_size)

    def get_reference_policy_logprobs(
        self, data: BatchedDataDict[GenerationDatumSpec], micro_batch_size: int | None = None
    ) -> BatchedDataDict[ReferenceLogprobOutputSpec]:
        """`reference_logprobs` [B,S] float32; otherwise like get_logprobs."""
        return self._infer("get_reference_policy_logprobs", data, micro_batch_size=micro_batch_size)

    def get_topk_logits(
        self, data: BatchedDataDict[GenerationDatumSpec], k: int, micro_batch_size: int | None = None
    ) -> BatchedDataDict[TopkLogitsOutputSpec]:
        """`topk_logits` [B,S,k] float32 and `topk_indices` [B,S,k] int64; otherwise like get_logprobs."""
        return self._infer("get_topk_logits", data, k=k, micro_batch_size=micro_batch_size)

    def score(self, data: BatchedDataDict[GenerationDatumSpec]) -> BatchedDataDict[ScoreOutputSpec]:
        """`scores` [B] float32 of a reward model."""
        return self._infer("score", data)

    def calibrate_qkv_fp8_scales(
        self,
        data: BatchedDataDict[GenerationDatumSpec],
        micro_batch_size: int | None = None,
        percentile: float = 99.9,
        margin: float = 1.05,
        include_q: bool = False,
    ) -> dict[str, Any]:
        """See PolicyInterface. If the ranks do not divide the rows, the last row is sampled several times."""
        shards = shard_for_inference(data, self._config, self._workers.dp_size).shards
        settings = {"percentile": percentile, "margin": margin, "include_q": include_q}
        method = "calibrate_qkv_fp8_scales"
        found = self._workers.run_on_shards(method, {"data": shards}, micro_batch_size=micro_batch_size, **settings)
        return dict(found[0])

    def _infer(self, method: str, data: BatchedDataDict[Any], **settings: Any) -> BatchedDataDict[Any]:
        sharded = shard_for_inference(data, self._config, self._workers.dp_size)
        return sharded.concat_results(self._workers.run_on_shards(method, {"data": sharded.shards}, **settings))

    # --- training on batches ---

    def train(
        self,
        data: BatchedDataDict[Any],
        loss_fn: LossFunction,
        eval_mode: bool = False,
        *,
        gbs: int | None = None,
        mbs: int | None = None,
    ) -> dict[str, Any]:
        """See PolicyInterface. AssertionError, before any training, unless gbs (None: train_global_batch_size) divides
        the rows and the number of data-parallel ranks divides gbs.

        Returns `loss` (float32, one entry for each global batch, summed over all ranks), `grad_norm` (of the last
        global batch; None in eval_mode) and `all_mb_metrics`, a list for each metric over the microbatches of all
        data-parallel ranks.
        """
        size = self._global_batch_size(gbs)
        shards = shard_for_training(data, self._config, self._workers.dp_size, size)
        return self._report("train", {"data": shards}, loss_fn=loss_fn, eval_mode=eval_mode, gbs=size, mbs=mbs)

    def begin_train_step(
        self, loss_fn: LossFunction, global_valid_seqs: float, global_valid_toks: float, num_global_batches: int = 1
    ) -> None:
        """Begin one optimizer step whose rows arrive in parts.

        global_valid_seqs, global_valid_toks: the valid samples of the whole step, and its valid tokens without each
        sample's first one; the losses are divided by them.
        num_global_batches: metrics are divided by it.
        """
        self._workers.run_everywhere(
            "begin_train_step",
            loss_fn=loss_fn,
            global_valid_seqs=global_valid_seqs,
            global_valid_toks=global_valid_toks,
            num_global_batches=num_global_batches,
        )

    def train_microbatches(self, data: BatchedDataDict[Any], mbs: int | None = None) -> list[dict[str, Any]]:
        """Add the gradients of these rows to those of the open step.

        Returns the metrics of the microbatches of all data-parallel ranks, one rank after the other. AssertionError
        unless the number of ranks divides the rows.
        """
        shards = shard_for_training(data, self._config, self._workers.dp_size, None)
        found = self._workers.run_on_shards("train_microbatches", {"data": shards}, mbs=mbs)
        return [metrics for own in found for metrics in own]

    def finish_train_step(self) -> dict[str, Any]:
        """Apply the open step; returns what `train` returns."""
        return self._report("finish_train_step", {})

    def abort_train_step(self) -> None:
        """Discard the open step; without one, does nothing."""
        self._workers.run_everywhere("abort_train_step")

    def _report(self, method: str, shards: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
        """Merge the leaders' reports, given by data-parallel rank, into one.

        Ranks report `global_loss` and `grad_norm` summed over all ranks, so the first report has them. The lists of
        `all_mb_metrics` are concatenated.
        """
        reports = self._workers.run_on_shards(method, shards, **settings)
        metrics: dict[str, list[Any]] = {}
        for report in reports:
            for name, values in report["all_mb_metrics"].items():
                metrics.setdefault(name, []).extend(values)
        return {"loss": reports[0]["global_loss"], "grad_norm": reports[0]["grad_norm"], "all_mb_metrics": metrics}

    def _global_batch_size(self, gbs: int | None) -> int:
        return int(required(self._config, "train_global_batch_size")) if gbs is None else gbs

    # --- rows of the data plane ---

    def get_logprobs_from_meta(self, meta: KVBatchMeta, micro_batch_size: int | None = None) -> None:
        """Compute get_logprobs of the meta's rows and write it back as `prev_logprobs`; blocks until it is written.

        ValueError if the meta has no sequence_lengths, AssertionError unless the number of data-parallel ranks divides
        its rows.
        """
        self._infer_from_meta("get_logprobs_from_meta", meta, micro_batch_size)

    def get_reference_policy_logprobs_from_meta(self, meta: KVBatchMeta, micro_batch_size: int | None = None) -> None:
        """The same under the reference weights, written back as `reference_policy_logprobs`."""
        self._infer_from_meta("get_reference_policy_logprobs_from_meta", meta, micro_batch_size)

    def train_from_meta(
        self,
        meta: KVBatchMeta,
        loss_fn: LossFunction,
        eval_mode: bool = False,
        *,
        gbs: int | None = None,
        mbs: int | None = None,
    ) -> dict[str, Any]:
        """Run `train` on the meta's rows: on the fields that it names, or on those of training if it names none."""
        size = self._global_batch_size(gbs)
        metas = shard_meta(meta, self._config, self._workers.dp_size, "train", size)
        return self._report("train_from_meta", {"meta": metas}, loss_fn=loss_fn, eval_mode=eval_mode, gbs=size, mbs=mbs)

    def train_microbatches_from_meta(self, meta: KVBatchMeta, mbs: int | None = None) -> list[dict[str, Any]]:
        """Run `train_microbatches` on the meta's rows, with the fields of train_from_meta."""
        metas = shard_meta(meta, self._config, self._workers.dp_size, "train", None)
        found = self._workers.run_on_shards("train_microbatches_from_meta", {"meta": metas}, mbs=mbs)
        return [metrics for own in found for metrics in own]

    def _infer_from_meta(self, method: str, meta: KVBatchMeta, micro_batch_size: int | None) -> None:
        metas = shard_meta(meta, self._config, self._workers.dp_size, "logprob", None)
        self._workers.run_on_shards(method, {"meta": metas}, micro_batch_size=micro_batch_size)

    # --- checkpoints ---

    def save_checkpoint(
        self,
        weights_path: str,
        optimizer_path: str | None = None,
        tokenizer_path: str | None = None,
        checkpointing_cfg: Mapping[str, Any] | None = None,
        *,
        data_plane: DataPlaneClient | None = None,
    ) -> None:
        """Write a checkpoint. Paths are on the workers' nodes, on storage that all nodes share. ValueError without
        checkpointing_cfg.

        data_plane: the driver's client; other processes may pass None. When all ranks have written their files, the
        driver takes a snapshot of the server and names it in `<weights_path>/data_plane.json`. The other ranks wait.
        The checkpoint is complete when it has that file. Rows that are claimed and not committed by then come again
        after load_checkpoint: commit what was trained before. If the driver fails, it raises its error and the other
        processes RuntimeError; the checkpoint then stays incomplete.

        With checkpointing_cfg's `is_async` this returns when weights and optimizer state are copied and the snapshot is
        taken. The checkpoint is complete after the next save_checkpoint, finish_checkpoint or shutdown.
        """
        self.finish_checkpoint()
        self._workers.run_everywhere(
            "save_checkpoint",
            weights_path=weights_path,
            optimizer_path=optimizer_path,
            tokenizer_path=tokenizer_path,
            checkpointing_cfg=checkpointing_cfg,
        )
        root = Path(_infer_checkpoint_root(f"{weights_path}/model")).name  # often with the step

        is_async = bool((checkpointing_cfg or {}).get("is_async"))
        self._complete_checkpoint = (lambda: None) if is_async else None

        def take_snapshot() -> None:
            if data_plane is None:
                return
            name_snapshot = begin_checkpoint(data_plane, weights_path, {}, root)
            if is_async:
                self._complete_checkpoint = name_snapshot
            else:
                name_snapshot()

        self._on_driver("take a snapshot", take_snapshot)

    def finish_checkpoint(self) -> None:
        """Wait until the checkpoint in flight is complete; returns at once if there is none. RuntimeError if its files
        could not be written; it then stays incomplete.
        """
        complete, self._complete_checkpoint = self._complete_checkpoint, None
        if complete is None:
            return
        try:
            self._workers.run_everywhere("finish_checkpoint")
        except KeyboardInterrupt:  # the files are still being written
            self._complete_checkpoint = complete
            raise
        self._on_driver("name the snapshot", complete)

    def load_checkpoint(
        self, weights_path: str, optimizer_path: str | None = None, *, data_plane: DataPlaneClient | None = None
    ) -> None:
        """Load a checkpoint of save_checkpoint. The reference weights stay unchanged.

        data_plane: the driver's client; other processes may pass None. When all ranks have loaded their files, the
        driver restores the checkpoint's snapshot, and all return when the server serves again. Sessions, claims, groups
        and batches of loaders from before belong to what was left, so close them first. FileNotFoundError if the
        checkpoint has no snapshot, PreconditionError if the server cannot use it; the server then has what it had, and
        other processes raise RuntimeError.
        """
        self.finish_checkpoint()
        self._workers.run_everywhere("load_checkpoint", weights_path=weights_path, optimizer_path=optimizer_path)

        def restore_snapshot() -> None:
            if data_plane is not None:
                load_checkpoint(data_plane, weights_path)

        self._on_driver("restore the snapshot", restore_snapshot)

    def _on_driver(self, what: str, act: Callable[[], None]) -> None:
        """Let the driver alone act while the other processes wait. They raise if it fails."""
        error: Exception | None = None
        try:
            if self._workers.is_driver:
                act()
        except Exception as raised:  # noqa: BLE001  # the other processes must get every error
            error = raised
        outcome = self._workers.from_driver({} if error is None else {"error": f"{type(error).__name__}: {error}"})
        if error is not None:
            raise error
        if "error" in outcome:
            raise RuntimeError(f"the driver could not {what}: {outcome['error']}")

    # --- device and CPU memory: see the interfaces ---

    def prepare_for_training(self) -> None:
        self._workers.run_everywhere("prepare_for_training")

    def prepare_for_lp_inference(self) -> None:
        self._workers.run_everywhere("prepare_for_lp_inference")

    def finish_training(self) -> None:
        self._workers.run_everywhere("finish_training")

    def offload_before_refit(self) -> None:
        self._workers.run_everywhere("offload_before_refit")

    def offload_after_refit(self) -> None:
        self._workers.run_everywhere("offload_after_refit")

    # --- weights for generation engines ---

    def prepare_refit_info(self) -> dict[str, Any] | None:
        """Name, full shape and dtype of every weight that will be sent, in order, as rank 0 reports them."""
        return cast("dict[str, Any]", self._workers.run_everywhere("prepare_refit_info"))

    def init_collective(
        self, ip: str, port: int, world_size: int, *, train_world_size: int
    ) -> list[ray.ObjectRef[Any]]:
        """See ColocatablePolicyInterface.

        With Ray actors this returns references to wait for. Under torchrun it blocks until the group is complete and
        returns futures that are done. The two methods that send weights behave alike.
        """
        given = {"ip": ip, "port": port, "world_size": world_size, "train_world_size": train_world_size}
        return self._workers.start("init_collective", **given)

    def stream_weights_via_ipc_zmq(
        self, buffer_size_bytes: int = 0, kv_scales: dict[str, float] | None = None
    ) -> list[ray.ObjectRef[Any]]:
        """See ColocatablePolicyInterface. buffer_size_bytes: of the shared memory; 0: the worker chooses."""
        given = {"buffer_size_bytes": buffer_size_bytes, "kv_scales": kv_scales}
        return self._workers.start("stream_weights_via_ipc_zmq", **given)

    def broadcast_weights_for_collective(self, kv_scales: dict[str, float] | None = None) -> list[ray.ObjectRef[Any]]:
        return self._workers.start("broadcast_weights_for_collective", kv_scales=kv_scales)

    # --- shutdown ---

    def shutdown(self) -> bool:
        """End the workers; returns whether that succeeded, and a checkpoint in flight is complete. A second call does
        nothing.
        """
        complete, self._complete_checkpoint = self._complete_checkpoint, None
        ended = self._workers.shutdown()
        if ended and complete is not None and self._workers.is_driver:
            try:
                complete()
            except Exception:  # noqa: BLE001  # shutdown must not raise; the error is logged
                _log.exception("the snapshot of the last checkpoint could not be named")
                return False
        return ended
