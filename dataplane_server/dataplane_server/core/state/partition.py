"""One partition: its definition, its rows, their values and groups, and its tasks.

Every row that was ever put is resident, or was removed and counted in `removed`: as consumed (by every task before the
clear), cleared (earlier), rolled back with its group, retired with its weight version, dropped by the policy of a task,
because it was stale or did not fit the filter, evicted for new rows, or lost with a node.

Methods that change something cannot fail: a caller checks first (`put_checks`), so a refused call leaves no trace. A
method that changes figures adds the partition to `changed`, for `core.turn`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dataplane_server.core.calls.answers import ROW_CONSUMED, ROW_CREATED, ROW_REPLACED
from dataplane_server.core.calls.columns import Column, Columns, Shape
from dataplane_server.core.calls.flow import FlowPolicy
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import BoolArray, Definition, Int64Array, Slots, Tags
from dataplane_server.core.rows.bookkeeping import NAME_BYTES, PARTITION_BYTES, Bookkeeping, id_bytes, text_bytes
from dataplane_server.core.rows.fields import Field, check_may_declare
from dataplane_server.core.rows.generations import GenerationClock
from dataplane_server.core.rows.group_table import MISSING_ROWS_TAG, Group, GroupTable
from dataplane_server.core.rows.regions import AnySpace
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.rows.stored_values import StoredValues, mask_of
from dataplane_server.core.state.counters import PartitionCounters
from dataplane_server.core.state.entrance import Entrance
from dataplane_server.core.tasks.task import TASK_BYTES, Task
from dataplane_server.core.tasks.task_states import CONSUMED

REASONS = ("consumed", "cleared", "rolled_back", "retired", "stale", "filtered", "evicted", "lost", "failed")
"""Why rows were removed."""
_NOT_OFFERED = ("rolled_back", "failed")
_NO_DIGESTS: Mapping[str, bytes] = {}
_ROWS_AT_ONCE = 1 << 14
"""Rows that are cleared in one step. A step needs about a hundred bytes a value meanwhile."""


class Checked(NamedTuple):
    """The result of checking a put: slots of the rows (-1 for new rows), the shape of each field after the put, and how
    many rows are new.
    """

    slots: Slots
    shapes: Sequence[Shape]
    new_rows: int


class Partition:
    """A named flow of rows. definition: already checked. generations: of all rows of the server. changed,
    changed_tasks: what the current turn has changed. figures: see `stats.figures`.
    """

    def __init__(
        self,
        definition: Definition,
        space: AnySpace,
        generations: GenerationClock,
        bookkeeping: Bookkeeping,
        changed: dict[Partition, None],
        changed_tasks: dict[Task, None],
    ) -> None:
        self.partition_id = definition.partition_id
        self.definition = definition
        self.counters = PartitionCounters()
        self.generations = generations
        self.figures: tuple[float | None, ...] | None = None
        self._changed = changed
        self._changed_tasks = changed_tasks
        self.rows = RowTable(definition.partition_id, space, generations, bookkeeping)
        self.rows.keep(definition_bytes(definition))
        self.groups = GroupTable(self.rows)
        self.values = StoredValues(self.rows)
        self.fields: dict[str, Field] = {}
        self.tasks: dict[str, Task] = {}
        self.rows_put_total = 0
        self.removed = dict.fromkeys(REASONS, 0)
        self.entrance = Entrance()
        self.followed_version: int | None = None  # which weight version the tasks have followed
        self._adopt(definition)

    # -- definition ----------------------------------------------------------------------------------------------------

    def redefine(self, definition: Definition) -> None:
        """Replace the definition, reset every task, and open the partition again. Drops the views of tasks and fields
        that are gone.
        """
        self.rows.closed = False
        self.entrance.changed = True
        for name in self.tasks.keys() - set(definition.tasks):
            self.tasks.pop(name).close()
        gone = self.mask(self.fields.keys() - set(definition.fields))
        for task in self.tasks.values():
            task.drop_views(gone)
        for name in self.fields.keys() - set(definition.fields):
            del self.fields[name]
        self._adopt(definition)
        for task in self.tasks.values():
            task.reset()

    def extend(self, definition: Definition) -> None:
        """Take a definition that declares more. New tasks have taken no row; views, cursors and claims stay."""
        new = [name for name in definition.tasks if name not in self.tasks]
        self._adopt(definition)
        for name in new:
            self._changed_tasks[self.tasks[name]] = None

    def declare(self, names: Iterable[str]) -> None:
        """Declare the fields that are not yet, in an open partition."""
        if new := self._undeclared(names):
            self.extend(self._with_fields(new))

    def declare_bytes(self, names: Iterable[str]) -> int:
        """Memory that `declare` needs."""
        new = self._undeclared(names)
        return self.growth_bytes(self._with_fields(new)) if new else 0

    def growth_bytes(self, definition: Definition) -> int:
        """Memory that a definition needs beyond the present one, for columns of its fields and tasks as well."""
        values = max(0, len(definition.fields) - self.rows.places.width)
        columns_bytes = self.rows.columns_bytes(values, TASK_BYTES * (len(definition.tasks) - len(self.tasks)))
        return definition_bytes(definition) - definition_bytes(self.definition) + columns_bytes

    def _undeclared(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name not in self.fields)

    def _with_fields(self, new: tuple[str, ...]) -> Definition:
        return replace(self.definition, fields=(*self.definition.fields, *new))

    def set_weight_version(self, version: int) -> None:
        """The trainer has these weights."""
        self.rows.trainer_version = version
        self._changed[self] = None
        self._changed_tasks.update(dict.fromkeys(self.tasks.values()))

    def follow(self, policy: FlowPolicy) -> None:
        """New rows come by this policy from now on."""
        self.entrance.follow(policy, self.rows_offered, self.generations.next)
        self._changed[self] = None

    def close(self) -> None:
        """No call creates rows any more, except in reserved groups."""
        self.rows.closed = True
        self.entrance.changed = True
        self._changed[self] = None

    def _adopt(self, definition: Definition) -> None:
        self.rows.keep(definition_bytes(definition) - definition_bytes(self.definition))
        self.definition = definition
        self.rows.clear_when_consumed = definition.clear_when_consumed
        self.rows.keep_digests(keep=definition.digests)
        self._changed[self] = None
        used = {field.index for field in self.fields.values()}
        indexes = iter(index for index in range(64) if index not in used)
        kept = self.fields
        self.fields = {}
        for name in definition.fields:
            per_token = name in definition.per_token_fields
            self.fields[name] = kept.get(name) or Field(name, next(indexes), per_token, self.rows)
            self.fields[name].per_token = per_token
            self.fields[name].dtype = definition.dtypes.get(name, "")
        self.rows.set_width(1 + max((field.index for field in self.fields.values()), default=-1))
        self.tasks = {
            name: self.tasks.get(name) or Task(name, self.partition_id, self.rows, self.groups, self._changed_tasks)
            for name in definition.tasks
        }

    def known_fields(self, names: Iterable[str], limits: Limits) -> Mapping[str, Field]:
        """All fields, and those that the names would declare. Refusal for a name that is not declared and may not
        be.
        """
        new = [name for name in names if name not in self.fields]
        if not new:
            return self.fields
        if not self.definition.open:
            self.field(new[0])
        check_may_declare(self.partition_id, self.fields, new, limits)
        return self.fields | {name: Field(name, 0, False, self.rows) for name in new}

    def field(self, name: str) -> Field:
        if name not in self.fields and self.definition.open:
            message = f"partition {self.partition_id!r}: no row has produced field {name!r}; the first put declares it"
            raise Refusal(Reason.FIELD_NOT_PRODUCED, message, partition_id=self.partition_id, field=name)
        if name not in self.fields:
            message = (
                f"partition {self.partition_id!r} does not declare field {name!r}; declared: {', '.join(self.fields)}"
            )
            raise Refusal(Reason.FIELD_NOT_DECLARED, message, partition_id=self.partition_id, field=name)
        return self.fields[name]

    def task(self, name: str) -> Task:
        if name not in self.tasks:
            known = ", ".join(self.tasks) or "none"
            message = f"partition {self.partition_id!r} has no task {name!r}; registered: {known}"
            raise Refusal(Reason.TASK_NOT_REGISTERED, message, partition_id=self.partition_id, task=name)
        return self.tasks[name]

    @property
    def is_ending(self) -> bool:
        """Whether no more rows will come: the partition is closed, and no group is reserved."""
        return self.rows.closed and not self.groups.reserved

    def mask(self, names: Iterable[str]) -> int:
        return mask_of([self.field(name) for name in names])

    # -- put -----------------------------------------------------------------------------------------------------------

    def create(self, sample_ids: Sequence[str]) -> Slots:
        """Create rows without values for samples that do not exist. Views are not notified: the caller must keep the
        rows hidden.
        """
        slots = np.full(len(sample_ids), -1, np.int64)
        self._create(sample_ids, slots)
        return slots

    def _create(self, sample_ids: Sequence[str], slots: Slots) -> int:
        self._changed[self] = None
        created = self.rows.create(sample_ids, slots)
        self.rows_put_total += created
        for task in self.tasks.values():
            task.created(created)
        return created

    def put(
        self,
        sample_ids: Sequence[str],
        checked: Checked,
        columns: Columns,
        offsets: Int64Array,
        tags: Sequence[Tags] | None,
        sequence_lengths: Int64Array | None,
        group: Group | None = None,
        once: Mapping[str, bytes] = _NO_DIGESTS,
        digests: Int64Array | None = None,
    ) -> int:
        """Apply a put that was just checked and whose values are at the offsets (an array row for each column). Returns
        how many rows are new. group: the reserved group that new rows join. once: digests of values, by field. digests:
        of all values, if the partition has some.
        """
        if self.definition.open:
            self.declare(column.name for column in columns.each)
        slots = checked.slots
        is_new = slots < 0
        created = self._create(sample_ids, slots)
        if group is not None and created:
            self._join(group, slots[is_new], columns)
        if columns.each:
            replaces = created < len(slots)
            of_rows = (slots, self._named(columns), checked.shapes, columns, offsets, once, digests)
            self.counters.deduplicated_bytes += self.values.store(*of_rows, replaces=replaces)
        self._store_lengths(slots, columns.each, sequence_lengths)
        for slot, row_tags in zip(slots.tolist() if tags else (), tags or (), strict=False):
            self.rows.merge_tags(slot, row_tags)
        for task in self.tasks.values():
            task.produced(slots)
        return created

    def note_replaced(self, slots: Slots, columns: Columns) -> bytes:
        """Tell the tasks which of the rows (-1: new) get values in place of those that they have, before a put is
        applied. Returns what the put does to each row (see `calls.answers`).
        """
        existing = np.flatnonzero(slots >= 0)
        found, outcomes = slots[existing], np.full(len(slots), ROW_CREATED, np.uint8)
        names = {column.name for column in columns.each}
        mask = mask_of([field for name, field in self.fields.items() if name in names])
        replaced = found[self.rows["produced"][found] & mask > 0]
        consumed = np.zeros(len(found), np.bool_)
        for task in self.tasks.values():
            consumed |= task.states[found] == CONSUMED
            task.note_put_again(replaced)
        outcomes[existing] = np.where(consumed, ROW_CONSUMED, ROW_REPLACED)
        return outcomes.tobytes()

    def put_shared(
        self, group: Group, checked: Checked, columns: Columns, offsets: Int64Array, digests: Int64Array | None
    ) -> None:
        """Point all rows of a group, which were just checked, to the one value of each column, and those that join."""
        self._changed[self] = None
        self.declare(column.name for column in columns.each)
        self.values.store_shared(group, checked.slots, self._named(columns), checked.shapes, columns, offsets, digests)

    def _join(self, group: Group, slots: Slots, columns: Columns) -> None:
        """New rows become rows of a reserved group and share its values, but for those that the put brings."""
        self.groups.join(group, slots)
        own = {column.name for column in columns.each}
        self.values.share(group, slots, [self.fields[name] for name in group.shared if name not in own])

    def _named(self, columns: Columns) -> list[Field]:
        return [self.fields[column.name] for column in columns.each]

    def _store_lengths(self, slots: Slots, columns: Sequence[Column], given: Int64Array | None) -> None:
        """Note the lengths of rows, and that their per-token values are others."""
        stored = self.rows["sequence_length"]
        if given is not None:
            known = given >= 0
            stored[slots[known]] = given[known]
        per_token = next((column for column in columns if self.fields[column.name].per_token), None)
        if per_token is not None:
            stored[slots] = per_token.entries
            self.rows["revision"][slots] += 1

    # -- clear ---------------------------------------------------------------------------------------------------------

    def find_same(self, sample_ids: Sequence[str], generations: Int64Array | None) -> Slots:
        """Slots of the samples that exist. With generations (one for each), only of rows that have that generation."""
        slots = self.rows.find_existing(sample_ids)
        same = slots >= 0
        if generations is not None:
            same[same] = self.rows.generations(slots[same]) == generations[same]
        return slots[same]

    def clear(self, slots: Slots, why: str | None = None) -> int:
        """Remove rows in any state. why: a key of `removed`; None to decide by their tasks. Returns the bytes of their
        values.
        """
        pieces = [slots[begin : begin + _ROWS_AT_ONCE] for begin in range(0, len(slots), _ROWS_AT_ONCE)]
        return sum(self._clear(piece, why) for piece in pieces)

    def _clear(self, slots: Slots, why: str | None) -> int:
        self._changed[self] = None
        self._count_removed(slots, why)
        released = self.values.release(slots, list(self.fields.values())) if self.fields else 0
        for group in self.groups.shrink(slots):  # before the views check: the remaining rows may be a complete group
            released += self._forget_group(group)
        for task in self.tasks.values():
            task.forget(slots)
        self.rows.remove(slots)
        if not len(self.rows) and why != "evicted":
            self.entrance.emptied(self.rows_offered, self.generations.next)
        return released

    def roll_back(self, group: Group, *, late: bool = False) -> None:
        """Remove a reserved group and its rows. late: since its deadline has passed."""
        self._changed[self] = None
        self.counters.groups_late += late
        self.counters.groups_aborted -= late  # as which its end counts below
        self.clear(self.groups.members(group.number), "rolled_back")
        if group.reservation_id:  # it never had a row
            self._forget_group(group)
            self._changed_tasks.update(dict.fromkeys(self.tasks.values()))  # it may have been what a claim waited for

    def _forget_group(self, group: Group) -> int:
        """A group without rows is gone. Returns the bytes of the values that it held."""
        self.counters.groups_aborted += bool(group.reservation_id)
        lost = self.values.end_sharing(group, self.fields)
        self.groups.forget(group)
        return lost

    def by_why(self, slots: Slots, why: str) -> list[tuple[str, Slots]]:
        """Rows that are to go, by what they are counted as: why or, if no consumer could have them yet, rolled back."""
        hidden = self.rows["hidden"][slots]
        parts = [("rolled_back", slots[hidden]), (why, slots[~hidden])]
        return [(counted, part) for counted, part in parts if len(part)]

    def _count_removed(self, slots: Slots, why: str | None) -> None:
        consumed = 0
        if why is None and self.tasks:
            by_each = [task.states[slots] == CONSUMED for task in self.tasks.values()]
            consumed = int(np.count_nonzero(np.logical_and.reduce(by_each)))
        if why in _NOT_OFFERED:
            self.entrance.withdrawn(self.rows.generations(slots))
        self.removed["consumed"] += consumed
        self.removed[why or "cleared"] += len(slots) - consumed

    def count_put(self, rows: int, size_bytes: int) -> None:
        """Count a put that was applied."""
        self._changed[self] = None
        self.counters.puts += 1
        self.counters.put_rows += rows
        self.counters.put_bytes += size_bytes

    def count_drawn(self, rows: int) -> None:
        """Count rows of a draw; new rows may have waited for it."""
        self._changed[self] = None
        self.entrance.drawn_rows += rows

    def count_read(self, rows: int, size_bytes: int) -> None:
        """Count a read that has begun. `core.turn` drops the figures."""
        self.counters.reads += 1
        self.counters.read_rows += rows
        self.counters.read_bytes += size_bytes

    def count_clear(self) -> None:
        """Count a clear, whether or not it removed rows."""
        self._changed[self] = None
        self.counters.clears += 1

    def complete(self, group: Group) -> BoolArray:
        """Which members of a reserved group are complete, in order of arrival."""
        return self.groups.complete(group, {name: field.bit for name, field in self.fields.items()})

    def show_group(self, group: Group, weight_version: int | None, missing_rows: int = 0) -> Slots:
        """Make the rows of a reserved group visible. Returns the rows. missing_rows: those that failed or are late."""
        self._changed[self] = None
        self.counters.groups_partial += missing_rows > 0
        self.counters.groups_committed += missing_rows == 0
        self.groups.tag_version(self.groups.members(group.number), MISSING_ROWS_TAG, missing_rows or None)
        self.values.end_sharing(group, self.fields)
        slots = self.groups.show(group, weight_version)
        for task in self.tasks.values():
            task.produced(slots)
        return slots

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def all_put(self) -> bool:
        """Whether num_samples rows were put. Rows that were rolled back with their groups count as not put."""
        return self.rows_put_total - self.removed["rolled_back"] >= self.definition.num_samples

    @property
    def rows_offered(self) -> int:
        """Rows put, without those that failed or were rolled back: no draw could have them."""
        return self.rows_put_total - sum([self.removed[why] for why in _NOT_OFFERED])

    @property
    def size_bytes(self) -> int:
        return sum([field.size_bytes for field in self.fields.values()])


def definition_bytes(definition: Definition) -> int:
    """Memory of a partition without rows."""
    names = [*definition.fields, *definition.tasks, *definition.enums, *definition.dtypes]
    in_enums = [name for enum in definition.enums.values() for name in enum]
    return PARTITION_BYTES + NAME_BYTES * len(names) + sum(map(text_bytes, names)) + id_bytes(in_enums)
