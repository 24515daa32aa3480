"""Fields of a partition: the shape of their values, the rows that hold them, and checks of lengths.

All per-token fields of a row have as many entries as the row has tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from dataplane_server.core.calls.columns import MAX_ENTRIES, Column, Columns, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.names import check_name
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import BoolArray, Definition, Int64Array, Slots
from dataplane_server.core.rows.group_table import Group
from dataplane_server.core.rows.row_table import RowTable


class Field:
    """Shape and counts of one field. The first put sets the shape, which can only widen (dense to jagged); the bytes of
    an entry do not change while something holds values. rows: how many rows hold the field, with size_bytes of values.
    dtype: the element type as declared, empty if none is.
    """

    def __init__(self, name: str, index: int, per_token: bool, rows: RowTable) -> None:
        self.name = name
        self.index = index
        self.mask = 1 << index
        self.bit = np.uint64(self.mask)
        self.per_token = per_token
        self.dtype = ""
        self.shape: Shape | None = None
        self.rows = 0
        self.size_bytes = 0
        self._rows = rows

    @property
    def entry_bytes(self) -> int:
        return self.shape.entry_bytes if self.shape is not None else 0

    def check(self, column: Column, partition_id: str, held: Shape | None) -> Shape:
        """The shape after a put of this column. held: see `Partition.held_shape`. Refusal FIELD_MISMATCH says what
        differs; its metadata "dtype" is the element type that would be right.
        """
        shape, metadata = column.shape, {"partition_id": partition_id, "field": self.name}
        if self.per_token and shape.kind == "object":
            rule = "a per-token field cannot hold objects"
        elif self.per_token and shape.kind == "dense" and not shape.row_shape:
            rule = "the put has one value a row, but the rows of a per-token field have the shape (tokens, ...)"
        elif column.per_token and not self.per_token:
            rule = "the put takes it to be per-token, and it is not"
        elif self.dtype and self.dtype != shape.element:
            metadata["dtype"] = self.dtype
            rule = f"the put has {shape}, but the field is declared {self.dtype}; convert the column before the put"
        elif held is shape or held is None:
            return shape
        elif widened := held.widened(shape):
            return widened
        else:
            metadata["dtype"] = held.element
            rule = (
                f"the put has {shape}, but the field holds {held} (in {self.rows} rows); convert or reshape the column "
                "before the put"
            )
        message = f"partition {partition_id!r}, field {self.name!r}: {rule}"
        raise Refusal(Reason.FIELD_MISMATCH, message, **metadata)

    def holds(self, slots: Slots) -> BoolArray:
        """Which rows have produced the field."""
        return np.asarray((self._rows["produced"][slots] & self.bit) != 0)

    def entries(self, slots: Slots) -> Int64Array:
        """Entries of each row's value; 0 for a row without one."""
        return self.locations(slots)[1]

    def locations(self, slots: Slots) -> tuple[Int64Array, Int64Array]:
        """Offset and entries of each row's value."""
        places = self._rows.places
        offsets, entries = places.load(places.at(np.array([self.index]), slots))
        return offsets[0], entries[0]


def check_may_declare(partition_id: str, fields: Mapping[str, Field], new: Sequence[str], limits: Limits) -> None:
    """Refuse new fields of an open partition that are malformed or too many."""
    for name in new:
        check_name("field name", name, limits)
    if len(fields) + len(new) > limits.max_fields:
        message = (
            f"partition {partition_id!r} has {len(fields)} fields and may have {limits.max_fields}: field {new[0]!r} "
            "cannot be declared"
        )
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition_id, field=new[0])


def check_may_replace(
    partition_id: str,
    fields: Mapping[str, Field],
    reserved: Collection[Group],
    definition: Definition,
    *,
    digests: bool,
) -> None:
    """Refuse a definition in place of the present one that contradicts values of rows, or values that the rows of
    reserved groups share. digests: whether these have some.
    """
    for field in fields.values():
        if field.name not in definition.fields:
            change = "does not declare"
        elif field.name in definition.per_token_fields and not field.per_token:
            change = "newly declares per-token"  # rows were put without comparing their lengths
        elif field.shape is not None and definition.dtypes.get(field.name, field.shape.element) != field.shape.element:
            change = f"declares {definition.dtypes[field.name]}"
        elif definition.digests != digests:
            change = "gives digests" if definition.digests else "gives no digests"
        else:
            continue
        sharing = sum(field.name in group.shared for group in reserved)
        if field.rows or sharing:
            holders = f"{field.rows} rows" if field.rows else f"{sharing} reserved groups"
            message = (
                f"partition {partition_id!r}: {holders} hold values of field {field.name!r}, which the new "
                f"definition {change}; clear them first"
            )
            raise Refusal(Reason.FIELD_HOLDS_VALUES, message, partition_id=partition_id, field=field.name)


def check_sequence_lengths(
    partition_id: str,
    fields: Mapping[str, Field],
    sample_ids: Sequence[str],
    slots: Slots,
    columns: Columns,
    given: Int64Array | None,
) -> None:
    """Compare the lengths in a put with each other and with those of its rows. slots: -1 for new rows.

    A put that replaces all per-token fields of a row may change the row's length. A dense column may be padded, so it
    does not say its rows' lengths: something else must. Refusal LENGTH_MISMATCH names the first row that differs, and
    both sources; its metadata names a dense field of the put, if there is one.
    """
    per_token = [column for column in columns.each if fields[column.name].per_token]
    if not per_token and given is None:
        return
    when = "" if columns.kept is None else " after the append"
    known = [(f"field {column.name!r}{when}", column.entries) for column in per_token if column.shape.kind != "dense"]
    if given is not None:
        known.append(("sequence_lengths", given))
    replaced = {column.name for column in per_token}
    kept = [field for field in fields.values() if field.per_token and field.name not in replaced]
    known.extend((f"field {field.name!r} as stored", _stored(field, slots)) for field in kept)
    dense = [column for column in per_token if column.shape.kind == "dense"]
    metadata = {"partition_id": partition_id}
    if dense:
        metadata["field"] = dense[0].name
    _check_equal([(f"field {column.name!r}", column.entries) for column in dense] + known, sample_ids, metadata)
    if dense:
        _check_known(dense[0], [lengths for _, lengths in known], sample_ids, metadata)


def _check_equal(
    sources: Sequence[tuple[str, Int64Array]], sample_ids: Sequence[str], metadata: Mapping[str, str]
) -> None:
    first_source, expected = sources[0]
    for source, lengths in sources[1:]:
        differ = lengths != expected
        if differ.any() and (differ := differ & (lengths >= 0) & (expected >= 0)).any():
            row = int(differ.argmax())
            message = (
                f"partition {metadata['partition_id']!r}, sample {sample_ids[row]!r}: {first_source} has "
                f"{expected[row]} tokens, {source} has {lengths[row]}; all per-token fields of a row must have the "
                "same length"
            )
            raise Refusal(Reason.LENGTH_MISMATCH, message, sample_id=sample_ids[row], **metadata)


def _check_known(
    column: Column, known: Sequence[Int64Array], sample_ids: Sequence[str], metadata: Mapping[str, str]
) -> None:
    unknown = np.logical_and.reduce([lengths < 0 for lengths in known]) if known else np.ones(len(sample_ids), bool)
    if unknown.any():
        sample_id = sample_ids[int(unknown.argmax())]
        message = (
            f"partition {metadata['partition_id']!r}, sample {sample_id!r}: field {column.name!r} is per-token, and "
            f"the put has {column.shape.dense_entries} tokens for every row, padding included; nothing says how many "
            "of them this row has"
        )
        raise Refusal(Reason.LENGTH_MISMATCH, message, sample_id=sample_id, **metadata)


def check_once(partition_id: str, fields: Mapping[str, Field], names: Sequence[str]) -> None:
    """Refuse to keep values once that appends change."""
    for name in names:
        if name in fields and fields[name].per_token:
            message = f"partition {partition_id!r}: field {name!r} is per-token, and its values cannot be put once"
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition_id, field=name)


def check_given_lengths(sample_ids: Sequence[str], given: Int64Array | None) -> None:
    """None, or the length of each row in tokens; -1 if unknown."""
    if given is None:
        return
    if given.size != len(sample_ids):
        message = f"the call has sequence lengths for {given.size} rows but names {len(sample_ids)} samples"
        raise Refusal(Reason.ROW_COUNT_MISMATCH, message, rows=given.size, samples=len(sample_ids))
    out_of_range = np.flatnonzero((given < -1) | (given > MAX_ENTRIES))
    if out_of_range.size:
        row = int(out_of_range[0])
        message = f"sample {sample_ids[row]!r}: sequence length {given[row]} is not in -1 to {MAX_ENTRIES}"
        raise Refusal(Reason.INVALID_REQUEST, message, sample_id=sample_ids[row])


def _stored(field: Field, slots: Slots) -> Int64Array:
    """Entries of each row; -1 for a row without the field."""
    lengths = np.full(len(slots), -1, np.int64)
    existing = np.flatnonzero(slots >= 0)
    if len(existing):
        holding = existing[field.holds(slots[existing])]
        lengths[holding] = field.entries(slots[holding])
    return lengths
