"""Packing: several sequences concatenated into one row without padding between them, and results split into
rows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trainer_adapter.automodel.data._inputs import FlashAttentionKwargs, ProcessedMicrobatch
from trainer_adapter.automodel.rank import queue_copy


def pack_sequences(
    input_ids: torch.Tensor,
    input_lengths: torch.Tensor,
    packed_sequence_size: Sequence[int],
    padding_value: int = 0,
    return_attention_mask: bool = True,
    min_seq_len: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return packed ids [R,L], position ids [R,L] int64, and a causal mask [R,L,L] bool (None if not asked for).

    input_ids: [B,S], right-padded.
    input_lengths: [B], each from 0 to S; on the host, or the call waits for the device.
    packed_sequence_size: how many consecutive sequences each of the R rows takes; they sum to B.
    L is the token count of the fullest row, at least min_seq_len. Rows are padded on the right: ids with padding_value,
    positions with 0.

    Position ids restart at 0 with every sequence. Models separate the sequences by them; the mask does not, because it
    is one triangle over all tokens of a row. Raises ValueError for lengths or sizes that do not fit.
    """
    lengths: list[int] = input_lengths.tolist()
    _check_fit(input_ids, lengths, packed_sequence_size)
    places, tokens = queue_copy(_places(lengths, input_ids.shape[1]), input_ids.device)
    row_lengths = _sums(lengths, packed_sequence_size)
    ids = _rows(input_ids.flatten()[places], row_lengths, padding_value, min_seq_len)
    positions = _rows(tokens, row_lengths, 0, min_seq_len)
    return ids, positions, _causal_mask(row_lengths, ids) if return_attention_mask else None


def _check_fit(input_ids: torch.Tensor, lengths: list[int], sizes: Sequence[int]) -> None:
    rows, width = input_ids.shape
    if len(lengths) != rows:
        raise ValueError(f"input_lengths has {len(lengths)} entries for {rows} rows of input_ids")
    for row, length in enumerate(lengths):
        if not 0 <= length <= width:
            raise ValueError(f"input_lengths: length {length} of row {row} is not between 0 and the width {width}")
    if any(size < 0 for size in sizes) or sum(sizes) != rows:
        raise ValueError(f"packed_sequence_size must be non-negative and sum to {rows} rows, got {list(sizes)}")


def _places(lengths: list[int], width: int) -> Tensor:
    """[2,T] int64 on the host: of each of the T tokens its place in the flattened rows, and its position in its own."""
    counts, total = torch.tensor(lengths, dtype=torch.int64), sum(lengths)
    begins = torch.stack([torch.arange(len(lengths)) * width, counts.cumsum(0) - counts])
    first, before = begins.repeat_interleave(counts, dim=1, output_size=total)
    positions = torch.arange(total) - before
    return torch.stack([first + positions, positions])


def _sums(lengths: list[int], sizes: Sequence[int]) -> list[int]:
    """Return the token count of each packed row."""
    return [sum(lengths[start:end]) for start, end in pairwise(accumulate(sizes, initial=0))]


def _rows(tokens: torch.Tensor, row_lengths: list[int], padding: int, min_width: int) -> torch.Tensor:
    """Cut the tokens into rows of these lengths, padded on the right to the longest."""
    if not row_lengths:
        return tokens.new_full((0, min_width), padding)
    rows = pad_sequence(list(tokens.split(row_lengths)), batch_first=True, padding_value=padding)
    return torch.nn.functional.pad(rows, (0, max(0, min_width - rows.shape[1])), value=padding)


def _causal_mask(row_lengths: list[int], ids: torch.Tensor) -> torch.Tensor:
    columns = torch.arange(ids.shape[1], device=ids.device)
    real = columns < torch.tensor(row_lengths, device=ids.device)[:, None]
    return (columns <= columns[:, None]) & real[:, None, :] & real[:, :, None]


def get_flash_attention_kwargs(input_lengths: torch.Tensor, device: torch.device | None = None) -> FlashAttentionKwargs:
    """Return the bounds of sequences of input_lengths [N] tokens that are concatenated, on the device (None: theirs).

    Padding after the last sequence belongs to no sequence.
    """
    lengths: list[int] = input_lengths.tolist()
    bounds = [0, *accumulate(lengths)]
    cu_seqlens = queue_copy(torch.tensor(bounds, dtype=torch.int32), device or input_lengths.device)
    longest = max(lengths, default=0)
    return FlashAttentionKwargs(cu_seqlens, cu_seqlens.clone(), longest, longest, bounds)


def packed_bounds(microbatch: ProcessedMicrobatch) -> FlashAttentionKwargs:
    """Where the sequences of a packed microbatch are in its row. ValueError for a microbatch that was not packed."""
    kwargs = microbatch.processed_inputs.flash_attn_kwargs
    if not isinstance(kwargs, FlashAttentionKwargs):
        raise ValueError(
            "enable_seq_packing is set, but the microbatch is not packed (its flash_attn_kwargs are empty): process it "
            "with sequence_packing.enabled=true"
        )
    return kwargs


def unpack_rows(packed: Tensor, microbatch: ProcessedMicrobatch) -> Tensor:
    """Split packed [1,L,...] into [N,S,...] with zeros after each sequence; S is the width before packing.

    Differentiable. The number of kernels does not depend on N.
    """
    bounds = packed_bounds(microbatch).cu_seqlens_q.to(torch.int64)
    places = bounds[:-1, None] + torch.arange(microbatch.original_seq_len, device=bounds.device)
    rows = packed[0, places.clamp(max=packed.shape[1] - 1)]
    is_beyond = (places >= bounds[1:, None]).view(*places.shape, *(1,) * (packed.ndim - 2))
    return rows.masked_fill(is_beyond, 0)
