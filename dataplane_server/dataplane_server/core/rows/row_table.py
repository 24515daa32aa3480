"""The rows of one partition: the slot of each sample, and the facts of each slot in NumPy columns.

A row has a *slot*, a small integer that is reused after the row is removed. Code that keeps a slot after a call keeps
its *epoch* too: (slot, epoch) never names another row, see `epochs` and `still`. Callers know a row by its
*generation*, see `rows.generations`. All columns have the same capacity, so a call with many rows takes a few array
operations, and a row costs about a hundred bytes and no objects.

Capacity grows by an eighth, at most `_LONGEST_STEP` rows at a time, and the columns grow in place (the system moves
pages, not bytes). So little memory is idle, and a put at a million rows is not delayed. But no code may keep a column,
or a view of one, over `create`: it would point to freed memory. Only `Partition` creates rows, first in each put.

The tag "weight_version" (an int) is special: the weight-version lag of a row is computed from it.

Reads pin slots. A pinned row that is removed keeps its slot until the last unpin; what it or a write gives up stays
until the last reader that may need it has ended, see `rows.owed`. No call waits for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.names import UNKNOWN_VERSION, VERSION_TAG
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import BoolArray, Epochs, Int64Array, Slots, Tags
from dataplane_server.core.rows.bookkeeping import DIGEST_BYTES, ROW_BYTES, Bookkeeping, id_bytes
from dataplane_server.core.rows.generations import GenerationClock
from dataplane_server.core.rows.owed import Owed
from dataplane_server.core.rows.places import Places
from dataplane_server.core.rows.regions import AnySpace
from dataplane_server.core.rows.shared_payloads import SharedPayloads
from dataplane_server.core.rows.tag_columns import SLOT_BYTES, Float64Array, TagColumn, TagColumns, TagValues
from dataplane_server.core.rows.tags import PooledTags, TagPool

_NO_TAGS: Tags = {}
_LONGEST_STEP = 1 << 16
_PLACE_BYTES = 12
_DIGEST_BYTES = 8
_FEW = 8
"""Less than this part of the rows is too few to build a column of a tag for."""
_ROW_COLUMNS: dict[str, npt.DTypeLike] = {
    "alive": np.bool_,
    "epoch": np.uint32,
    "generation": np.int64,
    "produced": np.uint64,  # bit i: the row has produced the field of index i
    "revision": np.uint32,  # writes of its per-token values
    "pins": np.int32,
    "sequence_length": np.int32,  # tokens, -1 if unknown
    "weight_version": np.int32,  # of the policy that made the row, or UNKNOWN_VERSION
    "group": np.int32,  # number of the row's group; 0 if it has none
    "hidden": np.bool_,  # its group is still reserved
    "shared": np.uint64,  # bit i: the row shares the value of the field of index i, see rows.shared_payloads
    "draws": np.uint32,  # how often the row was drawn, see rows.drawing
    "tag_bytes": np.int32,  # memory of tags that no other row has
}
_OUTLIVE_THE_ROW = ("epoch", "pins")


class RowTable:
    """The rows of one partition. space: gets the bytes of removed rows. generations, bookkeeping: shared by all tables
    of a server (None: this is the only table). kept_bytes: what it has counted in `bookkeeping`.
    """

    def __init__(
        self,
        partition_id: str,
        space: AnySpace,
        generations: GenerationClock | None = None,
        bookkeeping: Bookkeeping | None = None,
    ) -> None:
        self.bookkeeping = bookkeeping or Bookkeeping(1 << 62)
        self.kept_bytes = 0
        self.slot_bytes = ROW_BYTES
        self.places = Places(space.span)
        self.payloads = SharedPayloads(space)
        self.newest_weight_version: int | None = None  # that a row or group has ever had
        self.trainer_version: int | None = None  # that the trainer said it has
        self.closed = False  # no call creates rows any more, except in reserved groups
        self.clear_when_consumed = False  # as the partition is defined, to say where a missing row may be
        self._clock = generations or GenerationClock()
        self._partition_id = partition_id
        self._space = space
        self._slot_of: dict[str, int] = {}  # in order of arrival
        self._ids: list[str] = []  # of every slot that was ever used
        self._free: list[int] = []  # slots that were used before
        self._tags: list[Tags] = []  # by slot, up to the last slot that ever had tags
        self._tag_pool = TagPool()
        self._tag_columns = TagColumns()
        self._owed: Owed[tuple[Int64Array, Int64Array]] = Owed()  # offsets, bytes
        self._in_limbo = 0  # removed slots that are still pinned
        self._capacity = 0
        self._columns: dict[str, npt.NDArray[Any]] = {}
        for name, dtype in _ROW_COLUMNS.items():
            self.add_column(name, dtype)

    def __len__(self) -> int:
        return len(self._slot_of)

    # -- columns -------------------------------------------------------------------------------------------------------

    def add_column(self, name: str, dtype: npt.DTypeLike, beside: int = 0) -> None:
        """Add a zero-filled column. It grows with the table, so get it again after rows were created. beside: bytes
        that its owner keeps for each row elsewhere.
        """
        self._columns[name] = np.zeros(self._capacity, dtype)
        self._change_slot_bytes(self._columns[name].itemsize + beside)

    def drop_column(self, name: str, beside: int = 0) -> None:
        self._change_slot_bytes(-self._columns.pop(name).itemsize - beside)

    def check_column(self, beside: int) -> None:
        """Refusal LIMIT_REACHED if there is no memory for another column of bytes."""
        self.bookkeeping.check(self._capacity * (1 + beside), urgent=True)

    def set_width(self, width: int) -> None:
        """Make room for field indexes below `width`; see `Places.set_width`."""
        self._change_slot_bytes(self._value_bytes * (width - self.places.width))
        self.places.set_width(width)

    def keep_digests(self, *, keep: bool) -> None:
        """Whether values have digests; see `Places.keep_digests`."""
        before = self._value_bytes
        self.places.keep_digests(keep=keep)
        self._change_slot_bytes((self._value_bytes - before) * self.places.width)

    @property
    def _value_bytes(self) -> int:
        return _PLACE_BYTES + _DIGEST_BYTES * self.places.has_digests

    def _change_slot_bytes(self, more: int) -> None:
        self.slot_bytes += more
        self.keep(more * self._capacity)

    def columns_bytes(self, values: int, beside: int) -> int:
        """Memory of so many more values of each row, and of other columns of so many bytes."""
        return self._capacity * (values * self._value_bytes + beside)

    def growth_bytes(self, new_rows: int) -> int:
        """Memory of the slots that this many more rows need beyond those there are."""
        return max(0, len(self._ids) + max(0, new_rows - len(self._free)) - self._capacity) * self.slot_bytes

    def keep(self, size_bytes: int) -> None:
        """Count memory that the partition keeps (below 0: that it has freed)."""
        self.kept_bytes += size_bytes
        self.bookkeeping.add(size_bytes)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._columns[name]

    # -- samples -------------------------------------------------------------------------------------------------------

    def find(self, sample_ids: Sequence[str], hint: str = "") -> Slots:
        """Slots of samples, in order. Refusal SAMPLE_NOT_FOUND names the first missing sample; the hint is its end."""
        slots = self.find_existing(sample_ids)
        if len(slots) and slots.min() < 0:
            why = "; it clears rows as soon as every task has consumed them" if self.clear_when_consumed else ""
            raise self._refusal(
                Reason.SAMPLE_NOT_FOUND, " has no ", sample_ids, np.flatnonzero(slots < 0), f"{why}{hint}"
            )
        return slots

    def _refusal(self, reason: Reason, before: str, sample_ids: Sequence[str], rows: Int64Array, rule: str) -> Refusal:
        """Names the first of some rows of a call. before: what is between the partition and the sample."""
        first, more = sample_ids[int(rows[0])], f" (and {rows.size - 1} more of the call)" if rows.size > 1 else ""
        message = f"partition {self._partition_id!r}{before}sample {first!r}{more}{rule}"
        return Refusal(reason, message, partition_id=self._partition_id, sample_id=first)

    def check_same(self, sample_ids: Sequence[str], slots: Slots, generations: Int64Array) -> None:
        """Refusal ROW_REPLACED names the first row that does not have the generation that the caller gives."""
        others = np.flatnonzero(self.generations(slots) != generations)
        if others.size:
            rule = " was cleared and put again; the call gives the generation of another row"
            raise self._refusal(Reason.ROW_REPLACED, ": ", sample_ids, others, rule)

    def check_creates_none(self, sample_ids: Sequence[str], slots: Slots) -> None:
        """Refusal PARTITION_CLOSED names the first sample that is new (slot -1)."""
        if (new := np.flatnonzero(slots < 0)).size:
            before = " is closed to new rows; "
            raise self._refusal(Reason.PARTITION_CLOSED, before, sample_ids, new, " would be one")

    def find_existing(self, sample_ids: Sequence[str]) -> Slots:
        """Slots of samples; -1 for each that does not exist."""
        return np.fromiter(map(self._slot_of.get, sample_ids, repeat(-1)), np.int64, len(sample_ids))

    def create(self, sample_ids: Sequence[str], slots: Slots) -> int:
        """Create a row for each sample that has -1 in `slots`, and write its slot there. Returns how many are new."""
        new = np.flatnonzero(slots < 0)
        if not len(new):
            return 0
        ids = list(map(sample_ids.__getitem__, new.tolist()))
        taken = self._take_slots(len(new))
        for slot, sample_id in zip(taken, ids, strict=True):
            self._ids[slot] = sample_id
        self._slot_of.update(zip(ids, taken, strict=True))
        self.keep(id_bytes(ids))
        created = np.array(taken, np.int64)
        slots[new] = created
        self._columns["alive"][created] = True
        self._columns["generation"][created] = self._clock.take(len(taken))
        self._columns["sequence_length"][created] = -1
        self._columns["weight_version"][created] = UNKNOWN_VERSION
        return len(taken)

    @property
    def oldest_generation(self) -> int | None:
        """The generation of the oldest row; None without rows."""
        slot = next(iter(self._slot_of.values()), None)
        return None if slot is None else int(self._columns["generation"][slot])

    def all_slots(self) -> Slots:
        """All rows, in order of arrival."""
        return np.fromiter(self._slot_of.values(), np.int64, len(self._slot_of))

    def ids(self, slots: Slots) -> list[str]:
        return list(map(self._ids.__getitem__, slots.tolist()))

    def remove(self, slots: Slots) -> None:
        """Remove rows whose bytes are already released. A pinned slot stays in limbo until it is unpinned."""
        gone, ids = slots.tolist(), self.ids(slots)
        self.keep(-id_bytes(ids))
        for slot, sample_id in zip(gone, ids, strict=True):
            del self._slot_of[sample_id]
            self._ids[slot] = ""
        if self._tags:
            self._drop_tags(slots)
        self._tag_columns.erase(slots)
        for name, column in self._columns.items():
            if name not in _OUTLIVE_THE_ROW:
                column[slots] = 0
        self.places.erase(slots)
        self._columns["epoch"][slots] += 1
        unpinned = slots[self._columns["pins"][slots] == 0].tolist()
        self._free.extend(unpinned)
        if len(unpinned) < len(gone):
            self._in_limbo += len(gone) - len(unpinned)
            self._space.withheld += 1

    # -- epochs and generations ----------------------------------------------------------------------------------------

    def epochs(self, slots: Slots) -> Epochs:
        """The reuse counters of slots, to keep with the slots."""
        epochs: Epochs = self._columns["epoch"][slots]
        return epochs

    def still(self, slots: Slots, epochs: Epochs) -> BoolArray:
        """Which rows, known by slot and epoch, still exist."""
        return np.asarray(self._columns["epoch"][slots] == epochs)

    def left(self, slots: Slots, epochs: Epochs) -> Slots:
        """The rows, known by slot and epoch, that still exist."""
        return slots[self.still(slots, epochs)]

    def generations(self, slots: Slots) -> Int64Array:
        generations: Int64Array = self._columns["generation"][slots]
        return generations

    def ages(self, slots: Slots, now: float) -> Float64Array:
        """Seconds since each row was created; see `GenerationClock.age`."""
        return self._clock.ages(self.generations(slots), now)

    def revisions(self, slots: Slots) -> Int64Array:
        """Two numbers for each row (-1: a row that does not exist), which change with its per-token values, and are 0
        while it has none.
        """
        existing = np.flatnonzero(slots >= 0)
        found = np.zeros((2, len(slots)), np.int64)
        found[0, existing] = self._columns["revision"][slots[existing]]
        found[1, existing] = self._columns["generation"][slots[existing]] * (found[0, existing] > 0)
        return found

    # -- tags ----------------------------------------------------------------------------------------------------------

    def tags(self, slot: int) -> Tags:
        """The tags of a row; none for slot -1. The caller must not change them."""
        return self._tags[slot] if 0 <= slot < len(self._tags) else _NO_TAGS

    def tags_of(self, slots: Slots) -> tuple[Tags, ...]:
        """The tags of each row. The caller must not change them."""
        if not self._tags:
            return (_NO_TAGS,) * len(slots)
        return tuple(map(self.tags, slots.tolist()))

    def tags_bytes(self, slots: Slots) -> int:
        """Memory of the tags of rows."""
        if not self._tags:
            return 0
        pooled = {id(tags): tags.size_bytes for tags in self.tags_of(slots) if isinstance(tags, PooledTags)}
        return int(self._columns["tag_bytes"][slots].sum()) + sum(pooled.values())

    def merge_tags(self, slot: int, tags: Tags) -> None:
        if tags:
            self._tags.extend(repeat(_NO_TAGS, slot + 1 - len(self._tags)))
            before, pooled_bytes = self._tags[slot], self._tag_pool.size_bytes
            self._tags[slot], size = self._tag_pool.own({**before, **tags} if before else tags)
            self._tag_pool.release(before)
            of_rows = self._columns["tag_bytes"]
            self.keep(size - int(of_rows[slot]) + self._tag_pool.size_bytes - pooled_bytes)
            of_rows[slot] = size
            if self._tag_columns:
                self.keep(self._tag_columns.set(slot, tags))
            if VERSION_TAG in tags:
                version = tags[VERSION_TAG]
                self._columns["weight_version"][slot] = UNKNOWN_VERSION if version is None else version
                if isinstance(version, int):
                    self.see_weight_version(version)

    def tag_numbers(self, tag: str, slots: Slots) -> Float64Array:
        """A tag of rows as numbers; NaN for a row without one. See tag_values."""
        return self.tag_values(tag, slots).numbers

    def tag_values(self, tag: str, slots: Slots, *, keep: bool = True) -> TagValues:
        """A tag of rows. Costs a pass over the rows if it has no column; else a few ns a row. keep: the tag gets a
        column if many of the rows are asked for and there is memory. Not in queries: a column is part of the state.
        """
        column = self._tag_columns.find(tag, use=keep)
        if column is None and keep and len(slots) * _FEW > len(self):
            column = TagColumn(tag, self._tags, self._capacity)
            self._keep_column(tag, column)
        if column is None:
            return TagValues.of([tags.get(tag) for tags in self.tags_of(slots)])
        return column.values(slots)

    def _keep_column(self, tag: str, column: TagColumn) -> None:
        """Keep a new column of a tag, if there is memory for it."""
        columns = self._tag_columns
        with contextlib.suppress(Refusal):
            self.bookkeeping.check(self._capacity * SLOT_BYTES + column.text_bytes, urgent=True)
            count, text_bytes = len(columns), columns.text_bytes
            columns.add(tag, column)
            self._change_slot_bytes(SLOT_BYTES * (len(columns) - count))
            self.keep(columns.text_bytes - text_bytes)

    def _drop_tags(self, slots: Slots) -> None:
        """The rows, which are about to be removed, have no tags any more."""
        before = self._tag_pool.size_bytes
        for slot in slots.tolist():
            if slot < len(self._tags) and self._tags[slot]:
                self._tag_pool.release(self._tags[slot])
                self._tags[slot] = _NO_TAGS
        self.keep(self._tag_pool.size_bytes - before - int(self._columns["tag_bytes"][slots].sum()))

    def see_weight_version(self, version: int) -> None:
        """Note that there are weights of this version."""
        self.newest_weight_version = max(version, self.newest_weight_version or 0)

    @property
    def weight_version(self) -> int | None:
        """The version against which staleness is measured; None while none is known."""
        return self.newest_weight_version if self.trainer_version is None else self.trainer_version

    def lag_of(self, version: int | None) -> int | None:
        """How far a weight version is behind `weight_version`; None if either is unknown."""
        current = self.weight_version
        return None if current is None or version is None else current - version

    def oldest_weight_version(self) -> int:
        """The oldest weight version of a row; UNKNOWN_VERSION, which is above all, if no row has one. O(rows)."""
        versions, alive = self._columns["weight_version"], self._columns["alive"]
        return int(np.minimum.reduce(versions, where=alive, initial=UNKNOWN_VERSION))

    def staleness(self, slots: Slots) -> Int64Array:
        """How many versions each row is behind `weight_version`, -1 if that is not known."""
        versions, current = self._columns["weight_version"][slots].astype(np.int64), self.weight_version
        if current is None:
            return np.full(len(slots), -1)
        return np.where(versions == UNKNOWN_VERSION, -1, np.maximum(current - versions, 0))

    # -- bytes and pins ------------------------------------------------------------------------------------------------

    def release_bytes(self, slots: Slots, offsets: Int64Array, sizes: Int64Array) -> None:
        """Free ranges of rows (an array row for each field), at once or when the readers of the row have ended."""
        pins = self._columns["pins"][slots]
        pinned = pins > 0
        if pinned.any():
            self._space.withheld += 1
            owing = np.flatnonzero(pinned & sizes.any(axis=0))
            of_rows = zip(slots[owing].tolist(), pins[owing].tolist(), offsets.T[owing], sizes.T[owing], strict=True)
            for slot, readers, *owed in of_rows:
                self._owed.add(slot, (owed[0], owed[1]), self._space.withheld, readers)
            offsets, sizes = offsets[:, ~pinned], sizes[:, ~pinned]
        self._space.release_rows(offsets.ravel(), sizes.ravel())

    def pin(self, slots: Slots) -> int:
        """Keep the slots and all that they have now. Returns what to give to `unpin`."""
        self._columns["pins"][slots] += 1
        return self._space.withheld

    def unpin(self, slots: Slots, began: int) -> None:
        """Undo one `pin`. Frees what it was the last one to keep. began: what it has returned."""
        pins = self._columns["pins"]
        left = pins[slots] - 1
        pins[slots] = left
        loose = slots[left == 0]
        if self._in_limbo:
            freed = loose[~self._columns["alive"][loose]].tolist()
            self._free.extend(freed)
            self._in_limbo -= len(freed)
        self.payloads.unpin(slots, began)
        if paid := self._owed.end(slots, began):
            offsets, sizes = zip(*paid, strict=True)
            self._space.release_rows(np.concatenate(offsets), np.concatenate(sizes))

    @property
    def counted_bytes(self) -> int:
        """The part of `kept_bytes` that is of rows, computed anew."""
        slots = self.all_slots()
        tags = self._tag_pool.size_bytes + int(self._columns["tag_bytes"][slots].sum()) + self._tag_columns.text_bytes
        digests = DIGEST_BYTES * len(self.payloads.known)
        return self._capacity * self.slot_bytes + id_bytes(self.ids(slots)) + tags + digests

    @property
    def owed_bytes(self) -> int:
        """Bytes of removed or overwritten rows that readers still pin."""
        return self.payloads.owed_bytes + sum(int(sizes.sum()) for _, sizes in self._owed)

    def owed_by(self, slots: Slots, began: int) -> int:
        """The part of `owed_bytes` that a `pin` of these slots keeps."""
        return self.payloads.owed_by(slots, began) + sum(int(sizes.sum()) for _, sizes in self._owed.by(slots, began))

    # -- slots ---------------------------------------------------------------------------------------------------------

    def _take_slots(self, count: int) -> list[int]:
        """Free slots, the last used first, then new ones."""
        used, fresh = len(self._ids), max(0, count - len(self._free))
        if used + fresh > self._capacity:
            self._grow(used + fresh)
        taken = self._free[: -count - 1 : -1]
        del self._free[len(self._free) - len(taken) :]
        self._ids.extend(repeat("", fresh))
        taken.extend(range(used, used + fresh))
        return taken

    def _grow(self, rows: int) -> None:
        """Grow the capacity to at least this many rows."""
        capacity = max(rows, self._capacity + min(max(64, self._capacity // 8), _LONGEST_STEP))
        self.places.grow(capacity)
        self._tag_columns.grow(capacity)
        for column in self._columns.values():
            column.resize(capacity, refcheck=False)
        self.keep((capacity - self._capacity) * self.slot_bytes)
        self._capacity = capacity

    def close(self) -> None:
        """The table is dropped; its rows are removed."""
        self.keep(-self.kept_bytes)
