"""One field of a partition: what its rows look like, and which rows hold it."""

from __future__ import annotations

import numpy as np

from dataplane_server.core.calls.columns import Column, Shape
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import BoolArray, Int64Array, Slots
from dataplane_server.core.rows.row_table import RowTable


class Field:
    """Shape and counts of one field. The shape is learnt from the first put and only ever widens (dense to jagged);
    the bytes of an entry stay the same. `rows` hold it, with `size_bytes` of values.
    """

    def __init__(self, name: str, index: int, per_token: bool, rows: RowTable) -> None:
        self.name = name
        self.index = index
        self.mask = 1 << index
        self.bit = np.uint64(self.mask)
        self.per_token = per_token
        self.shape: Shape | None = None
        self.rows = 0
        self.size_bytes = 0
        self._rows = rows

    @property
    def unit_bytes(self) -> int:
        return self.shape.unit_bytes if self.shape is not None else 0

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
        """Entries of each row's value, 0 where it has none."""
        return self.locations(slots)[1]

    def locations(self, slots: Slots) -> tuple[Int64Array, Int64Array]:
        """Offset and entries of each row's value."""
        places = self._rows.places
        offsets, entries = places.load(places.at(np.array([self.index]), slots))
        return offsets[0], entries[0]
