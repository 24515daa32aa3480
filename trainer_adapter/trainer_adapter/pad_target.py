"""The width to which every rank pads the batches of one step, minted once by the driver.

Ranks that padded to their own longest row would run forward passes of different shapes, and where they exchange
activations or plan microbatches by width they would wait for each other for ever. So the width travels in the meta's
extra_info, through every slice and shard.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from dataplane_client.first_write import PAD_TARGET_KEY
from dataplane_client.meta import KVBatchMeta


def with_pad_target(meta: KVBatchMeta, *, pad_to_multiple: int, sequence_length_round: int = 1) -> KVBatchMeta:
    """The meta with the width in tokens to which all its rows are to be padded, before it is dealt out.

    The longest row, rounded up to a common multiple of both: pad_to_multiple is what the model's ranks divide a
    sequence by, and sequence_length_round that of dynamic batching, which rounds the widths of its microbatches but
    cuts none wider than the batch. The least common multiple, since the larger of 64 and 6 would not do for the other;
    where one divides the other it is the larger.

    A width that the meta has already is widened where it must be and never narrowed, so minting twice changes nothing,
    and the parts of a step keep its width. Raises ValueError for a meta without rows or lengths and a multiple below 1.
    """
    multiple = lcm(
        _positive("pad_to_multiple", pad_to_multiple), _positive("sequence_length_round", sequence_length_round)
    )
    if not meta.sequence_lengths:
        missing = "rows" if meta.size == 0 else "sequence_lengths"
        raise ValueError(f"partition {meta.partition_id!r}: a meta without {missing} has no width to pad to")
    width = rounded_up(max(*meta.sequence_lengths, pad_target(meta) or 0), multiple)
    return replace(meta, extra_info={**meta.extra_info, PAD_TARGET_KEY: width})


def pad_target(meta: KVBatchMeta) -> int | None:
    """The width that was minted, or None. Raises ValueError for one that is no width."""
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
