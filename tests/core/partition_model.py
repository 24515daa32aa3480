"""A partition made of dicts and lists, written from what callers are promised, not from how the core does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dataplane_server.core.calls import (
    ClaimSamples,
    CommitClaim,
    Definition,
    FieldInfo,
    Grant,
    PartitionInfo,
    PutSamples,
    TaskInfo,
)
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.values import Run, Tags
from rl_dataplane.v1.element_types import ITEM_SIZES


@dataclass(eq=False)
class Value:
    data: bytes
    entries: int
    pieces: list[Run] = field(default_factory=list)


@dataclass(eq=False)
class Row:
    sample_id: str
    length: int = -1
    tags: Tags = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    pins: int = 0
    owed: list[Run] = field(default_factory=list)


@dataclass(eq=False)
class Claim:
    partition: PartitionModel
    task: str
    rows: list[Row]

    def left(self) -> list[Row]:
        return [row for row in self.rows if self.partition.rows.get(row.sample_id) is row]


@dataclass(eq=False)
class Write:
    """A put or commit under way; runs is None while it waits for room."""

    call: PutSamples | CommitClaim
    partition_id: str
    sample_ids: Sequence[str]
    values: dict[str, list[Value]]
    runs: tuple[Run, ...] | None = None

    @property
    def in_the_name_of_a_claim(self) -> bool:
        return bool(self.call.claim_id)

    @property
    def sizes(self) -> list[int]:
        return [sum(len(value.data) for value in column) for column in self.values.values()]


@dataclass(eq=False)
class Read:
    rows: list[Row]
    runs: tuple[Run, ...]
    data: bytes


class PartitionModel:
    """`rows` is in order of arrival; a view lists the rows ready for (task, fields), next first."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.rows: dict[str, Row] = {}
        self.shapes: dict[str, Shape] = {}
        self.claimed: dict[str, list[Row]] = {}
        self.consumed: dict[str, list[Row]] = {}
        self.consumed_total: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self.ended: dict[str, Counter[str]] = {}
        self.removed: Counter[str] = Counter()
        self.views: dict[tuple[str, frozenset[str]], list[Row]] = {}
        self.put_total = 0
        self.cleared_total = 0
        self.redefine(definition)

    # -- definition ----------------------------------------------------------------------------------------------------

    def refuses(self, definition: Definition) -> set[Reason]:
        dropped = set(self.definition.fields) - set(definition.fields)
        newly_per_token = definition.per_token_fields - self.definition.per_token_fields
        held = {name for row in self.rows.values() for name in row.values}
        return {Reason.FIELD_HOLDS_VALUES} if held & (dropped | newly_per_token) else set()

    def redefine(self, definition: Definition) -> None:
        self.definition = definition
        self.ended = {task: self.ended.get(task, Counter()) for task in definition.tasks}
        self.delivered = Counter({task: self.delivered[task] for task in definition.tasks})
        for task, rows in self.claimed.items():
            if rows and task in self.ended:
                self.ended[task]["reset"] += len(rows)
        self.shapes = {name: shape for name, shape in self.shapes.items() if name in definition.fields}
        self.claimed = {task: [] for task in definition.tasks}
        self.consumed = {task: [] for task in definition.tasks}
        self.consumed_total.clear()
        keys = [key for key in self.views if key[0] in definition.tasks and key[1] <= set(definition.fields)]
        self.views = {key: self.ready(key, self.rows.values()) for key in keys}

    # -- cursors -------------------------------------------------------------------------------------------------------

    def why_not_claim(self, request: ClaimSamples) -> set[Reason]:
        reasons = set() if request.task in self.definition.tasks else {Reason.TASK_NOT_REGISTERED}
        declared = set(request.required_fields) <= set(self.definition.fields)
        return reasons if declared else reasons | {Reason.FIELD_NOT_DECLARED}

    def ready(self, key: tuple[str, frozenset[str]], rows: Iterable[Row]) -> list[Row]:
        task, fields = key
        taken = self.claimed[task] + self.consumed[task]
        return [row for row in rows if fields <= row.values.keys() and row not in taken]

    def view(self, request: ClaimSamples) -> list[Row]:
        key = (request.task, frozenset(request.required_fields))
        if key not in self.views:
            self.views[key] = self.ready(key, self.rows.values())
        return self.views[key]

    def take(self, request: ClaimSamples) -> list[Row]:
        rows = self.view(request)[: request.batch_size]
        (self.consumed if request.consume else self.claimed)[request.task].extend(rows)
        self.delivered[request.task] += len(rows)
        if request.consume:
            self.consumed_total[request.task] += len(rows)
            self.ended[request.task]["committed"] += len(rows)
        self._leave_views(rows, [request.task])
        return rows

    def consume(self, claim: Claim) -> int:
        rows = claim.left()
        self.claimed[claim.task] = [row for row in self.claimed[claim.task] if row not in rows]
        self.consumed[claim.task] += rows
        self.consumed_total[claim.task] += len(rows)
        self.ended[claim.task]["committed"] += len(rows)
        return len(rows)

    def give_back(self, claim: Claim) -> int:
        rows = claim.left()
        self.claimed[claim.task] = [row for row in self.claimed[claim.task] if row not in rows]
        self.ended[claim.task]["released"] += len(rows)
        for key, view in self.views.items():
            if key[0] == claim.task:
                view[:0] = self.ready(key, rows)
        return len(rows)

    def _leave_views(self, rows: Sequence[Row], tasks: Iterable[str]) -> None:
        for (task, _), view in self.views.items():
            if task in tasks:
                view[:] = [row for row in view if row not in rows]

    # -- rows ----------------------------------------------------------------------------------------------------------

    def why_not_write(self, call: PutSamples | CommitClaim, sample_ids: Sequence[str], max_tags: int) -> set[Reason]:
        reasons = set()
        for spec in call.columns:
            if spec.name not in self.definition.fields:
                reasons.add(Reason.FIELD_NOT_DECLARED)
            elif shared_shape(self.shapes.get(spec.name), spec.shape) is None:
                reasons.add(Reason.FIELD_MISMATCH)
        for i, sample_id in enumerate(sample_ids):
            row = self.rows.get(sample_id) or Row(sample_id)
            if len(self._lengths(call, i, row) - {-1}) > 1:
                reasons.add(Reason.LENGTH_MISMATCH)
            if isinstance(call, PutSamples) and call.tags and len(row.tags | call.tags[i]) > max_tags:
                reasons.add(Reason.INVALID_REQUEST)
        return reasons

    def _lengths(self, call: PutSamples | CommitClaim, i: int, row: Row) -> set[int]:
        """All that a row's length would be, by what it keeps and what the call brings."""
        per_token = self.definition.per_token_fields
        lengths = {row_entries(spec, i) for spec in call.columns if spec.name in per_token}
        kept = per_token - {spec.name for spec in call.columns}
        lengths |= {value.entries for name, value in row.values.items() if name in kept}
        given = call.sequence_lengths if isinstance(call, PutSamples) else None
        return lengths if given is None else lengths | {int(given[i])}

    def store(
        self, call: PutSamples | CommitClaim, sample_ids: Sequence[str], values: dict[str, list[Value]]
    ) -> list[Run]:
        """Apply a write. Returns the room that became free."""
        freed: list[Run] = []
        for spec in call.columns:
            self.shapes[spec.name] = shared_shape(self.shapes.get(spec.name), spec.shape) or spec.shape
        for i, sample_id in enumerate(sample_ids):
            if sample_id not in self.rows:
                self.rows[sample_id] = Row(sample_id)
                self.put_total += 1
            row = self.rows[sample_id]
            freed += release(row, values)
            row.values.update((name, column[i]) for name, column in values.items())
            row.length = max(self._lengths(call, i, row) - {-1}, default=row.length)
            if isinstance(call, PutSamples) and call.tags:
                row.tags = row.tags | call.tags[i]
        written = [self.rows[sample_id] for sample_id in sample_ids]
        for key, view in self.views.items():
            view += [row for row in self.ready(key, written) if row not in view]
        return freed

    def clear(self, sample_ids: Iterable[str]) -> tuple[int, int, list[Run]]:
        """Remove rows. Returns how many, the bytes of their values, and the room that became free."""
        rows = [self.rows.pop(sample_id) for sample_id in sample_ids if sample_id in self.rows]
        size = sum(len(value.data) for row in rows for value in row.values.values())
        freed = [piece for row in rows for piece in release(row, list(row.values))]
        for row in rows:
            through = self.consumed and all(row in consumed for consumed in self.consumed.values())
            self.removed["consumed" if through else "cleared"] += 1
        for task, claimed in self.claimed.items():
            self.ended[task]["cleared"] += sum(row in claimed for row in rows)
        for states in (self.claimed, self.consumed):
            for task in states:
                states[task] = [row for row in states[task] if row not in rows]
        self._leave_views(rows, self.definition.tasks)
        self.cleared_total += len(rows)
        return len(rows), size, freed

    def why_not_read(self, sample_ids: Sequence[str], names: Sequence[str]) -> set[Reason]:
        rows = [self.rows.get(sample_id) for sample_id in sample_ids]
        reasons = set() if all(rows) else {Reason.SAMPLE_NOT_FOUND}
        if not set(names) <= set(self.definition.fields):
            reasons.add(Reason.FIELD_NOT_DECLARED)
        if any(row and not set(names) <= row.values.keys() for row in rows):
            reasons.add(Reason.FIELD_NOT_PRODUCED)
        return reasons

    # -- description ---------------------------------------------------------------------------------------------------

    def info(self, waiting: Counter[str]) -> PartitionInfo:
        tasks = []
        for task in self.definition.tasks:
            claimed, consumed = len(self.claimed[task]), len(self.consumed[task])
            untaken = len(self.rows) - claimed - consumed
            counts = (untaken, claimed, consumed, self.consumed_total[task], waiting[task], 0, 0)
            tasks.append(TaskInfo(task, *counts, self.delivered[task], dict(+self.ended[task])))
        fields = tuple(map(self._field_info, self.definition.fields))
        size = sum(info.size_bytes for info in fields)
        totals = (len(self.rows), size, self.put_total, self.cleared_total)
        removed = {why: self.removed[why] for why in ("consumed", "cleared", "rolled_back")}
        return PartitionInfo(self.definition, fields, tuple(tasks), *totals, removed)

    def _field_info(self, name: str) -> FieldInfo:
        values = [row.values[name] for row in self.rows.values() if name in row.values]
        size = sum(len(value.data) for value in values)
        return FieldInfo(name, self.shapes.get(name), name in self.definition.per_token_fields, len(values), size)

    @property
    def is_consumed(self) -> bool:
        through = all(len(consumed) == len(self.rows) for consumed in self.consumed.values())
        return self.put_total >= self.definition.num_samples and through


def release(row: Row, names: Iterable[str]) -> list[Run]:
    """Take values from a row. Their room is free at once, or when the last reader lets go of the row."""
    pieces = [piece for name in names if name in row.values for piece in row.values.pop(name).pieces]
    if row.pins:
        row.owed += pieces
        return []
    return pieces


def check_grant(grant: Grant, rows: Sequence[Row]) -> None:
    assert grant.sample_ids == tuple(row.sample_id for row in rows)
    assert grant.sequence_lengths.tolist() == [row.length for row in rows]
    assert grant.tags == tuple(row.tags for row in rows)


def entry_shape(shape: Shape) -> tuple[int, ...]:
    return shape.row_shape[1:] if shape.kind == "dense" else shape.row_shape


def entry_bytes(shape: Shape) -> int:
    return 1 if shape.kind == "object" else ITEM_SIZES[shape.dtype] * int(np.prod(entry_shape(shape), dtype=int))


def row_entries(spec: ColumnSpec, row: int) -> int:
    if spec.lengths is not None:
        return int(spec.lengths[row])
    return spec.shape.row_shape[0] if spec.shape.row_shape else 1


def shared_shape(held: Shape | None, new: Shape) -> Shape | None:
    """The shape of a field that held one shape and receives another; None where it must not."""
    if held is None or held == new:
        return new
    scalars = any(shape.kind == "dense" and shape.row_shape == () for shape in (held, new))
    if scalars or "object" in (held.kind, new.kind):
        return None
    same = (held.dtype, entry_shape(held)) == (new.dtype, entry_shape(new))
    return Shape("jagged", new.dtype, entry_shape(new)) if same else None
