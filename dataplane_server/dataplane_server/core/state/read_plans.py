"""Where the values of rows lie, for a read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataplane_server.core.calls.answers import ReadColumn
from dataplane_server.core.calls.columns import Shape
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.rows.fields import Field
from dataplane_server.core.rows.ranges import column_pieces
from dataplane_server.core.rows.stored_values import mask_of
from dataplane_server.core.state.partition import Partition


def plan_read(
    partition: Partition, slots: Slots, names: Sequence[str], tokens: tuple[Int64Array, Int64Array] | None = None
) -> tuple[tuple[ReadColumn, ...], tuple[Int64Array, Int64Array], Int64Array | None]:
    """The layout of fields of rows, starts and lengths of their pieces of memory, and the digests of their values, if
    they have some. tokens: starts and ends within per-token fields. Refusal FIELD_NOT_PRODUCED names the first row that
    lacks a field.
    """
    fields = [partition.field(name) for name in names]
    shapes = _produced_shapes(partition, fields, slots)
    offsets, entries = partition.values.locate(slots, fields)
    entry_bytes = np.array([[shape.entry_bytes] for shape in shapes])
    for row in [row for row, field in enumerate(fields) if field.per_token and tokens is not None]:
        starts, ends = np.minimum(tokens, entries[row])  # type: ignore[arg-type]  # it is not None here
        offsets[row] += starts * entry_bytes[row]
        entries[row] = ends - starts
        shapes[row] = Shape("jagged", shapes[row].dtype, shapes[row].trailing)
    sizes = entries * entry_bytes
    columns = tuple(map(ReadColumn, names, shapes, entries))
    return columns, column_pieces(offsets, sizes), partition.values.digests(slots, fields)


def _produced_shapes(partition: Partition, fields: Sequence[Field], slots: Slots) -> list[Shape]:
    """The shapes of fields, which all of the rows must hold."""
    mask = np.uint64(mask_of(fields))
    shapes = [field.shape for field in fields if field.shape is not None]
    if len(shapes) == len(fields) and ((partition.rows["produced"][slots] & mask) == mask).all():
        return shapes
    raise next(_not_produced(partition, field, slots) for field in fields if not field.holds(slots).all())


def _not_produced(partition: Partition, field: Field, slots: Slots) -> Refusal:
    lacking = np.flatnonzero(~field.holds(slots))
    first = partition.rows.ids(slots[lacking[:1]])[0]
    more = f" (and {lacking.size - 1} more of the call)" if lacking.size > 1 else ""
    message = (
        f"partition {partition.partition_id!r}: sample {first!r} has not produced field {field.name!r}{more}; a claim "
        "that requires the field waits for it"
    )
    metadata = {"partition_id": partition.partition_id, "sample_id": first, "field": field.name}
    return Refusal(Reason.FIELD_NOT_PRODUCED, message, **metadata)
