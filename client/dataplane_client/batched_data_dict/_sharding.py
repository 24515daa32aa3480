"""Plans which rows each data-parallel shard gets, and how they form microbatches. Uses only lengths, not the data.

A batch is cut into chunks (global batches: one optimizer step each), and each chunk is split between the shards:

- plain: consecutive parts of equal size;
- dynamic batching: the chunk's rows, sorted by length, go to the shards in turn, so that the shards' p-th rows have
  similar lengths and all shards can use the same microbatches;
- sequence packing: the chunk's rows are packed into bins (one bin, one microbatch), which go to the shards in turn.

Every shard gets the same number of microbatches in each chunk, because ranks with different numbers deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from dataplane_client.batched_data_dict._args import DynamicBatchingArgs, SequencePackingArgs
from dataplane_client.packing import get_packer

MicroBatchIndices = list[list[list[int]]]
"""[chunk][microbatch] = [first row, row after the last], counted within the chunk's rows of the shard."""
MicroBatchLengths = list[list[int]]
"""[chunk][microbatch] = padded length of its rows (dynamic batching), or sum of their padded lengths (packing)."""


@dataclass(frozen=True)
class ShardPlan:
    """Rows of one shard in order, by their number in the whole batch, and their microbatches, if any."""

    rows: list[int]
    micro_batch_indices: MicroBatchIndices | None = None
    micro_batch_lengths: MicroBatchLengths | None = None
    elem_counts_per_gb: list[int] | None = None


def cut_into_chunks(total: int, shards: int, batch_size: int | None, *, uneven: bool) -> list[range]:
    """Rows of each chunk; AssertionError when the sizes do not divide."""
    size = total if batch_size is None else batch_size
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be positive, got {batch_size}")
    if size and total % size:
        raise AssertionError(f"Total batch size ({total}) is not a multiple of batch_size ({size})")
    if not uneven and size % shards:
        raise AssertionError(f"Batch size ({size}) is not a multiple of shards ({shards})")
    return [range(start, start + size) for start in range(0, total, max(size, 1))]


def plan_plain(chunks: Sequence[range], shards: int) -> list[ShardPlan]:
    """Equal parts, rounded up: the last shards of an uneven chunk get fewer rows or none."""
    rows: list[list[int]] = [[] for _ in range(shards)]
    for chunk in chunks:
        part = _round_up(len(chunk), shards) // shards
        for k, mine in enumerate(rows):
            mine.extend(chunk[k * part : (k + 1) * part])
    return [ShardPlan(mine) for mine in rows]


def plan_dynamic(
    lengths: Sequence[int], width: int, chunks: Sequence[range], shards: int, args: DynamicBatchingArgs
) -> tuple[list[ShardPlan], list[int]]:
    """Plans with the same microbatches for every shard; and the rows of shard 0, 1, and so on, chunk by chunk.

    Pads no microbatch beyond width, the number of positions of the data. Models cannot run rows of no position, so one
    of only empty rows has one.
    """
    rounding = _positive(args["sequence_length_round"], "sequence_length_round")
    shard_rows: list[list[list[int]]] = []
    microbatches: list[tuple[list[list[int]], list[int]]] = []
    for chunk in chunks:
        by_length = sorted(chunk, key=lengths.__getitem__)
        shard_rows.append([by_length[k::shards] for k in range(shards)])
        longest = (max(lengths[row] for row in rows) for rows in zip(*shard_rows[-1], strict=True))
        padded = [min(_round_up(max(length, 1), rounding), width) for length in longest]
        microbatches.append(_group_under_budget(padded, args["max_tokens_per_microbatch"]))
    plans = [
        ShardPlan(
            rows=_flat(rows_of[k] for rows_of in shard_rows),
            micro_batch_indices=[[list(span) for span in spans] for spans, _ in microbatches],
            micro_batch_lengths=[list(longest_of) for _, longest_of in microbatches],
        )
        for k in range(shards)
    ]
    return plans, _flat(chain.from_iterable(shard_rows))


def _group_under_budget(padded: Sequence[int], max_tokens: int) -> tuple[list[list[int]], list[int]]:
    """Groups consecutive positions while count times longest is at most max_tokens. Returns their spans and longest."""
    spans: list[list[int]] = []
    longest: list[int] = []
    for p, length in enumerate(padded):
        if length > max_tokens:
            raise AssertionError(f"padded sequence length {length} exceeds max_tokens_per_microbatch {max_tokens}")
        if spans and (p + 1 - spans[-1][0]) * max(longest[-1], length) <= max_tokens:
            spans[-1][1] = p + 1
            longest[-1] = max(longest[-1], length)
        else:
            spans.append([p, p + 1])
            longest.append(length)
    return spans, longest


def plan_packed(
    lengths: Sequence[int], chunks: Sequence[range], shards: int, args: SequencePackingArgs
) -> tuple[list[ShardPlan], list[int]]:
    """Plans with the same number of microbatches for every shard; and the rows of shard 0, then shard 1, and so on."""
    multiple = _positive(args["sequence_length_pad_multiple"], "sequence_length_pad_multiple")
    padded = [_round_up(length, multiple) for length in lengths]
    capacity = args["max_tokens_per_microbatch"]
    packer = get_packer(args["algorithm"], capacity, bin_count_multiple=shards, seed=args.get("seed"))
    largest_first = _is_largest_first(args.get("microbatch_order"))
    bins_of: list[list[list[list[int]]]] = [[] for _ in range(shards)]  # [shard][chunk][bin] = rows
    for chunk in chunks:
        bins = [[chunk[i] for i in b] for b in packer.pack([padded[row] for row in chunk])]
        for k in range(shards):
            mine = bins[k::shards]
            if largest_first:
                mine.sort(key=lambda rows: -sum(padded[row] for row in rows))
            bins_of[k].append(mine)
    plans = [_packed_shard(chunk_bins, padded) for chunk_bins in bins_of]
    return plans, _flat(plan.rows for plan in plans)


def _packed_shard(chunk_bins: list[list[list[int]]], padded: Sequence[int]) -> ShardPlan:
    return ShardPlan(
        rows=_flat(chain.from_iterable(chunk_bins)),
        micro_batch_indices=[_spans([len(b) for b in bins]) for bins in chunk_bins],
        micro_batch_lengths=[[sum(padded[row] for row in b) for b in bins] for bins in chunk_bins],
        elem_counts_per_gb=[sum(map(len, bins)) for bins in chunk_bins],
    )


def _spans(counts: list[int]) -> list[list[int]]:
    return [[end - count, end] for count, end in zip(counts, accumulate(counts), strict=True)]


def _is_largest_first(order: str | None) -> bool:
    if order not in (None, "packer", "largest_first"):
        raise ValueError(f"microbatch_order must be None, 'packer' or 'largest_first', got {order!r}")
    return order == "largest_first"


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise ValueError(f"{name} must be positive, got {value}")
    return value


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))
