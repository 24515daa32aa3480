"""From a batch to what a model's forward pass takes: microbatches, packed or not, and the counts losses divide by.

All ranks must run the same number of forward passes, because the passes of a sharded model are collective: a rank with
fewer packed microbatches repeats its own as dummies. The iterator yields them after the real ones and the length
returned beside it counts the real ones only, so an item at index >= length is a dummy: run it, count it for nothing.

Tensors go to the CUDA device when there is one and otherwise stay where they are. A tensor that is already there stays
the same object, because context parallelism later finds a microbatch's tensors in `cp_buffers` by identity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel._device import compute_device, to_compute_device
from trainer_adapter.automodel._flash_attention_kwargs import FlashAttentionKwargs, get_flash_attention_kwargs
from trainer_adapter.automodel._packed_rows import pack_sequences
from trainer_adapter.automodel.config import required
from trainer_adapter.losses import LossFunction, LossType

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedTokenizerBase


@dataclass
class ProcessedInputs:
    """What one forward pass takes. B rows of S tokens; a packed microbatch is one row, B = 1.

    input_ids: [B,S] int64.
    seq_len: S.
    attention_mask: [B,S] bool, all true; None when packed or context parallel.
    position_ids: [B,S] int64; None when the model computes its own (multimodal).
    flash_attn_kwargs: bounds of the packed sequences; empty when not packed.
    vlm_kwargs: tensors of images and the like, by the names the model gives them.
    cp_buffers: the tensors that context parallelism shards along dim 1; empty without it.
    seq_index: [1,S] int64, 0 to S - 1, from which a shard's original positions are known; None without it.
    """

    input_ids: torch.Tensor
    seq_len: int
    attention_mask: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    flash_attn_kwargs: dict[str, Any] | FlashAttentionKwargs = field(default_factory=dict)
    vlm_kwargs: dict[str, Any] = field(default_factory=dict)
    cp_buffers: list[torch.Tensor] = field(default_factory=list)
    seq_index: torch.Tensor | None = None

    @property
    def has_context_parallel(self) -> bool:
        return bool(self.cp_buffers)

    @property
    def has_flash_attention(self) -> bool:
        return bool(self.flash_attn_kwargs)

    @property
    def is_multimodal(self) -> bool:
        return bool(self.vlm_kwargs)


@dataclass
class ProcessedMicrobatch:
    """A microbatch and its inputs.

    data_dict: the microbatch itself, the very object that was cut from the batch.
    original_batch_size, original_seq_len: rows and columns of its input_ids, before packing.
    """

    data_dict: BatchedDataDict[Any]
    processed_inputs: ProcessedInputs
    original_batch_size: int
    original_seq_len: int


# --- microbatches ---


def make_processed_microbatch_iterator(
    raw_iterator: Iterator[BatchedDataDict[Any]],
    tokenizer: PreTrainedTokenizerBase,
    cfg: Mapping[str, Any],
    cp_size: int,
) -> Iterator[ProcessedMicrobatch]:
    """Each microbatch with its inputs, made when it is asked for; packed when cfg enables sequence_packing."""
    packs = _is_enabled(cfg, "sequence_packing")
    for microbatch in raw_iterator:
        rows, columns = microbatch["input_ids"].shape[:2]
        inputs = process_microbatch(microbatch, tokenizer, packs, cfg, cp_size)
        yield ProcessedMicrobatch(microbatch, inputs, original_batch_size=rows, original_seq_len=columns)


def get_microbatch_iterator(
    data: BatchedDataDict[Any],
    cfg: Mapping[str, Any],
    mbs: int,
    dp_mesh: DeviceMesh | None,
    tokenizer: PreTrainedTokenizerBase,
    cp_size: int = 1,
) -> tuple[Iterator[ProcessedMicrobatch], int]:
    """The microbatches of one global batch on this rank, dummies last, and how many of them are real.

    data carries the plan of its microbatches when cfg enables dynamic_batching or sequence_packing, the former winning;
    without either a microbatch is mbs samples (AssertionError at the first next() when they do not divide).

    With sequence packing this is a collective call over the default process group, unless dp_mesh is None: ranks may
    hold different numbers of microbatches and learn here how many dummies each must add. All ranks of one model hold
    the same number, so the whole world agrees on what the data-parallel ranks would.
    """
    raw, length = _raw_microbatches(data, cfg, mbs, dp_mesh)
    return make_processed_microbatch_iterator(raw, tokenizer, cfg, cp_size), length


def _raw_microbatches(
    data: BatchedDataDict[Any], cfg: Mapping[str, Any], mbs: int, dp_mesh: DeviceMesh | None
) -> tuple[Iterator[BatchedDataDict[Any]], int]:
    if required(cfg, "dynamic_batching.enabled"):
        return data.make_microbatch_iterator_with_dynamic_shapes(), data.get_microbatch_iterator_dynamic_shapes_len()
    if _is_enabled(cfg, "sequence_packing"):
        return _with_dummies(data, dp_mesh)
    if mbs < 1:
        raise ValueError(f"a microbatch is at least one sample, got mbs {mbs}")
    return data.make_microbatch_iterator(mbs), data.size // mbs


def _is_enabled(cfg: Mapping[str, Any], block: str) -> bool:
    """Whether an optional block of the configuration is there and enabled."""
    return bool((cfg.get(block) or {}).get("enabled", False))


def _with_dummies(data: BatchedDataDict[Any], dp_mesh: DeviceMesh | None) -> tuple[Iterator[BatchedDataDict[Any]], int]:
    """The packable microbatches, then as many of them again as the rank with most has more; the number without."""
    microbatches = data.make_microbatch_iterator_for_packable_sequences()
    length = data.get_microbatch_iterator_for_packable_sequences_len()[0]
    dummies = _largest_of_all_ranks(length, dp_mesh) - length
    repeated = cycle(data.make_microbatch_iterator_for_packable_sequences())
    return chain(microbatches, islice(repeated, dummies)), length


def _largest_of_all_ranks(count: int, dp_mesh: DeviceMesh | None) -> int:
    if dp_mesh is None:
        return count
    largest = torch.tensor([count], device=compute_device())
    torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
    return int(largest.item())


def process_microbatch(
    mb: BatchedDataDict[Any],
    tokenizer: PreTrainedTokenizerBase,
    enable_seq_packing: bool,
    cfg: Mapping[str, Any],
    cp_size: int,
) -> ProcessedInputs:
    """The inputs of one forward pass over mb, whose input_ids are [B,S] int64, right-padded.

    Unpacked, nothing masks the padding: attention is causal, so no real token looks at it, and what is computed on it
    is dropped afterwards. Packed, all rows become one of at least sequence_packing.train_mb_tokens tokens, padded with
    the tokenizer's end-of-sequence token, because the backward pass under tensor parallelism fails on shorter rows. It
    is rounded up to what context or sequence parallelism can divide; of unpacked rows the caller takes care.

    AssertionError where multimodal data meets packing, sequence parallelism or context parallelism; ValueError where
    packing has no token to pad with.
    """
    input_ids = to_compute_device(mb["input_ids"])
    if enable_seq_packing:
        inputs = _packed(input_ids, to_compute_device(mb["input_lengths"]), tokenizer, cfg, cp_size)
    else:
        inputs = _unpacked(input_ids)
    inputs.vlm_kwargs = mb.get_multimodal_dict(as_tensors=True, device=input_ids.device)
    if inputs.is_multimodal:
        _check_multimodal(enable_seq_packing, cfg)
        inputs.position_ids = None
    if cp_size > 1:
        _prepare_context_parallel(inputs)
    return inputs


def _unpacked(input_ids: torch.Tensor) -> ProcessedInputs:
    """Positions are spelled out for every row, because sharding over tensor-parallel ranks gets implied ones wrong."""
    rows, columns = input_ids.shape
    return ProcessedInputs(
        input_ids=input_ids,
        seq_len=columns,
        attention_mask=torch.ones((rows, columns), dtype=torch.bool, device=input_ids.device),
        position_ids=torch.arange(columns, device=input_ids.device).repeat(rows, 1),
    )


def _packed(
    input_ids: torch.Tensor,
    input_lengths: torch.Tensor,
    tokenizer: PreTrainedTokenizerBase,
    cfg: Mapping[str, Any],
    cp_size: int,
) -> ProcessedInputs:
    """No mask: kernels that pack tell sequences apart by position ids or bounds, and any mask would override that."""
    if tokenizer.eos_token_id is None:
        raise ValueError("sequence packing pads with the tokenizer's eos_token_id, which is not set")
    width = max(int(input_lengths.sum()), required(cfg, "sequence_packing.train_mb_tokens"))
    packed_ids, position_ids, _ = pack_sequences(
        input_ids=input_ids,
        input_lengths=input_lengths,
        packed_sequence_size=[input_ids.shape[0]],
        padding_value=tokenizer.eos_token_id,
        return_attention_mask=False,
        min_seq_len=_rounded_up(width, _shares(cfg, cp_size)),
    )
    return ProcessedInputs(
        input_ids=packed_ids,
        seq_len=packed_ids.shape[1],
        position_ids=position_ids,
        flash_attn_kwargs=get_flash_attention_kwargs(input_lengths=input_lengths),
    )


def _shares(cfg: Mapping[str, Any], cp_size: int) -> int:
    """Into how many equal parts a packed row's tokens are divided: two stretches a context-parallel rank, or one part a
    rank of sequence parallelism. Only one of them can be on.
    """
    layout = cfg.get("dtensor_cfg") or {}
    if cp_size > 1:
        return 2 * cp_size
    return int(layout.get("tensor_parallel_size", 1)) if layout.get("sequence_parallel") else 1


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _check_multimodal(enable_seq_packing: bool, cfg: Mapping[str, Any]) -> None:
    if enable_seq_packing:
        raise AssertionError("multimodal kwargs are not supported for sequence packing")
    if required(cfg, "dtensor_cfg.sequence_parallel"):
        raise AssertionError(
            "Sequence parallel is not supported with multimodal data: unset dtensor_cfg.sequence_parallel"
        )


def _prepare_context_parallel(inputs: ProcessedInputs) -> None:
    """Buffers to shard, and no mask: attention over shards is causal by itself and refuses to be given one."""
    if inputs.position_ids is None:
        raise AssertionError(
            f"multimodal kwargs {sorted(inputs.vlm_kwargs)} are not supported for context parallel: "
            "set dtensor_cfg.context_parallel_size to 1"
        )
    inputs.attention_mask = None
    inputs.seq_index = torch.arange(inputs.seq_len, device=inputs.input_ids.device)[None]
    inputs.cp_buffers = [inputs.input_ids, inputs.position_ids, inputs.seq_index]


# --- global batches ---


def process_global_batch(
    data: BatchedDataDict[Any],
    loss_fn: LossFunction,
    dp_group: torch.distributed.ProcessGroup | None,
    *,
    batch_idx: int,
    batch_size: int,
) -> dict[str, Any]:
    """Global batch batch_idx of this rank's data, and what a loss over it is divided by; a collective call.

    batch_size: samples per rank; of packed data the plan says how many. dp_group: the data-parallel ranks, over which
    the counts are summed; None: this rank is alone.

    Returns `batch`, and 0-d `global_valid_seqs` and `global_valid_toks`: the sums of sample_mask [B] and of token_mask
    [B,S] over valid samples, without its first column, since nothing predicts a first token. Without a token_mask all S
    tokens of a valid sample count. int64, or float32 when a mask is floating point.

    AssertionError without a sample_mask, and for a token-level loss without a token_mask.
    """
    batch = data.get_batch(batch_idx=batch_idx, batch_size=batch_size)
    if "sample_mask" not in batch:
        raise AssertionError("sample_mask must be present in the data: it tells which samples count")
    counts = to_compute_device(_count_valid(batch))
    if dp_group is not None:
        torch.distributed.all_reduce(counts, group=dp_group)
    if getattr(loss_fn, "loss_type", None) == LossType.TOKEN_LEVEL and "token_mask" not in batch:
        raise AssertionError("token_mask must be present in the data when the loss is token-level")
    seqs, toks = counts.float() if counts.is_floating_point() else counts
    return {"batch": batch, "global_valid_seqs": seqs, "global_valid_toks": toks}


def _count_valid(batch: BatchedDataDict[Any]) -> torch.Tensor:
    """[valid samples, valid tokens] of this rank. Counted in float64 or int64: float32 miscounts from 2**24 on."""
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
    """(1, S): the dimension along which every tensor of two or more dimensions has the S positions of input_ids.

    AssertionError for one that has not, unless skip_keys holds its name.
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
