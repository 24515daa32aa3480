"""The values of rows: stored, shared by rows, and released.

A value is a place in the arena (see `rows.places`), a bit in its row's column "produced", and a share of its field's
counts. These three always change together, and only here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dataplane_server.core.calls.columns import Columns, Shape
from dataplane_server.core.calls.values import BoolArray, Int64Array, Slots
from dataplane_server.core.rows.bookkeeping import DIGEST_BYTES, NAME_BYTES
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

    def digests(self, slots: Slots, fields: Sequence[Field]) -> Int64Array | None:
        """The digests of values of fields of rows, an array row for each field; None where values have none."""
        places = self._rows.places
        return places.digests(places.at(_indexes(fields), slots))

    def store(
        self,
        slots: Slots,
        fields: Sequence[Field],
        shapes: Sequence[Shape],
        columns: Columns,
        offsets: Int64Array,
        once: Mapping[str, bytes],
        digests: Int64Array | None,
        *,
        replaces: bool,
    ) -> int:
        """Point rows to new values, and release the values that they replace. shapes: of the fields from now on.
        once: digests of the values of fields that are put once. digests: of all, where values have some. replaces:
        whether there may be any. Returns the bytes of values that are not kept a second time.
        """
        stored = self._adopt(fields, columns, offsets, once) if once else offsets
        if replaces:
            self.release(slots, fields)
        places = self._rows.places
        places.store(places.at(_indexes(fields), slots), stored, columns.entries, digests)
        self._rows["produced"][slots] |= np.uint64(mask_of(fields))
        for field, column, shape in zip(fields, columns.each, shapes, strict=True):
            field.shape = shape
            field.rows += len(slots)
            field.size_bytes += column.size_bytes
        return self._spare(slots, fields, columns, stored != offsets, once) if once else 0

    def freed_with(self, slots: Slots, fields: Sequence[Field]) -> Int64Array:
        """The bytes that are free once all of these rows are gone, each counted at the first row that has it. A value
        that others have as well is not free then.
        """
        offsets, entries = self.locate(slots, fields)
        sizes: Int64Array = entries * np.array([[field.entry_bytes] for field in fields], np.int64)
        shared = (self._rows["shared"][slots] & np.array([[field.bit] for field in fields], np.uint64)) != 0
        freed: Int64Array = np.where(shared, 0, sizes).sum(axis=0)
        shared &= sizes > 0
        rows = np.nonzero(shared)[1]
        found, first, counts = np.unique(offsets[shared], return_index=True, return_counts=True)
        alone = np.array([self._rows.payloads.owners(offset) for offset in found.tolist()], np.int64) == counts
        np.add.at(freed, rows[first[alone]], sizes[shared][first[alone]])
        return freed

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

    # -- shared by rows ------------------------------------------------------------------------------------------------

    def _adopt(
        self, fields: Sequence[Field], columns: Columns, offsets: Int64Array, once: Mapping[str, bytes]
    ) -> Int64Array:
        """Where the values of a put are, once those that are put once and equal one of their field have become it."""
        stored: Int64Array = offsets.copy()
        payloads = self._rows.payloads
        before = len(payloads.known)
        for row, field in enumerate(fields):
            if field.name in once:
                stored[row] = payloads.adopt(field.index, once[field.name], offsets[row], columns.row_bytes[row])
        self._rows.keep(DIGEST_BYTES * (len(payloads.known) - before))
        return stored

    def _spare(
        self, slots: Slots, fields: Sequence[Field], columns: Columns, spare: BoolArray, once: Mapping[str, bytes]
    ) -> int:
        """Rows share the values that were put once. spare: those that became one that was there. Returns their
        bytes.
        """
        total = 0
        for field, sizes, of_rows in zip(fields, columns.row_bytes, spare, strict=True):
            if field.name in once:
                self._rows["shared"][slots[sizes > 0]] |= field.bit
                spared = int(sizes[of_rows].sum())
                field.size_bytes -= spared
                total += spared
        return total

    def store_shared(
        self,
        group: Group,
        slots: Slots,
        fields: Sequence[Field],
        shapes: Sequence[Shape],
        columns: Columns,
        offsets: Int64Array,
        digests: Int64Array | None,
    ) -> None:
        """Point all rows of a reserved group to the one value of each column; the group has them as well."""
        of_values = [0] * len(fields) if digests is None else digests[:, 0].tolist()
        each = zip(fields, columns.each, shapes, offsets[:, 0].tolist(), of_values, strict=True)
        for field, column, shape, offset, digest in each:
            field.shape = shape
            field.size_bytes += column.size_bytes
            self._rows.keep(NAME_BYTES)
            group.shared[field.name] = (offset, int(column.entries[0]), digest)
            if column.size_bytes:
                self._rows.payloads.add(offset, column.size_bytes, 1)
        self.share(group, slots, fields)

    def share(self, group: Group, slots: Slots, fields: Sequence[Field]) -> None:
        """Point rows, which do not have the fields, to the values that their group has."""
        places = self._rows.places
        for field in fields:
            offset, entries, digest = group.shared[field.name]
            index = places.at(_indexes([field]), slots)
            places.store(index, *(np.full_like(index, number) for number in (offset, entries, digest)))
            field.rows += len(slots)
            if entries * field.entry_bytes:
                self._rows["shared"][slots] |= field.bit
                self._rows.payloads.share(offset, len(slots))
        self._rows["produced"][slots] |= np.uint64(mask_of(fields))

    def end_sharing(self, group: Group, fields: Mapping[str, Field]) -> int:
        """No more rows join the group: its values belong to the rows alone. Returns the bytes that no row has."""
        lost = 0
        for name, (offset, entries, _) in group.shared.items():
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
        rows, lost, known = self._rows, 0, len(self._rows.payloads.known)
        for field, at, of_rows in zip(fields, offsets, sizes, strict=True):
            sharing = (rows["shared"][slots] & field.bit) != 0
            if sharing.any():
                of_rows[sharing] = 0
                given_up = rows.payloads.give_up(at[sharing], slots[sharing], rows["pins"][slots[sharing]])
                field.size_bytes -= given_up
                lost += given_up
        rows["shared"][slots] &= ~np.uint64(mask_of(fields))
        rows.keep(DIGEST_BYTES * (len(rows.payloads.known) - known))
        return lost


def mask_of(fields: Iterable[Field]) -> int:
    """The bits of the fields, in a row's `produced`."""
    mask = 0
    for field in fields:
        mask |= field.mask
    return mask


def _indexes(fields: Sequence[Field]) -> Int64Array:
    return np.array([field.index for field in fields], np.int64)
