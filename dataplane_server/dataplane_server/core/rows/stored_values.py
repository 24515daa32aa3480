"""The values of rows: stored, shared by the rows of a group, and released.

A value is a place in the arena (see `rows.places`), a bit in its row's column "produced", and a share of its field's
counts. These three always change together, and only here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dataplane_server.core.calls.columns import Columns, Shape
from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.rows.bookkeeping import NAME_BYTES
from dataplane_server.core.rows.fields import Field
from dataplane_server.core.rows.group_table import Group
from dataplane_server.core.rows.row_table import RowTable


class StoredValues:
    """The values of one partition's rows. Arguments named `offsets` have an array row for each field."""

    def __init__(self, rows: RowTable) -> None:
        self._rows = rows

    def locate(self, slots: Slots, fields: Sequence[Field]) -> tuple[Int64Array, Int64Array]:
        """Offsets and entries of the values of fields of rows; 0 entries for a row without one."""
        places = self._rows.places
        return places.load(places.at(_indexes(fields), slots))

    def store(
        self,
        slots: Slots,
        fields: Sequence[Field],
        shapes: Sequence[Shape],
        columns: Columns,
        offsets: Int64Array,
        *,
        replaces: bool,
    ) -> None:
        """Point rows to new values, and release the values that they replace. shapes: of the fields from now on.
        replaces: whether there may be any.
        """
        if replaces:
            self.release(slots, fields)
        places = self._rows.places
        places.store(places.at(_indexes(fields), slots), offsets, columns.entries)
        self._rows["produced"][slots] |= np.uint64(mask_of(fields))
        for field, column, shape in zip(fields, columns.each, shapes, strict=True):
            field.shape = shape
            field.rows += len(slots)
            field.size_bytes += column.size_bytes

    def release(self, slots: Slots, fields: Sequence[Field]) -> int:
        """Release the values of fields of rows; some rows may have none. Returns their bytes. The words stay."""
        offsets, entries = self.locate(slots, fields)
        sizes = entries * np.array([[field.entry_bytes] for field in fields])
        lost = self._give_up_payloads(slots, fields, offsets, sizes) if self._rows.payloads else 0
        self._rows.release_bytes(slots, offsets, sizes)
        held = (self._rows["produced"][slots] >> _indexes(fields)[:, None].astype(np.uint64)) & np.uint64(1)
        for field, rows, released in zip(fields, held.sum(axis=1).tolist(), sizes.sum(axis=1).tolist(), strict=True):
            field.rows -= rows
            field.size_bytes -= released
        return int(sizes.sum()) + lost

    # -- shared by a group ---------------------------------------------------------------------------------------------

    def store_shared(
        self,
        group: Group,
        slots: Slots,
        fields: Sequence[Field],
        shapes: Sequence[Shape],
        columns: Columns,
        offsets: Int64Array,
    ) -> None:
        """Point all rows of a reserved group to the one value of each column; the group has them as well."""
        for field, column, shape, offset in zip(fields, columns.each, shapes, offsets[:, 0].tolist(), strict=True):
            field.shape = shape
            field.size_bytes += column.size_bytes
            self._rows.keep(NAME_BYTES)
            group.shared[field.name] = (offset, int(column.entries[0]))
            if column.size_bytes:
                self._rows.payloads.add(offset, column.size_bytes, 1)
        self.share(group, slots, fields)

    def share(self, group: Group, slots: Slots, fields: Sequence[Field]) -> None:
        """Point rows, which do not have the fields, to the values that their group has."""
        places = self._rows.places
        for field in fields:
            offset, entries = group.shared[field.name]
            index = places.at(_indexes([field]), slots)
            places.store(index, np.full_like(index, offset), np.full_like(index, entries))
            field.rows += len(slots)
            if entries * field.entry_bytes:
                self._rows["shared"][slots] |= field.bit
                self._rows.payloads.share(offset, len(slots))
        self._rows["produced"][slots] |= np.uint64(mask_of(fields))

    def end_sharing(self, group: Group, fields: Mapping[str, Field]) -> int:
        """No more rows join the group: its values belong to the rows alone. Returns the bytes that no row has."""
        lost = 0
        for name, (offset, entries) in group.shared.items():
            if entries * fields[name].entry_bytes:
                disowned = self._rows.payloads.disown(offset)
                fields[name].size_bytes -= disowned
                lost += disowned
        self._rows.keep(-NAME_BYTES * len(group.shared))
        group.shared.clear()
        return lost

    def _give_up_payloads(self, slots: Slots, fields: Sequence[Field], offsets: Int64Array, sizes: Int64Array) -> int:
        """Take shared payloads of the fields from rows, and set their sizes to 0: `payloads` frees their bytes. Returns
        the bytes of payloads that nothing has now.
        """
        rows, lost = self._rows, 0
        for field, at, of_rows in zip(fields, offsets, sizes, strict=True):
            sharing = (rows["shared"][slots] & field.bit) != 0
            if sharing.any():
                of_rows[sharing] = 0
                given_up = rows.payloads.give_up(at[sharing], slots[sharing], rows["pins"][slots[sharing]] > 0)
                field.size_bytes -= given_up
                lost += given_up
        rows["shared"][slots] &= ~np.uint64(mask_of(fields))
        return lost


def mask_of(fields: Iterable[Field]) -> int:
    """The bits of the fields, in a row's `produced`."""
    mask = 0
    for field in fields:
        mask |= field.mask
    return mask


def _indexes(fields: Sequence[Field]) -> Int64Array:
    return np.array([field.index for field in fields], np.int64)
