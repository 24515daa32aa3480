"""Refuses puts that contradict the rows of a partition. Decides, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dataplane_server.core.calls.columns import Columns, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Int64Array, Slots, Tags
from dataplane_server.core.rows.fields import Field, check_sequence_lengths
from dataplane_server.core.rows.group_table import Group
from dataplane_server.core.state.partition import Checked, Partition


def check_put(
    partition: Partition,
    sample_ids: Sequence[str],
    slots: Slots,
    columns: Columns,
    tags: Sequence[Tags] | None,
    sequence_lengths: Int64Array | None,
    limits: Limits,
) -> Checked:
    """Refuse a put that contradicts its rows. slots: of the samples; -1 for new ones."""
    fields = partition.known_fields([column.name for column in columns.each], limits)
    shapes = _shapes_after(partition, fields, columns)
    check_sequence_lengths(partition.partition_id, fields, sample_ids, slots, columns, sequence_lengths)
    if tags:
        check_tags(partition, sample_ids, slots, tags, limits.max_tags_per_row)
    return Checked(slots, shapes, int(np.count_nonzero(slots < 0)))


def check_shared(partition: Partition, group: Group, columns: Columns, limits: Limits) -> Checked:
    """Refuse fields that the rows of a group cannot share: per-token fields, and fields that one of them has."""
    fields = partition.known_fields([column.name for column in columns.each], limits)
    shapes = _shapes_after(partition, fields, columns)
    slots = partition.groups.members(group.number)
    for field in (partition.fields[column.name] for column in columns.each if column.name in partition.fields):
        held = slots[field.holds(slots)]
        if field.per_token:
            rule = "is per-token"
        elif held.size:
            rule = f"sample {partition.rows.ids(held[:1])[0]!r} already has"
        elif field.name in group.shared:
            rule = "they already share"
        else:
            continue
        message = (
            f"partition {partition.partition_id!r}: the rows of group {group.group_id!r} cannot share field "
            f"{field.name!r}, which {rule}"
        )
        metadata = {"partition_id": partition.partition_id, "group_id": group.group_id, "field": field.name}
        raise Refusal(Reason.INVALID_REQUEST, message, **metadata)
    return Checked(slots, shapes, 0)


def check_tags(partition: Partition, sample_ids: Sequence[str], slots: Slots, tags: Iterable[Tags], most: int) -> None:
    """Refuse more than `most` tags of a row, beside those that the server has added to them."""
    for sample_id, slot, row_tags in zip(sample_ids, slots.tolist(), tags, strict=False):
        kept = partition.rows.tags(slot)
        if len(kept) + len(row_tags) > most and len(kept.keys() | row_tags.keys()) > max(most, len(kept)):
            message = f"partition {partition.partition_id!r}: sample {sample_id!r} would have more than {most} tags"
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition.partition_id, sample_id=sample_id)


def _shapes_after(partition: Partition, fields: Mapping[str, Field], columns: Columns) -> list[Shape]:
    """The shapes of the fields of a put after it."""
    shapes = []
    for column in columns.each:
        field = fields[column.name]
        held = field.rows or any(field.name in group.shared for group in partition.groups.reserved.values())
        shapes.append(field.check(column, partition.partition_id, field.shape if held else None))
    return shapes
