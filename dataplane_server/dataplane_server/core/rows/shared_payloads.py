"""Values that several rows share: those of a group, such as its prompt, and equal values that are put `once`.

The words of these rows name the same bytes, so reads are as usual. A group that is still reserved has them as well, for
rows that are yet to be added. The bytes are freed when no row and no group has them and no reader has begun to read
them. So each payload counts its owners, and the pinned rows that gave it up.

A value that is put `once` is known by the index of its field, its size and its digest, as long as a row has it. A field
has one element type and one shape of entries while rows hold it, so equal bytes are equal values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dataplane_server.core.calls.values import Int64Array
from dataplane_server.core.rows.owed import Owed
from dataplane_server.core.rows.regions import AnySpace

DIGEST_SIZE = 16
Key = tuple[int, int, bytes]


@dataclass(slots=True, eq=False)
class Payload:
    """Bytes that `owners` rows and groups have. held: pinned rows that had them. key: if it is put once."""

    offset: int
    size_bytes: int
    owners: int
    held: int = 0
    key: Key | None = None


class SharedPayloads:
    """The payloads of one partition. space: gets their bytes when they are freed."""

    def __init__(self, space: AnySpace) -> None:
        self._space = space
        self._at: dict[int, Payload] = {}  # by offset
        self._owed: Owed[Payload] = Owed()
        self.known: dict[Key, Payload] = {}

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[Payload]:
        return iter(self._at.values())

    def add(self, offset: int, size_bytes: int, owners: int) -> None:
        """Add bytes (at least one) that this many rows and groups (at least one) have."""
        self._at[offset] = Payload(offset, size_bytes, owners)

    def adopt(self, field: int, digests: bytes, offsets: Int64Array, sizes: Int64Array) -> Int64Array:
        """Add an owner to the value of each row of a column, which is put once and is at the offsets: to the equal one
        that the field has, if it has one. Frees the space of the others. Returns where the values are.
        """
        adopted: Int64Array = offsets.copy()
        for row, (offset, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
            if size:
                key = (field, size, digests[row * DIGEST_SIZE : (row + 1) * DIGEST_SIZE])
                payload = self.known.get(key)
                if payload is None:
                    payload = self.known[key] = self._at[offset] = Payload(offset, size, 0, key=key)
                payload.owners += 1
                adopted[row] = payload.offset
        spare = adopted != offsets
        self._space.release_rows(offsets[spare], sizes[spare])
        return adopted

    def owners(self, offset: int) -> int:
        """How many rows and groups have a payload."""
        return self._at[offset].owners

    def share(self, offset: int, rows: int) -> None:
        """Add `rows` owners to a payload."""
        self._at[offset].owners += rows

    def disown(self, offset: int) -> int:
        """A group has a payload no longer. Returns the bytes that nothing has now."""
        return self._lose(self._at[offset], 1)

    def give_up(self, offsets: Int64Array, slots: Int64Array, pins: Int64Array) -> int:
        """Take payloads, by offset, from rows. Returns the bytes of payloads that nothing has now. They are freed when
        no reader holds them. pins: of the slots.
        """
        pinned = pins > 0
        self._space.withheld += int(pinned.any())
        of_rows = (array[pinned].tolist() for array in (offsets, slots, pins))
        for offset, slot, readers in zip(*of_rows, strict=True):
            self._owed.add(slot, self._at[offset], self._space.withheld, readers)
            self._at[offset].held += 1
        found = zip(*(array.tolist() for array in np.unique(offsets, return_counts=True)), strict=True)
        return sum([self._lose(self._at[offset], rows) for offset, rows in found])

    def _lose(self, payload: Payload, owners: int) -> int:
        payload.owners -= owners
        if not payload.owners and payload.key is not None:
            del self.known[payload.key]
        self._free_if_unused(payload)
        return 0 if payload.owners else payload.size_bytes

    def unpin(self, slots: Int64Array, began: int) -> None:
        """As of RowTable."""
        for payload in self._owed.end(slots, began):
            payload.held -= 1
            self._free_if_unused(payload)

    @property
    def owed_bytes(self) -> int:
        """Bytes that only readers still hold."""
        return sum(payload.size_bytes for payload in self if not payload.owners)

    def owed_by(self, slots: Int64Array, began: int) -> int:
        """The part of `owed_bytes` that a `pin` of these slots keeps."""
        held = {payload.offset: payload for payload in self._owed.by(slots, began)}
        return sum([payload.size_bytes for payload in held.values() if not payload.owners])

    def _free_if_unused(self, payload: Payload) -> None:
        if not payload.owners and not payload.held:
            del self._at[payload.offset]
            self._space.release(payload.offset, payload.size_bytes)
