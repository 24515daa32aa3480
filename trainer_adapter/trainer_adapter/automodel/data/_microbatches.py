"""From a batch to what a model's forward pass takes: microbatches, packed or not, and the counts losses divide by.

All ranks must run the same number of forward passes, because the passes of a sharded model are collective: a rank with
fewer packed microbatches repeats its own as dummies. The iterator yields them after the real ones and the length
returned beside it counts the real ones only, so an item at index >= length is a dummy: run it, count it for nothing.

Tensors go to the CUDA device when there is one and otherwise stay where they are. A tensor that is already there stays
the same object, because context parallelism later finds a microbatch's tensors in `cp_buffers` by identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.config import required
from trainer_adapter.automodel.data._inputs import ProcessedInputs, ProcessedMicrobatch
from trainer_adapter.automodel.data._packing import get_flash_attention_kwargs, pack_sequences
from trainer_adapter.automodel.rank import compute_device, to_compute_device

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedTokenizerBase


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
