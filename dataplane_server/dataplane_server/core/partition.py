"""One partition: its definition, its rows, their values, and the cursors of its tasks.

Methods named check_* decide and change nothing; those that change something cannot fail. A caller checks first, so
that a refused call leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dataplane_server.core.calls import Definition, FieldInfo, PartitionInfo, ReadColumn, TaskInfo
from dataplane_server.core.columns import Column, Int64Array, Shape
from dataplane_server.core.fields import Field
from dataplane_server.core.limits import Limits
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.rows import RowTable, Slots, Tags
from dataplane_server.core.sequence_lengths import check_sequence_lengths
from dataplane_server.core.space import Run, Space, merged_runs
from dataplane_server.core.tasks import Task


class Partition:
    """A named flow of rows. `definition` must have been checked."""

    def __init__(self, definition: Definition, space: Space) -> None:
        self.definition = definition
        self.rows = RowTable(definition.partition_id, space)
        self.fields: dict[str, Field] = {}
        self.tasks: dict[str, Task] = {}
        self.rows_put_total = 0
        self.rows_cleared_total = 0
        self._adopt(definition)

    @property
    def partition_id(self) -> str:
        return self.definition.partition_id

    # -- definition ----------------------------------------------------------------------------------------------------

    def check_redefine(self, definition: Definition) -> None:
        """Refuse a definition that values of rows contradict."""
        for field in self.fields.values():
            if field.name not in definition.fields:
                change = "does not declare"
            elif field.name in definition.per_token_fields and not field.per_token:
                change = "newly declares per-token"  # rows were put without comparing their lengths
            else:
                continue
            if field.rows:
                message = (
                    f"partition {self.partition_id!r}: {field.rows} rows hold values of field {field.name!r}, which "
                    f"the new definition {change}; clear them first"
                )
                metadata = {"partition_id": self.partition_id, "field": field.name}
                raise Refusal(Reason.FIELD_HOLDS_VALUES, message, **metadata)

    def redefine(self, definition: Definition) -> None:
        """Replace the definition and reset every cursor. Views of tasks and fields that are gone end."""
        for name in self.tasks.keys() - set(definition.tasks):
            self.tasks.pop(name).close()
        gone = self.mask(self.fields.keys() - set(definition.fields))
        for task in self.tasks.values():
            task.drop_views(gone)
        for name in self.fields.keys() - set(definition.fields):
            self.fields.pop(name).close()
        self._adopt(definition)
        for task in self.tasks.values():
            task.reset()

    def _adopt(self, definition: Definition) -> None:
        self.definition = definition
        used = {int(field.bit).bit_length() - 1 for field in self.fields.values()}
        indexes = iter(index for index in range(64) if index not in used)
        kept = self.fields
        self.fields = {}
        for name in definition.fields:
            per_token = name in definition.per_token_fields
            self.fields[name] = kept.get(name) or Field(name, next(indexes), per_token, self.rows)
            self.fields[name].per_token = per_token
        self.tasks = {name: self.tasks.get(name) or Task(name, self.rows) for name in definition.tasks}

    def field(self, name: str) -> Field:
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

    def mask(self, names: Iterable[str]) -> int:
        return sum({int(self.field(name).bit) for name in names})

    # -- put -----------------------------------------------------------------------------------------------------------

    def check_put(
        self,
        sample_ids: Sequence[str],
        columns: Sequence[Column],
        tags: Sequence[Tags] | None,
        sequence_lengths: Int64Array | None,
        limits: Limits,
    ) -> int:
        """Refuse what the rows contradict. Returns how many rows are new."""
        for column in columns:
            self.field(column.name).check(column, self.partition_id)
        slots = self.rows.find_existing(sample_ids)
        check_sequence_lengths(self.partition_id, self.fields, sample_ids, slots, columns, sequence_lengths)
        for sample_id, slot, row_tags in zip(sample_ids, slots.tolist(), tags or (), strict=False):
            kept = self.rows.tags(slot)
            most = limits.max_tags_per_row
            if len(kept) + len(row_tags) > most and len(kept.keys() | row_tags.keys()) > most:
                message = f"partition {self.partition_id!r}: sample {sample_id!r} would have more than {most} tags"
                raise Refusal(Reason.INVALID_REQUEST, message, partition_id=self.partition_id, sample_id=sample_id)
        return int(np.count_nonzero(slots < 0))

    def put(
        self,
        sample_ids: Sequence[str],
        columns: Sequence[Column],
        offsets: Sequence[Int64Array],
        tags: Sequence[Tags] | None,
        sequence_lengths: Int64Array | None,
    ) -> int:
        """Write a checked put, whose values lie at the offsets (one array a column). Returns how many rows are new."""
        slots, created = self.rows.find_or_create(sample_ids)
        self.rows_put_total += created
        for column, where in zip(columns, offsets, strict=True):
            field = self.fields[column.name]
            field.store(slots, column, where, field.check(column, self.partition_id))
        self._store_sequence_lengths(slots, columns, sequence_lengths)
        for slot, row_tags in zip(slots.tolist(), tags or (), strict=False):
            self.rows.merge_tags(slot, row_tags)
        for task in self.tasks.values():
            task.produced(slots)
        return created

    def _store_sequence_lengths(self, slots: Slots, columns: Sequence[Column], given: Int64Array | None) -> None:
        stored = self.rows["sequence_length"]
        if given is not None:
            known = given >= 0
            stored[slots[known]] = given[known]
        per_token = next((column for column in columns if self.fields[column.name].per_token), None)
        if per_token is not None:
            stored[slots] = per_token.entries

    # -- read ----------------------------------------------------------------------------------------------------------

    def plan_read(self, slots: Slots, names: Sequence[str]) -> tuple[tuple[ReadColumn, ...], tuple[Run, ...]]:
        """Layout and place of fields of rows. Refusal FIELD_NOT_PRODUCED names the first row that lacks one."""
        columns, runs = [], []
        for name in names:
            field = self.field(name)
            shape = self._produced_shape(field, slots)
            columns.append(ReadColumn(name, shape, field.entries(slots)))
            runs.extend(merged_runs(*field.locations(slots)))
        return tuple(columns), tuple(runs)

    def _produced_shape(self, field: Field, slots: Slots) -> Shape:
        lacking = np.flatnonzero(~field.holds(slots))
        if field.shape is None or lacking.size:
            first = self.rows.ids(slots[lacking[:1]])[0]
            more = f" (nor have {lacking.size - 1} more of the call)" if lacking.size > 1 else ""
            message = f"partition {self.partition_id!r}: sample {first!r} has not produced field {field.name!r}{more}"
            metadata = {"partition_id": self.partition_id, "sample_id": first, "field": field.name}
            raise Refusal(Reason.FIELD_NOT_PRODUCED, message, **metadata)
        return field.shape

    # -- clear ---------------------------------------------------------------------------------------------------------

    def clear(self, slots: Slots) -> int:
        """Remove rows, whatever their state. Returns the bytes of their values."""
        released = sum(field.release(slots[field.holds(slots)]) for field in self.fields.values())
        for task in self.tasks.values():
            task.forget(slots)
        self.rows.remove(slots)
        self.rows_cleared_total += len(slots)
        return released

    # -- description ---------------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        return sum(field.size_bytes for field in self.fields.values())

    def task_info(self, name: str) -> TaskInfo:
        task = self.task(name)
        return TaskInfo(name, *task.counts(), task.consumed_total, task.waiting())

    def info(self) -> PartitionInfo:
        fields = tuple(FieldInfo(f.name, f.shape, f.per_token, f.rows, f.size_bytes) for f in self.fields.values())
        return PartitionInfo(
            definition=self.definition,
            fields=fields,
            tasks=tuple(self.task_info(name) for name in self.tasks),
            rows=len(self.rows),
            size_bytes=self.size_bytes,
            rows_put_total=self.rows_put_total,
            rows_cleared_total=self.rows_cleared_total,
        )
