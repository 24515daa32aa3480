"""The driver's plan of microbatches, copied from a meta to the batch that was read for it.

Only the driver plans: ranks that planned for themselves could differ in the number of microbatches and deadlock.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter.sharding import PLAN_KEYS

_INDICES, _LENGTHS, _COUNTS = PLAN_KEYS


def attach_plan(batch: BatchedDataDict[Any], meta: KVBatchMeta) -> None:
    """Set the plan's attributes on a batch of the meta's rows, if the meta has a plan.

    ValueError for a plan of other rows, such as that of a meta whose rows were selected or reordered after planning.
    """
    plan = {key: meta.extra_info.get(key) for key in PLAN_KEYS}
    if all(part is None for part in plan.values()):
        return
    problem = _find_problem(plan, meta.size) or _find_cut_row(plan, meta)
    if problem:
        raise ValueError(f"partition {meta.partition_id!r}: the plan of microbatches does not fit: {problem}")
    for key, part in plan.items():
        setattr(batch, key, part)


def _find_problem(plan: dict[str, Any], n_rows: int) -> str | None:
    indices, lengths, counts = plan[_INDICES], plan[_LENGTHS], plan[_COUNTS]
    if indices is None or lengths is None:
        return f"{_INDICES} and {_LENGTHS} must both be set"
    if not _is_table(indices, 3) or not _is_table(lengths, 2) or not (counts is None or _is_table(counts, 1)):
        return "its parts must be nested lists of integers"
    if [len(chunk) for chunk in indices] != [len(chunk) for chunk in lengths]:
        return f"{_INDICES} and {_LENGTHS} have different numbers of microbatches"
    return _find_row_problem(indices, counts, n_rows)


def _is_table(part: object, depth: int) -> bool:
    if depth == 0:
        return isinstance(part, int)
    return isinstance(part, list | tuple) and all(_is_table(inner, depth - 1) for inner in part)


def _find_row_problem(indices: list[list[list[int]]], counts: list[int] | None, n_rows: int) -> str | None:
    for number, chunk in enumerate(indices):
        bounds = list(chain.from_iterable(chunk))
        if any(len(span) != 2 for span in chunk) or bounds[:1] != [0] or bounds[1:-1:2] != bounds[2::2]:
            return f"the microbatches of global batch {number} do not follow each other from row 0: {chunk}"
        if bounds != sorted(bounds):
            return f"a microbatch of global batch {number} ends before it begins: {chunk}"
    found = [chunk[-1][1] for chunk in indices]
    if counts is not None and list(counts) != found:
        return f"{_COUNTS} is {counts}, but its global batches have {found} rows"
    return None if sum(found) == n_rows else f"it has {sum(found)} rows, the meta has {n_rows}"


def _find_cut_row(plan: dict[str, Any], meta: KVBatchMeta) -> str | None:
    """A row that is longer than its microbatch, to which dynamic shapes cut it."""
    limits = [
        most
        for chunk, lengths in zip(plan[_INDICES], plan[_LENGTHS], strict=True)
        for (start, end), most in zip(chunk, lengths, strict=True)
        for _ in range(start, end)
    ]
    for sample_id, length, most in zip(meta.sample_ids, meta.sequence_lengths or [], limits, strict=False):
        if length > most:
            return f"sample {sample_id!r} has {length} tokens, more than the {most} of its microbatch"
    return None
