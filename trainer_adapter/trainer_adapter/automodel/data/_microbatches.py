"""The microbatches of a batch, and their inputs.

All ranks must run the same number of forward passes, because the passes of a sharded model are collective. A rank with
fewer packed microbatches repeats its own as dummies. The iterator yields dummies after the real ones, and the length
returned with it counts the real ones only: an item at index >= length must be run, and its result must be ignored.

Tensors move to the compute device. A tensor that is already there stays the same object, because context parallelism
later identifies a microbatch's tensors in `cp_buffers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

import torch

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter._exchange import extremes_over
from trainer_adapter.automodel.config import is_enabled, required
from trainer_adapter.automodel.data._inputs import ProcessedInputs, ProcessedMicrobatch
from trainer_adapter.automodel.data._packing import get_flash_attention_kwargs, pack_sequences
from trainer_adapter.automodel.rank import compute_device, to_compute_device
from trainer_adapter.pad_target import rounded_up

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedTokenizerBase


def make_processed_microbatch_iterator(
    raw_iterator: Iterator[BatchedDataDict[Any]],
    tokenizer: PreTrainedTokenizerBase,
    cfg: Mapping[str, Any],
    cp_size: int,
) -> Iterator[ProcessedMicrobatch]:
    """Yield each microbatch with its inputs, made on demand; packed if cfg enables sequence_packing."""
    packs = is_enabled(cfg, "sequence_packing")
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
    """Return the microbatches of one global batch on this rank, dummies last, and the number of real ones.

    If cfg enables dynamic_batching or sequence_packing (the former takes precedence), data must have the plan of its
    microbatches. Otherwise a microbatch is mbs samples; if mbs does not divide the batch, the first next() raises
    AssertionError.

    With sequence packing this is a collective call over the default process group, unless dp_mesh is None: ranks may
    have different numbers of microbatches, at least one, and agree here on the number of dummies. All ranks of one
    model have the same number, so the agreement of the whole world is that of the data-parallel ranks.
    """
    raw: Iterator[BatchedDataDict[Any]]
    if required(cfg, "dynamic_batching.enabled"):
        raw = data.make_microbatch_iterator_with_dynamic_shapes()
        length = data.get_microbatch_iterator_dynamic_shapes_len()
    elif is_enabled(cfg, "sequence_packing"):
        raw, length = _add_dummies(data, dp_mesh)
    elif mbs < 1:
        raise ValueError(f"mbs must be at least 1 sample, got {mbs}")
    else:
        raw, length = data.make_microbatch_iterator(mbs), data.size // mbs
    return make_processed_microbatch_iterator(raw, tokenizer, cfg, cp_size), length


def _add_dummies(data: BatchedDataDict[Any], dp_mesh: DeviceMesh | None) -> tuple[Iterator[BatchedDataDict[Any]], int]:
    """Return the packed microbatches followed by this rank's dummies, and the number of real ones.

    Dummies are microbatches again, so every rank needs a row. ValueError on all ranks if one has none. A rank that
    cannot pack its rows takes part with none (see plan_microbatches).
    """
    microbatches = data.make_microbatch_iterator_for_packable_sequences()
    length = data.get_microbatch_iterator_for_packable_sequences_len()[0] if data.size else 0
    fewest, most = (length, length) if dp_mesh is None else extremes_over(length, None, compute_device())
    if fewest == 0:
        none = f"a data-parallel rank has no rows to pack; this one has {data.size}"
        raise ValueError(f"another data-parallel rank could not pack its rows, or {none}" if length else none)
    dummies = islice(cycle(data.make_microbatch_iterator_for_packable_sequences()), most - length)
    return chain(microbatches, dummies), length


def process_microbatch(
    mb: BatchedDataDict[Any],
    tokenizer: PreTrainedTokenizerBase,
    enable_seq_packing: bool,
    cfg: Mapping[str, Any],
    cp_size: int,
) -> ProcessedInputs:
    """Make the inputs of one forward pass over mb, whose input_ids are [B,S] int64, right-padded.

    Unpacked: padding is not masked. Attention is causal, so no real token attends to it, and results at padding are
    dropped later.

    Packed: all rows become one row of at least sequence_packing.train_mb_tokens tokens, padded with the tokenizer's
    end-of-sequence token, because the backward pass under tensor parallelism fails on shorter rows. The width is
    rounded up so that context or sequence parallelism can divide it. For unpacked rows the caller ensures this.

    Raises AssertionError for multimodal data with packing, sequence parallelism or context parallelism; ValueError if
    packing has no token to pad with.
    """
    input_ids = to_compute_device(mb["input_ids"])
    if enable_seq_packing:
        inputs = _pack_rows(input_ids, mb["input_lengths"].cpu(), tokenizer, cfg, cp_size)
    else:
        inputs = _pad_rows(input_ids)
    inputs.vlm_kwargs = mb.get_multimodal_dict(as_tensors=True, device=input_ids.device)
    if inputs.is_multimodal:
        _check_multimodal(enable_seq_packing, cfg)
        inputs.position_ids = None
    if cp_size > 1:
        _prepare_context_parallel(inputs)
    return inputs


def _pad_rows(input_ids: torch.Tensor) -> ProcessedInputs:
    """Inputs of padded rows. Positions are explicit for every row, because tensor parallelism shards implied ones
    wrongly.
    """
    rows, columns = input_ids.shape
    return ProcessedInputs(
        input_ids=input_ids,
        seq_len=columns,
        attention_mask=torch.ones((rows, columns), dtype=torch.bool, device=input_ids.device),
        position_ids=torch.arange(columns, device=input_ids.device).repeat(rows, 1),
    )


def _pack_rows(
    input_ids: torch.Tensor,
    input_lengths: torch.Tensor,
    tokenizer: PreTrainedTokenizerBase,
    cfg: Mapping[str, Any],
    cp_size: int,
) -> ProcessedInputs:
    """Inputs of one packed row, without a mask: kernels separate sequences by position ids or bounds, and any mask
    would override that.

    input_lengths: on the CPU, so that the host does not wait for the device.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("sequence packing needs the tokenizer's eos_token_id as padding; set it")
    width = max(int(input_lengths.sum()), required(cfg, "sequence_packing.train_mb_tokens"))
    packed_ids, position_ids, _ = pack_sequences(
        input_ids=input_ids,
        input_lengths=input_lengths,
        packed_sequence_size=[input_ids.shape[0]],
        padding_value=tokenizer.eos_token_id,
        return_attention_mask=False,
        min_seq_len=rounded_up(width, _token_divisor(cfg, cp_size)),
    )
    return ProcessedInputs(
        input_ids=packed_ids,
        seq_len=packed_ids.shape[1],
        position_ids=position_ids,
        flash_attn_kwargs=get_flash_attention_kwargs(input_lengths, input_ids.device),
    )


def _token_divisor(cfg: Mapping[str, Any], cp_size: int) -> int:
    """The number of equal parts of a packed row: two stretches for each context-parallel rank, or one part for each
    rank of sequence parallelism. At most one of them is enabled.
    """
    layout = cfg.get("dtensor_cfg") or {}
    if cp_size > 1:
        return 2 * cp_size
    return int(layout.get("tensor_parallel_size", 1)) if layout.get("sequence_parallel") else 1


def _check_multimodal(enable_seq_packing: bool, cfg: Mapping[str, Any]) -> None:
    if enable_seq_packing:
        raise AssertionError("multimodal kwargs are not supported for sequence packing")
    if required(cfg, "dtensor_cfg.sequence_parallel"):
        raise AssertionError(
            "Sequence parallel is not supported with multimodal data: unset dtensor_cfg.sequence_parallel"
        )


def _prepare_context_parallel(inputs: ProcessedInputs) -> None:
    """Set the buffers to shard and remove the mask: attention over shards is causal by itself and accepts none."""
    if inputs.position_ids is None:
        raise AssertionError(
            f"multimodal kwargs {sorted(inputs.vlm_kwargs)} are not supported for context parallel: "
            "set dtensor_cfg.context_parallel_size to 1"
        )
    inputs.attention_mask = None
    inputs.seq_index = torch.arange(inputs.seq_len, device=inputs.input_ids.device)[None]
    inputs.cp_buffers = [inputs.input_ids, inputs.position_ids, inputs.seq_index]
