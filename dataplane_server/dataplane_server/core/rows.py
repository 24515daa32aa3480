"""The rows of one partition: which sample lies in which slot, and what is known of each slot, in NumPy columns.

A row lives in a *slot*, a small integer that is reused after the row is gone. Whoever keeps a slot beyond one call
keeps its generation too: (slot, generation) names one row for ever, as `stamp` and `still` do. Per-slot facts are
columns of one capacity, so that a call over many rows is a few array operations and a row costs a few hundred bytes,
not objects.

Readers pin slots. A pinned row that is removed leaves its slot in limbo: its bytes and its slot become free when the
last pin goes, not before, and nobody waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane_server.core.columns import Int64Array
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.space import Space

Slots = npt.NDArray[np.int64]
Tags = dict[str, str | int | float | bool | None]
BoolArray = npt.NDArray[np.bool_]

Generations = npt.NDArray[np.uint32]

_NO_TAGS: Tags = {}
_ROW_COLUMNS: dict[str, npt.DTypeLike] = {
    "alive": np.bool_,
    "generation": np.uint32,
    "produced": np.uint64,  # bit i: the row has produced the field of index i
    "arrival": np.int64,
    "pins": np.int32,
    "sequence_length": np.int32,  # tokens, -1 where unknown
}


class RowTable:
    """Slots of one partition. `space` is where the bytes of rows return to."""

    def __init__(self, partition_id: str, space: Space) -> None:
        self._partition_id = partition_id
        self._space = space
        self._slot_of: dict[str, int] = {}
        self._ids: list[str] = []
        self._free: list[int] = []
        self._tags: dict[int, Tags] = {}
        self._owed: dict[int, list[tuple[int, int]]] = {}  # slot -> (offset, bytes) to free once it is unpinned
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self._arrivals = 0
        for name, dtype in _ROW_COLUMNS.items():
            self.add_column(name, dtype)

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, sample_id: str) -> bool:
        return sample_id in self._slot_of

    # -- columns -------------------------------------------------------------------------------------------------------

    def add_column(self, name: str, dtype: npt.DTypeLike) -> None:
        """Add a zero-filled column; it grows with the table, so ask for it anew after anything that creates rows."""
        self._columns[name] = np.zeros(len(self._ids), dtype)

    def drop_column(self, name: str) -> None:
        del self._columns[name]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._columns[name]

    # -- samples -------------------------------------------------------------------------------------------------------

    def find(self, sample_ids: Sequence[str]) -> Slots:
        """Slots of existing samples, in order. Refusal SAMPLE_NOT_FOUND names the first that is missing."""
        slots = self.find_existing(sample_ids)
        missing = np.flatnonzero(slots < 0)
        if missing.size:
            first = sample_ids[int(missing[0])]
            more = f" (and {missing.size - 1} more of the call)" if missing.size > 1 else ""
            message = f"partition {self._partition_id!r} has no sample {first!r}{more}"
            raise Refusal(Reason.SAMPLE_NOT_FOUND, message, partition_id=self._partition_id, sample_id=first)
        return slots

    def find_existing(self, sample_ids: Iterable[str]) -> Slots:
        """Slots of samples, -1 where there is none."""
        get = self._slot_of.get
        return np.array([get(sample_id, -1) for sample_id in sample_ids], np.int64)

    def find_or_create(self, sample_ids: Sequence[str]) -> tuple[Slots, int]:
        """Slots of samples, in order, and how many of the samples are new."""
        slots = self.find_existing(sample_ids)
        new = np.flatnonzero(slots < 0)
        self._reserve(len(new))
        for position in new.tolist():
            slot = self._free.pop()
            self._ids[slot] = sample_ids[position]
            self._slot_of[sample_ids[position]] = slot
            slots[position] = slot
        created = slots[new]
        self._columns["alive"][created] = True
        self._columns["sequence_length"][created] = -1
        self._columns["arrival"][created] = np.arange(self._arrivals, self._arrivals + len(new))
        self._arrivals += len(new)
        return slots, len(new)

    def all_slots(self) -> Slots:
        """Every resident row, in order of arrival."""
        slots = np.flatnonzero(self._columns["alive"])
        return slots[np.argsort(self._columns["arrival"][slots], kind="stable")]

    def ids(self, slots: Slots) -> list[str]:
        return [self._ids[slot] for slot in slots.tolist()]

    def remove(self, slots: Slots) -> None:
        """Remove rows whose bytes were released before; a pinned slot stays in limbo until it is unpinned."""
        for slot in slots.tolist():
            del self._slot_of[self._ids[slot]]
            self._ids[slot] = ""
            self._tags.pop(slot, None)
        for name, column in self._columns.items():
            if name not in ("generation", "pins"):
                column[slots] = 0
        self._columns["generation"][slots] += 1
        self._free.extend(slots[self._columns["pins"][slots] == 0].tolist())

    # -- names that outlive a call -------------------------------------------------------------------------------------

    def stamp(self, slots: Slots) -> Generations:
        """Generations of rows, to be kept beside their slots."""
        stamps: Generations = self._columns["generation"][slots]
        return stamps

    def still(self, slots: Slots, generations: Generations) -> BoolArray:
        """Which of the rows once stamped are still there."""
        return np.asarray(self._columns["generation"][slots] == generations)

    # -- tags ----------------------------------------------------------------------------------------------------------

    def tags(self, slot: int) -> Tags:
        """The row's tags; not to be changed by the caller."""
        return self._tags.get(slot, _NO_TAGS)

    def merge_tags(self, slot: int, tags: Tags) -> None:
        if tags:
            self._tags[slot] = {**self._tags.get(slot, _NO_TAGS), **tags}

    # -- bytes and pins ------------------------------------------------------------------------------------------------

    def release_bytes(self, slots: Slots, offsets: Int64Array, sizes: Int64Array) -> None:
        """Free one range of each row: now, or when the row is unpinned."""
        pinned = self._columns["pins"][slots] > 0
        for slot, offset, size in zip(*(a[pinned].tolist() for a in (slots, offsets, sizes)), strict=True):
            if size:
                self._owed.setdefault(slot, []).append((offset, size))
        self._space.release_rows(offsets[~pinned], sizes[~pinned])

    def pin(self, slots: Slots) -> None:
        self._columns["pins"][slots] += 1

    def unpin(self, slots: Slots) -> None:
        """Undo one `pin`; what was owed to the space by rows that are no longer pinned is paid."""
        pins = self._columns["pins"]
        pins[slots] -= 1
        for slot in slots[pins[slots] == 0].tolist():
            for offset, size in self._owed.pop(slot, ()):
                self._space.release(offset, size)
            if not self._columns["alive"][slot]:
                self._free.append(slot)

    @property
    def owed_bytes(self) -> int:
        """Bytes that readers still hold of rows that are gone or were overwritten."""
        return sum(size for owed in self._owed.values() for _, size in owed)

    def _reserve(self, count: int) -> None:
        if count <= len(self._free):
            return
        old = len(self._ids)
        capacity = max(64, 2 * old, old + count)
        self._ids.extend([""] * (capacity - old))
        self._free.extend(range(capacity - 1, old - 1, -1))
        for name, column in self._columns.items():
            self._columns[name] = np.concatenate([column, np.zeros(capacity - old, column.dtype)])
