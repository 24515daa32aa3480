"""One field of a partition: what its rows look like, and where each row's value lies in the arena."""

from __future__ import annotations

import numpy as np

from dataplane_server.core.columns import Column, Int64Array, Shape
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.rows import BoolArray, RowTable, Slots


class Field:
    """Shape and locations of one field. The shape is learnt from the first put and only ever widens (dense to
    jagged).
    """

    def __init__(self, name: str, index: int, per_token: bool, rows: RowTable) -> None:
        self.name = name
        self.bit = np.uint64(1 << index)
        self.per_token = per_token
        self.shape: Shape | None = None
        self.rows = 0
        self.size_bytes = 0
        self._rows = rows
        self._offsets = f"offset:{index}"
        self._entries = f"entries:{index}"
        rows.add_column(self._offsets, np.int64)
        rows.add_column(self._entries, np.int32)

    def check(self, column: Column, partition_id: str) -> Shape:
        """The shape after a put of this column. Refusal FIELD_MISMATCH says what differs."""
        if self.per_token and column.shape.kind == "object":
            message = f"partition {partition_id!r}, field {self.name!r}: a per-token field cannot hold objects"
            raise Refusal(Reason.FIELD_MISMATCH, message, partition_id=partition_id, field=self.name)
        if self.shape is None:
            return column.shape
        widened = self.shape.widened(column.shape)
        if widened is None:
            message = (
                f"partition {partition_id!r}, field {self.name!r}: the put holds {column.shape}, "
                f"but the field has held {self.shape}"
            )
            raise Refusal(Reason.FIELD_MISMATCH, message, partition_id=partition_id, field=self.name)
        return widened

    def holds(self, slots: Slots) -> BoolArray:
        """Which of the rows have produced the field."""
        return np.asarray((self._rows["produced"][slots] & self.bit) != 0)

    def entries(self, slots: Slots) -> Int64Array:
        return np.asarray(self._rows[self._entries][slots], np.int64)

    def locations(self, slots: Slots) -> tuple[Int64Array, Int64Array]:
        """Offset and size in bytes of each row's value."""
        return self._rows[self._offsets][slots], self.entries(slots) * self._unit_bytes

    def store(self, slots: Slots, column: Column, offsets: Int64Array, shape: Shape) -> None:
        """Point rows at new values of an admitted column; values they held before are released."""
        self.release(slots[self.holds(slots)])
        self.shape = shape
        self._rows[self._offsets][slots] = offsets
        self._rows[self._entries][slots] = column.entries
        self._rows["produced"][slots] |= self.bit
        self.rows += len(slots)
        self.size_bytes += int(column.row_bytes.sum())

    def release(self, slots: Slots) -> int:
        """Give back the values of rows that hold the field; the bytes given back."""
        if not len(slots):
            return 0
        offsets, sizes = self.locations(slots)
        self._rows.release_bytes(slots, offsets, sizes)
        released = int(sizes.sum())
        self._rows["produced"][slots] &= ~self.bit
        self.rows -= len(slots)
        self.size_bytes -= released
        return released

    def close(self) -> None:
        self._rows.drop_column(self._offsets)
        self._rows.drop_column(self._entries)

    @property
    def _unit_bytes(self) -> int:
        return self.shape.unit_bytes if self.shape is not None else 0
