"""A partition as lists of rows, groups, lines and held rows; every question is answered by looking at all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.core.machine.arena import Arena
from tests.core.machine.lines import Line, Unit
from tests.core.machine.things import Group, Held, Ledger, Row, Standing, Step, Wish, Write

from dataplane_server.core.calls.answers import DeadLetter, FieldInfo, PartitionInfo, SampleTask, TaskInfo
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import CommitClaim, PutSamples
from dataplane_server.core.calls.values import Definition
from rl_dataplane.v1.element_types import ITEM_SIZES

STATES = ("untaken", "claimed", "consumed", "delayed", "dead")


class PartitionModel:
    """`rows` is in order of arrival."""

    def __init__(self, definition: Definition, arena: Arena) -> None:
        self.definition = definition
        self.arena = arena
        self.rows: list[Row] = []
        self.groups: list[Group] = []
        self.shapes: dict[str, Shape] = {}
        self.ledgers = {task: Ledger() for task in definition.tasks}
        self.lines: list[Line] = []
        self.held: list[Held] = []
        self.steps: dict[str, list[Step]] = {task: [] for task in definition.tasks}
        self.put_total = 0
        self.removed: Counter[str] = Counter()

    @property
    def partition_id(self) -> str:
        return self.definition.partition_id

    def redefine(self, definition: Definition) -> None:
        """All cursors begin anew; what was handed out stays counted for tasks that stay."""
        self.definition = definition
        self.shapes = {name: shape for name, shape in self.shapes.items() if name in definition.fields}
        self.ledgers = {task: self.ledgers.get(task) or Ledger() for task in definition.tasks}
        self.steps = {task: [] for task in definition.tasks}
        self.held = []
        fields = set(definition.fields)
        self.lines = [line for line in self.lines if line.task in definition.tasks and line.fields <= fields]
        for ledger in self.ledgers.values():
            ledger.consumed = 0
        for row in self.rows:
            row.standings = self.new_standings()
        for line in self.lines:
            line.restart(self.rows)

    def new_standings(self) -> dict[str, Standing]:
        return {task: Standing() for task in self.definition.tasks}

    # -- rows ----------------------------------------------------------------------------------------------------------

    def find(self, sample_id: str) -> Row | None:
        return next((row for row in self.rows if row.sample_id == sample_id), None)

    def found(self, sample_ids: Iterable[str]) -> list[Row]:
        """Those that are there, in the order in which they are named."""
        return [row for sample_id in sample_ids if (row := self.find(sample_id)) is not None]

    def create(self, sample_id: str) -> Row:
        row = Row(sample_id, self.partition_id, self.new_standings())
        self.rows.append(row)
        self.put_total += 1
        return row

    def put(self, write: Write, put: PutSamples) -> int:
        """Apply a put to its rows. Returns how many are new."""
        before = len(self.rows)
        rows = [self.find(sample_id) or self.create(sample_id) for sample_id in put.sample_ids]
        for row, tags in zip(rows, put.tags or (), strict=False):
            row.tags = row.tags | tags
        self.write(write, rows)
        self.became_ready(rows)
        return len(self.rows) - before

    def write(self, write: Write, rows: Sequence[Row]) -> None:
        """Rows get the values of a write; those of a shared put all get the same."""
        for i, row in enumerate(rows):
            row.length = max(self.lengths(write.call, i, row) - {-1}, default=row.length)
        for spec in write.call.columns:
            self.shapes[spec.name] = widened(self.shapes.get(spec.name), spec.shape) or spec.shape
            values = write.values[spec.name]
            for row, value in zip(rows, values if len(values) == len(rows) else values * len(rows), strict=True):
                row.get(spec.name, value, self.arena)

    def why_not_write(self, call: PutSamples | CommitClaim, rows: Sequence[Row | None], most_tags: int) -> set[Reason]:
        """What values, lengths and tags contradict. rows: None for those that are new."""
        reasons = set()
        for spec in call.columns:
            if spec.name not in self.definition.fields:
                reasons.add(Reason.FIELD_NOT_DECLARED)
            elif widened(self.shapes.get(spec.name), spec.shape) is None or self.lacks_tokens(spec):
                reasons.add(Reason.FIELD_MISMATCH)
        for i, row in enumerate(rows):
            if len(self.lengths(call, i, row) - {-1}) > 1 or not self.says_length(call, i, row):
                reasons.add(Reason.LENGTH_MISMATCH)
            tags = call.tags[i] if isinstance(call, PutSamples) and call.tags else {}
            if tags and len((row.tags if row else {}) | tags) > most_tags:
                reasons.add(Reason.INVALID_REQUEST)
        return reasons

    def lengths(self, call: PutSamples | CommitClaim, i: int, row: Row | None, *, of_dense: bool = True) -> set[int]:
        """All that a row's length would be, by what the call brings and what the row keeps. of_dense: with what dense
        columns say.
        """
        per_token = self.definition.per_token_fields
        brought = [spec for spec in call.columns if spec.name in per_token]
        given = call.sequence_lengths if isinstance(call, PutSamples) else None
        if not brought and given is None:
            return set()
        replaced = {spec.name for spec in brought}
        held = {} if row is None else {name: value for name, value in row.values.items() if name in per_token}
        kept = {value.entries for name, value in held.items() if name not in replaced}
        said = {row_entries(spec, i) for spec in brought if of_dense or spec.shape.kind != "dense"}
        return kept | said | (set() if given is None else {int(given[i])})

    def lacks_tokens(self, spec: ColumnSpec) -> bool:
        """Whether a per-token field gets one value a row."""
        return spec.name in self.definition.per_token_fields and spec.shape.kind == "dense" and not spec.shape.row_shape

    def says_length(self, call: PutSamples | CommitClaim, i: int, row: Row | None) -> bool:
        """Whether something vouches for the length of a row that gets a dense per-token field."""
        per_token = self.definition.per_token_fields
        dense = any(spec.shape.kind == "dense" and spec.name in per_token for spec in call.columns)
        return not dense or bool(self.lengths(call, i, row, of_dense=False) - {-1})

    def became_ready(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        for line in self.lines:
            line.add(rows)

    def remove(self, rows: Sequence[Row], why: str = "") -> int:
        """Take rows out; the bytes that nobody else holds."""
        size = self.size_bytes
        for row in rows:
            self.removed[why or self._why_removed(row)] += 1
            for task, standing in row.standings.items():
                if standing.state == "claimed":
                    self.ledgers[task].ended["cleared"] += 1
            row.resident = False
            row.lose(list(row.values), self.arena)
            self.rows.remove(row)
            if row.group is not None:
                row.group.rows.remove(row)
        self.groups = [group for group in self.groups if group.rows]
        for line in self.lines:
            line.sift()
        self.became_ready(other for row in rows if row.group is not None for other in row.group.rows)
        return size - self.size_bytes

    def _why_removed(self, row: Row) -> str:
        through = row.standings and all(standing.state == "consumed" for standing in row.standings.values())
        return "consumed" if through else "cleared"

    @property
    def size_bytes(self) -> int:
        return sum(len(value.data) for value in {value for row in self.rows for value in row.values.values()})

    def why_not_claim(self, wish: Wish) -> set[Reason]:
        reasons = set() if wish.task in self.definition.tasks else {Reason.TASK_NOT_REGISTERED}
        declared = set(wish.required_fields) <= set(self.definition.fields)
        return reasons if declared else reasons | {Reason.FIELD_NOT_DECLARED}

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def line(self, wish: Wish) -> Line:
        key = (wish.task, frozenset(wish.required_fields), wish.whole_groups)
        for line in self.lines:
            if (line.task, line.fields, line.whole) == key:
                return line
        self.lines.append(Line(*key, self.rows))
        return self.lines[-1]

    def first(self, wish: Wish) -> list[Unit]:
        """What a claim gets for which there is enough."""
        return self.line(wish).first(wish.batch_size, wish.max_tokens)

    def hold(self, task: str, rows: Sequence[Row]) -> None:
        """Untaken rows leave the line for a step."""
        for row in rows:
            row.standings[task].state = "delayed"
        self._sift(task)

    def deliver(self, task: str, rows: Sequence[Row]) -> None:
        for row in rows:
            row.standings[task].state = "claimed"
            row.standings[task].deliveries += 1
        self.ledgers[task].delivered += len(rows)
        self._sift(task)

    def consume(self, task: str, rows: Sequence[Row]) -> None:
        for row in rows:
            row.standings[task].state = "consumed"
        self.ledgers[task].consumed += len(rows)
        self.ledgers[task].ended["committed"] += len(rows)

    def take_back(self, task: str, rows: Sequence[Row], how: str, until: float | None = None) -> None:
        """Deliveries that came to nothing, through no fault of the rows."""
        self.ledgers[task].ended[how] += len(rows)
        for row in rows:
            row.standings[task].deliveries -= 1
        self.untake(task, rows, until)

    def fail(self, task: str, rows: Sequence[Row], how: str, reason: str, until: float | None = None) -> None:
        """Deliveries that failed."""
        self.ledgers[task].ended[how] += len(rows)
        most = self.definition.max_deliveries
        for row in rows:
            standing = row.standings[task]
            if most and standing.deliveries >= most:
                standing.state, standing.reason = "dead", reason
        self.untake(task, [row for row in rows if row.standings[task].state != "dead"], until)

    def untake(self, task: str, rows: Sequence[Row], until: float | None = None) -> None:
        """Rows come first in line, at once (None), at a time, or when their step is forgotten (infinity)."""
        for row in rows:
            row.standings[task].state = "untaken" if until is None else "delayed"
        if until == math.inf:
            return
        if until is not None:
            self.held.append(Held(until, list(rows), task))
            return
        for line in self.lines:
            if line.task == task:
                line.give_back(rows)

    def restore(self, task: str, rows: Sequence[Row]) -> None:
        """As if the task had never taken the rows; those that it has come first in line."""
        taken = [row for row in rows if row.standings[task].state != "untaken"]
        for row in rows:
            self.ledgers[task].ended["reset"] += row.standings[task].state == "claimed"
            row.standings[task] = Standing()
            self._let_go(task, row)
        self.untake(task, taken)

    def end_delay(self, held: Held) -> None:
        self.held.remove(held)
        self.untake(held.task, [row for row in held.rows if row.resident])

    def _let_go(self, task: str, row: Row) -> None:
        for held in self.held:
            if held.task == task and row in held.rows:
                held.rows.remove(row)

    def _sift(self, task: str) -> None:
        for line in self.lines:
            if line.task == task:
                line.sift()

    # -- description ---------------------------------------------------------------------------------------------------

    def count(self, task: str, state: str) -> int:
        return sum(row.standings[task].state == state for row in self.rows)

    def info(self, waiting: Counter[str]) -> PartitionInfo:
        return PartitionInfo(
            self.definition,
            tuple(map(self._field_info, self.definition.fields)),
            tuple(self._task_info(task, waiting[task]) for task in self.definition.tasks),
            len(self.rows),
            self.size_bytes,
            self.put_total,
            self.put_total - len(self.rows),
            {why: self.removed[why] for why in ("consumed", "cleared", "rolled_back")},
            sum(group.state == "reserved" for group in self.groups),
        )

    def _field_info(self, name: str) -> FieldInfo:
        values = [row.values[name] for row in self.rows if name in row.values]
        size = sum(len(value.data) for value in set(values))
        return FieldInfo(name, self.shapes.get(name), name in self.definition.per_token_fields, len(values), size)

    def _task_info(self, task: str, waiting: int) -> TaskInfo:
        untaken, claimed, consumed, delayed, dead = (self.count(task, state) for state in STATES)
        ledger = self.ledgers[task]
        ended = {how: rows for how, rows in ledger.ended.items() if rows}
        of_rows = (untaken, claimed, consumed, ledger.consumed, waiting, delayed, dead)
        return TaskInfo(task, *of_rows, ledger.delivered, ended)

    @property
    def is_consumed(self) -> bool:
        consumed = all(self.count(task, "consumed") == len(self.rows) for task in self.definition.tasks)
        return consumed and self.put_total >= self.definition.num_samples

    def dead_letters(self, task: str) -> list[DeadLetter]:
        standings = [(row.sample_id, row.standings[task]) for row in self.rows]
        return [DeadLetter(name, one.deliveries, one.reason) for name, one in standings if one.state == "dead"]

    def sample_tasks(self, row: Row, claim_ids: dict[str, str]) -> tuple[SampleTask, ...]:
        """claim_ids: of the row, by task."""
        return tuple(
            SampleTask(task, standing.state, standing.deliveries, claim_ids.get(task, ""))
            for task, standing in row.standings.items()
        )


def entry_shape(shape: Shape) -> tuple[int, ...]:
    return shape.row_shape[1:] if shape.kind == "dense" else shape.row_shape


def entry_bytes(shape: Shape) -> int:
    return 1 if shape.kind == "object" else ITEM_SIZES[shape.dtype] * math.prod(entry_shape(shape))


def row_entries(spec: ColumnSpec, row: int) -> int:
    if spec.lengths is not None:
        return int(spec.lengths[row])
    return spec.shape.row_shape[0] if spec.shape.row_shape else 1


def widened(held: Shape | None, new: Shape) -> Shape | None:
    """The shape of a field that held one shape and receives another; None where it must not."""
    if held is None or held == new:
        return new
    scalars = any(shape.kind == "dense" and shape.row_shape == () for shape in (held, new))
    same = (held.dtype, entry_shape(held)) == (new.dtype, entry_shape(new))
    if scalars or not same or "object" in (held.kind, new.kind):
        return None
    return Shape("jagged", new.dtype, entry_shape(new))
