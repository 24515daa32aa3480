"""Appends: puts of whole values, of which the rows have the beginnings already.

The reservation of an append has space for what a row has and for its new entries, behind each other. The caller streams
the new entries only. Right before FinishWrite the shell copies what the row has; see `Reservation`. An append is
refused if the row's per-token values have changed since it began: it compares revisions, since places would miss a
value that was replaced twice and landed where the first one was. In all other respects it is a put.

For a moment old and new bytes both count against the budget, and n appends of equal size copy each byte n/2 times on
average: 64 appends of 512 tokens with 16 bytes each copy 17 MB, some milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataplane_server.core.calls.columns import Column, Columns, Kept
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.state.partition import Partition


def begin_append(partition: Partition, sample_ids: Sequence[str], columns: Columns) -> tuple[Columns, Int64Array]:
    """The columns of an append with what its rows have, and the revisions of the rows."""
    _check_per_token(partition, columns)
    slots = partition.rows.find_existing(sample_ids)
    existing = np.flatnonzero(slots >= 0)
    fields = [partition.field(column.name) for column in columns.each]
    offsets, entries = np.zeros((2, *columns.entries.shape), np.int64)
    offsets[:, existing], entries[:, existing] = partition.values.locate(slots[existing], fields)
    return columns.appended_to(Kept(offsets, entries)), partition.rows.revisions(slots)


def check_append(
    partition: Partition, sample_ids: Sequence[str], slots: Slots, columns: Columns, revisions: Int64Array
) -> None:
    """Refuse an append that has become impossible. Refusal APPEND_CONFLICT names the first row whose per-token values
    are others than at these revisions.
    """
    _check_per_token(partition, columns)
    changed = np.flatnonzero((partition.rows.revisions(slots) != revisions).any(axis=0))
    if changed.size:
        first = sample_ids[int(changed[0])]
        message = (
            f"partition {partition.partition_id!r}: the per-token values of sample {first!r} were changed while "
            "entries for their end arrived; nothing was appended"
        )
        raise Refusal(Reason.APPEND_CONFLICT, message, partition_id=partition.partition_id, sample_id=first)


def _check_per_token(partition: Partition, columns: Columns) -> None:
    """Refuse columns that cannot be appended: of fields that are not per-token, or not jagged."""
    for column in columns.each:
        rule = _broken_rule(partition, column)
        if rule:
            message = (
                f"partition {partition.partition_id!r}, field {column.name!r}: entries can be appended to per-token "
                f"fields only, in jagged columns; {rule}"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition.partition_id, field=column.name)


def _broken_rule(partition: Partition, column: Column) -> str:
    if column.name not in partition.fields and partition.definition.open:
        return "the field is not declared (a put would declare it as one that is not per-token)"
    if not partition.field(column.name).per_token:
        return "the field is not per-token"
    return "" if column.shape.kind == "jagged" else f"its column is {column.shape.kind}"
