"""The width to which every rank pads the batches of one step; the driver chooses it once.

Ranks that padded to their own longest row would run forward passes of different shapes; ranks that exchange activations
or plan microbatches by width would then deadlock. So the width is stored in the meta's extra_info and kept by every
slice and shard.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from dataplane_client.records.meta import PAD_TARGET_KEY, KVBatchMeta


def with_pad_target(meta: KVBatchMeta, *, pad_to_multiple: int, sequence_length_round: int = 1) -> KVBatchMeta:
    """Return the meta with the width, in tokens, to which all its rows are padded. Call it before the meta is sharded.

    The width is the longest row, rounded up to the least common multiple of both arguments. It is at least one token,
    because models cannot run rows without positions. pad_to_multiple: what the model's ranks divide a sequence by.
    sequence_length_round: that of dynamic batching, which rounds the widths of its microbatches but never beyond the
    width of the batch.

    A width that the meta already has is widened if needed and never narrowed. So a second call changes nothing, and the
    parts of a step keep its width. Raises ValueError for a meta without rows or lengths and for a multiple below 1.
    """
    multiple = lcm(
        _positive("pad_to_multiple", pad_to_multiple), _positive("sequence_length_round", sequence_length_round)
    )
    if not meta.sequence_lengths:
        missing = "rows" if meta.size == 0 else "sequence_lengths"
        raise ValueError(f"partition {meta.partition_id!r}: the meta has no {missing}, so its width is unknown")
    width = rounded_up(max(*meta.sequence_lengths, pad_target(meta) or 1), multiple)
    return replace(meta, extra_info={**meta.extra_info, PAD_TARGET_KEY: width})


def pad_target(meta: KVBatchMeta) -> int | None:
    """Return the width of the meta, or None. ValueError for an invalid width."""
    width = meta.extra_info.get(PAD_TARGET_KEY)
    if width is None:
        return None
    if not isinstance(width, int) or isinstance(width, bool) or width < 0:
        raise ValueError(f"extra_info[{PAD_TARGET_KEY!r}] must be a number of tokens, got {width!r}")
    return width


def rounded_up(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value
