"""One optimizer step, whose gradients come from any number of batches.

    begin -> microbatches, as often as rows arrive -> finish, or abort

Every loss is a share of a mean over the step. So its divisors, the valid samples and tokens of the whole step over all
ranks, are given when it begins. All ranks call the same methods in the same order.

A step whose gradients are not finite changes nothing, because applying it would ruin the weights. So the norm is
computed without max_grad_norm too. All ranks know it; the report contains it, and an error is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.config import is_enabled
from trainer_adapter.automodel.data import ProcessedMicrobatch
from trainer_adapter.automodel.models.automodel_ranks import prepare_gradients
from trainer_adapter.automodel.parallel.fsdp import discard_gradients, release_whole_weights
from trainer_adapter.automodel.train import (
    LossPostProcessor,
    automodel_forward_backward,
    clip_grad_norm,
)
from trainer_adapter.losses import LossFunction
from trainer_adapter.losses.metrics import as_floats
from trainer_adapter.worker._loaded_policy import LoadedPolicy

_log = logging.getLogger("trainer_adapter")


class TrainingStep:
    """An open step and its gradients.

    global_valid_seqs, global_valid_toks: 0-d divisors of the losses.
    num_global_batches: metrics are divided by it, so that the sums of several steps are means.
    differentiates: False computes losses only and needs no optimizer.
    """

    def __init__(
        self,
        policy: LoadedPolicy,
        loss_fn: LossFunction,
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
        *,
        num_global_batches: int = 1,
        differentiates: bool = True,
    ) -> None:
        _check_rows_together(policy, loss_fn)
        self._policy = policy
        self._processor = LossPostProcessor(
            loss_fn,
            **policy.processor_settings,
            dp_size=policy.context.dp_size,
            sampling_params=policy.runtime.sampling_params,
        )
        self._valid = (global_valid_seqs, global_valid_toks)
        self._counts: dict[str, float] | None = None
        self._num_global_batches = num_global_batches
        self._differentiates = differentiates
        self.loss = torch.zeros((), device=policy.device)
        self.metrics: list[dict[str, Any]] = []
        self.is_applied = False
        if differentiates:
            _discard_gradients(policy)

    def microbatches(self, data: BatchedDataDict[Any], mbs: int) -> list[dict[str, Any]]:
        """Run forward and backward passes over data, which has the plan of its microbatches if it needs one.

        Returns the metrics of its real microbatches that have a valid sample.
        """
        policy = self._policy
        policy.model.train(self._differentiates)  # here, since inference between the parts of a step turns it off
        microbatches, real = policy.microbatches(data, mbs)
        results = automodel_forward_backward(
            policy.model,
            _sync_on_last(microbatches, _gradient_sync(policy)) if self._differentiates else microbatches,
            self._processor,
            forward_only=not self._differentiates,
            is_reward_model=policy.runtime.is_reward_model,
            allow_flash_attn_args=policy.runtime.allow_flash_attn_args,
            global_valid_seqs=self._valid[0],
            global_valid_toks=self._valid[1],
            sampling_params=policy.runtime.sampling_params,
            dp_size=policy.context.dp_size,
            cp_size=policy.context.cp_size,
            num_global_batches=self._num_global_batches,
            train_context_fn=policy.forward_contexts(),
            num_valid_microbatches=real,
            on_microbatch_start=_cache_clearer(policy),
        )
        counted = [(loss, metrics) for loss, metrics in results[:real] if metrics["num_valid_samples"] > 0]
        self.loss += sum(loss for loss, _ in counted)
        own = [{**metrics, **self._step_metrics()} for _, metrics in counted]
        self.metrics += own
        return own

    def _step_metrics(self) -> dict[str, Any]:
        if self._counts is None:
            self._counts = as_floats(dict(zip(("global_valid_seqs", "global_valid_toks"), self._valid, strict=True)))
        optimizer = self._policy.state.optimizer
        rate = {} if optimizer is None else {"lr": optimizer.param_groups[0]["lr"]}
        return {**rate, **self._counts}

    def update(self) -> Tensor | None:
        """Clip and apply the gradients.

        Returns their norm before clipping, 0-d float32 on the CPU; None if nothing is differentiated.
        """
        if not self._differentiates:
            return None
        optimizer = _optimizer(self._policy)
        release_whole_weights(self._policy.model)  # which inference after the last part has left
        prepare_gradients(self._policy.model, self._policy.context)
        trained = (parameter for parameter in self._policy.model.parameters() if parameter.requires_grad)
        norm = clip_grad_norm(trained, self._policy.runtime.max_grad_norm)
        if bool(norm.isfinite()):
            optimizer.step()
            self.is_applied = True
        else:
            _log.error("the gradient norm is %s: this optimizer step is skipped", norm.item())
        optimizer.zero_grad()
        return norm

    def abort(self) -> None:
        """Discard the gradients; weights and optimizer are unchanged."""
        if self._differentiates:
            _discard_gradients(self._policy)


def _check_rows_together(policy: LoadedPolicy, loss_fn: LossFunction) -> None:
    together = getattr(loss_fn, "rows_together", 1)
    plans = [name for name in ("dynamic_batching", "sequence_packing") if is_enabled(policy.config, name)]
    if together > 1 and plans:
        raise ValueError(
            f"{type(loss_fn).__name__} needs each {together} rows together, and {plans[0]} orders rows by their "
            f"lengths: set {plans[0]}.enabled=false"
        )


def _optimizer(policy: LoadedPolicy) -> torch.optim.Optimizer:
    if policy.state.optimizer is None:
        raise RuntimeError("the policy has no optimizer and cannot be trained: it was set up with init_optimizer=False")
    return policy.state.optimizer


def _discard_gradients(policy: LoadedPolicy) -> None:
    """Also those of a step that failed."""
    _optimizer(policy).zero_grad()
    discard_gradients(policy.model)


def _cache_clearer(policy: LoadedPolicy) -> Callable[[int], None] | None:
    every = policy.config["dtensor_cfg"].get("clear_cache_every_n_steps")
    if not every or policy.device.type != "cuda":
        return None

    def clear(index: int) -> None:
        if index % every == 0:
            torch.cuda.empty_cache()

    return clear


def _gradient_sync(policy: LoadedPolicy) -> Callable[[bool], None]:
    """Return the switch that decides whether FSDP sums gradients over ranks after the next backward pass.

    If sums are deferred to the last microbatch, a step communicates once, and until then every rank holds the gradients
    of whole layers.
    """
    switch: Callable[[bool], None] | None = getattr(policy.model, "set_requires_gradient_sync", None)
    if switch is None or not getattr(policy.context.fsdp2_config, "defer_fsdp_grad_sync", False):
        return lambda _is_last: None
    return switch


def _sync_on_last(
    microbatches: Iterator[ProcessedMicrobatch], sync: Callable[[bool], None]
) -> Iterator[ProcessedMicrobatch]:
    """Yield the same microbatches; before each, call `sync` with whether it is the last."""
    upcoming = next(microbatches, None)
    while upcoming is not None:
        current, upcoming = upcoming, next(microbatches, None)
        sync(upcoming is None)
        yield current
