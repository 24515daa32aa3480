"""Running a model over microbatches: forward passes, post-processing of logits, backward passes.

The passes of a sharded model are collective: every rank runs as many, forward and backward, as the rank with most
microbatches. A rank's dummies are processed like real microbatches, but their loss counts as 0 and their logits get
gradients of exactly 0. Multiplying the loss by 0 would not be enough: 0 * NaN is NaN.

A loss is the microbatch's share of a mean over the global batch, so gradients must be summed over ranks and
microbatches. FSDP averages them over the dp * cp ranks that share the weights; a factor before the backward pass undoes
this.

Logits are often the largest tensor of a step. They keep the precision of the model: results are computed from a piece
of them at a time, in float32, after a division by the temperature. And each pass is a function of its own, so that no
microbatch's logits live on through the next forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.data import ProcessedInputs, ProcessedMicrobatch
from trainer_adapter.automodel.parallel.fsdp import end_failed_backward
from trainer_adapter.automodel.rank import queue_copy
from trainer_adapter.automodel.train._forward import extract_logits, model_forward, temperature_of
from trainer_adapter.automodel.train._inference import (
    LogprobsPostProcessor,
    ScorePostProcessor,
    TopkLogitsPostProcessor,
)
from trainer_adapter.automodel.train._loss import LossPostProcessor

PostProcessor: TypeAlias = LossPostProcessor | LogprobsPostProcessor | TopkLogitsPostProcessor | ScorePostProcessor


def forward_with_post_processing_fn(
    model: torch.nn.Module,
    post_processing_fn: PostProcessor,
    processed_mb: ProcessedMicrobatch,
    is_reward_model: bool = False,
    allow_flash_attn_args: bool = True,
    global_valid_seqs: Tensor | None = None,
    global_valid_toks: Tensor | None = None,
    sampling_params: TrainingSamplingParams | None = None,
) -> tuple[Any, dict[str, Any], ProcessedMicrobatch]:
    """Run one forward pass. Returns the post-processed result, metrics (empty except for a loss), and processed_mb.

    Logits are divided by the temperature of sampling_params; scores are not. A loss needs global_valid_seqs and
    global_valid_toks, see process_global_batch. TypeError for another kind of post_processing_fn.
    """
    _check_kind(post_processing_fn)
    logits = _logits(model, processed_mb, is_reward_model, allow_flash_attn_args)
    valid = (global_valid_seqs, global_valid_toks)
    result, metrics = _post_process(logits, post_processing_fn, processed_mb, valid, sampling_params)
    return result, metrics, processed_mb


def automodel_forward_backward(
    model: torch.nn.Module,
    data_iterator: Iterable[ProcessedMicrobatch],
    post_processing_fn: PostProcessor,
    forward_only: bool = False,
    is_reward_model: bool = False,
    allow_flash_attn_args: bool = True,
    global_valid_seqs: Tensor | None = None,
    global_valid_toks: Tensor | None = None,
    sampling_params: TrainingSamplingParams | None = None,
    dp_size: int = 1,
    cp_size: int = 1,
    num_global_batches: int = 1,
    train_context_fn: Callable[[ProcessedInputs], AbstractContextManager[Any]] | None = None,
    num_valid_microbatches: int | None = None,
    on_microbatch_start: Callable[[int], None] | None = None,
) -> list[tuple[Any, dict[str, Any]]]:
    """Run all items of data_iterator, dummies included. Returns (result, metrics) for each.

    Losses are differentiated unless forward_only is set; everything else runs without autograd. Gradients are added to
    existing ones. A returned loss is detached and has no backward factor. Its metrics are divided by
    num_global_batches, so that the sums of a step are means over its global batches; metrics whose names end in `_min`
    or `_max`, and those of dummies, are not divided.

    num_valid_microbatches: items from this index on are dummies; None: there are none.
    train_context_fn: returns, for the inputs of a microbatch, the context of its forward and backward pass.
    on_microbatch_start: called with each index before its pass.
    The other arguments are those of forward_with_post_processing_fn.
    """
    _check_kind(post_processing_fn)
    has_loss = isinstance(post_processing_fn, LossPostProcessor)
    differentiates = has_loss and not forward_only
    valid = (global_valid_seqs, global_valid_toks)

    def run_pass(processed_mb: ProcessedMicrobatch, is_dummy: bool) -> tuple[Any, dict[str, Any]]:
        logits = _logits(model, processed_mb, is_reward_model, allow_flash_attn_args)
        if is_dummy and differentiates:
            logits.register_hook(torch.zeros_like)
        result, metrics = _post_process(logits, post_processing_fn, processed_mb, valid, sampling_params)
        if differentiates:
            try:
                (result * (dp_size * cp_size)).backward()
            except BaseException:
                end_failed_backward(model)
                raise
            result = result.detach()
        return result, metrics

    results = []
    for index, processed_mb in enumerate(data_iterator):
        if on_microbatch_start is not None:
            on_microbatch_start(index)
        is_dummy = num_valid_microbatches is not None and index >= num_valid_microbatches
        own = nullcontext() if train_context_fn is None else train_context_fn(processed_mb.processed_inputs)
        with nullcontext() if differentiates else torch.no_grad(), own:
            result, metrics = run_pass(processed_mb, is_dummy)
        results.append(_report(result, metrics, is_dummy, num_global_batches) if has_loss else (result, metrics))
    return results


def _check_kind(post_processing_fn: object) -> None:
    if not isinstance(post_processing_fn, PostProcessor):
        raise TypeError(
            f"Unknown post-processing function type {type(post_processing_fn).__name__}: "
            "it must be a post-processor of trainer_adapter.automodel.train"
        )


def _logits(
    model: torch.nn.Module, processed_mb: ProcessedMicrobatch, is_reward_model: bool, allow_flash_attn_args: bool
) -> Tensor:
    inputs = _mark_padding(model, processed_mb) if is_reward_model else processed_mb.processed_inputs
    return extract_logits(model, model_forward(model, inputs, is_reward_model, allow_flash_attn_args))


def _mark_padding(model: Any, processed_mb: ProcessedMicrobatch) -> ProcessedInputs:
    """Inputs whose padding is the model's own, because a reward model finds a row's last token by it."""
    inputs, pad_token_id = processed_mb.processed_inputs, model.config.get_text_config().pad_token_id
    if pad_token_id is None:
        return inputs
    lengths = queue_copy(processed_mb.data_dict["input_lengths"], inputs.input_ids.device)
    is_padding = torch.arange(inputs.seq_len, device=lengths.device) >= lengths[:, None]
    return replace(inputs, input_ids=inputs.input_ids.masked_fill(is_padding, pad_token_id))


def _post_process(
    logits: Tensor,
    post_processing_fn: PostProcessor,
    processed_mb: ProcessedMicrobatch,
    valid: tuple[Tensor | None, Tensor | None],
    sampling_params: TrainingSamplingParams | None,
) -> tuple[Any, dict[str, Any]]:
    if isinstance(post_processing_fn, ScorePostProcessor):
        return post_processing_fn(logits), {}
    temperature = temperature_of(sampling_params)
    if not isinstance(post_processing_fn, LossPostProcessor):
        return post_processing_fn(logits, processed_mb, temperature), {}
    seqs, toks = valid
    if seqs is None or toks is None:
        raise ValueError("a loss needs global_valid_seqs and global_valid_toks; pass both")
    return post_processing_fn(logits, processed_mb, seqs, toks, temperature)


def _report(
    loss: Tensor, metrics: dict[str, Any], is_dummy: bool, num_global_batches: int
) -> tuple[Tensor, dict[str, Any]]:
    if is_dummy:
        return torch.zeros_like(loss), metrics
    is_extreme = {name: name.endswith(("_min", "_max")) for name in metrics}
    shares = {name: value if is_extreme[name] else value / num_global_batches for name, value in metrics.items()}
    return loss, shares
