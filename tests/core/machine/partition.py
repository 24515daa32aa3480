"""A partition as lists of rows, groups, lines and held rows; every question is answered by looking at all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tests.core.machine.arena import Arena
from tests.core.machine.lines import Kind, Line
from tests.core.machine.things import VERSIONS, Group, Held, Ledger, Row, Standing, Step, Value, Wish, Write
from tests.core.row_filters import fits

from dataplane_server.core.calls.answers import DeadLetter, FieldInfo, PartitionInfo, SampleTask, TaskInfo
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.filters import Filter, Term
from dataplane_server.core.calls.flow import FlowPolicy
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.policies import TaskPolicy
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import (
    BeginRead,
    ClaimSamples,
    CommitClaim,
    PutSamples,
    ReserveGroup,
    unit_of,
)
from dataplane_server.core.calls.values import Definition
from rl_dataplane.v1.element_types import ITEM_SIZES

REASONS = ("consumed", "cleared", "rolled_back", "retired", "stale", "filtered", "evicted", "lost", "failed")
STATES = ("untaken", "claimed", "consumed", "delayed", "dead")


class PartitionModel:
    """`rows` is in order of arrival."""

    def __init__(self, definition: Definition, arena: Arena) -> None:
        self.definition = definition
        self.arena = arena
        self.rows: list[Row] = []
        self.groups: list[Group] = []
        self.attempts: dict[str, int] = {}  # how often a group with a bound was rolled back, by id
        self.shapes: dict[str, Shape] = {}
        self.ledgers = {task: Ledger() for task in definition.tasks}
        self.lines: list[Line] = []
        self.held: list[Held] = []
        self.steps: dict[str, list[Step]] = {task: [] for task in definition.tasks}
        self.put_total = 0
        self.closed = False
        self.removed: Counter[str] = Counter()
        self.policies = {task: TaskPolicy() for task in definition.tasks}
        self.trainer_version: int | None = None
        self.seen_version: int | None = None
        self.followed_version: int | None = None
        self.flow = FlowPolicy()
        self.checks_entrants = False
        self.waiting_calls = 0
        self.drawn = self.put_before = self.drawn_before = self.deduplicated = 0
        self.before_band: list[Row] = []

    @property
    def partition_id(self) -> str:
        return self.definition.partition_id

    def redefine(self, definition: Definition) -> None:
        """All cursors begin anew; what was handed out stays counted for tasks that stay."""
        self.definition = definition
        self.closed, self.checks_entrants = False, True
        self.shapes = {name: shape for name, shape in self.shapes.items() if name in definition.fields}
        self.ledgers = {task: self.ledgers.get(task) or Ledger() for task in definition.tasks}
        self.policies = {task: self.policies.get(task) or TaskPolicy() for task in definition.tasks}
        self.steps = {task: [] for task in definition.tasks}
        self.held = []
        fields = set(definition.fields)
        self.lines = [line for line in self.lines if line.task in definition.tasks and line.kind.fields <= fields]
        for ledger in self.ledgers.values():
            ledger.consumed, ledger.taken_before = 0, ledger.ended["committed"]
        for row in self.rows:
            row.standings = self.new_standings()
        for line in self.lines:
            line.restart(self.rows)

    def extend(self, definition: Definition) -> None:
        """More is declared; new tasks have taken nothing, and all else stays as it is."""
        self.definition = definition
        for task in definition.tasks:
            self.ledgers.setdefault(task, Ledger())
            self.policies.setdefault(task, TaskPolicy())
            self.steps.setdefault(task, [])
            for row in self.rows:
                row.standings.setdefault(task, Standing())

    def declare(self, names: Iterable[str]) -> None:
        fields = self.definition.fields
        new = tuple(name for name in names if name not in fields)
        self.definition = replace(self.definition, fields=(*fields, *new))

    def new_standings(self) -> dict[str, Standing]:
        return {task: Standing() for task in self.definition.tasks}

    # -- rows ----------------------------------------------------------------------------------------------------------

    def find(self, sample_id: str) -> Row | None:
        return next((row for row in self.rows if row.sample_id == sample_id), None)

    def found(self, sample_ids: Iterable[str]) -> list[Row]:
        """Those that are there, in the order in which they are named."""
        return [row for sample_id in sample_ids if (row := self.find(sample_id)) is not None]

    def has_some_of(self, call: ReserveGroup) -> bool:
        """Whether the group of a reservation, or a row of it, is there."""
        return bool(self.found(call.sample_ids)) or any(call.group_id == group.group_id for group in self.groups)

    def create(self, sample_id: str) -> Row:
        row = Row(sample_id, self.partition_id, self.new_standings())
        self.rows.append(row)
        self.put_total += 1
        return row

    def put(self, write: Write, put: PutSamples, group: Group | None) -> int:
        """Apply a put to its rows. Returns how many are new. group: whose rows they become, if any."""
        before = len(self.rows)
        rows = [self.find(sample_id) or self.create(sample_id) for sample_id in put.sample_ids]
        for row in rows if group is not None else ():
            if row.group is None:
                self.join(row, group)
        for row, tags in zip(rows, put.tags or (), strict=False):
            row.tag(tags)
            self.see(row.version)
        self.write(write, rows)
        self.update(rows)
        return len(self.rows) - before

    def join(self, row: Row, group: Group | None) -> None:
        assert group is not None
        row.group = group
        group.rows.append(row)
        row.tag({} if group.start is None else {"weight_version": group.start})
        self.see(row.version)
        for name, value in group.shared.items():
            row.get(name, value, self.arena)

    def share(self, write: Write, group: Group) -> None:
        """The rows of a group get the same values, and so will those that join it."""
        self.write(write, group.rows)
        for name, (value,) in write.values.items():
            group.shared[name] = value
            value.holders.add(group)

    def write(self, write: Write, rows: Sequence[Row]) -> None:
        """Rows get the values of a write; those of a shared put all get the same."""
        per_token = any(spec.name in self.definition.per_token_fields for spec in write.call.columns)
        for i, row in enumerate(rows):
            row.length = max(self.lengths(write.call, i, row) - {-1}, default=row.length)
            row.revision += per_token
        self.declare(spec.name for spec in write.call.columns)
        for spec in write.call.columns:
            self.shapes[spec.name] = widened(self.held_shape(spec.name), spec.shape) or spec.shape
            values = self.known(spec.name, write.values[spec.name])
            got = list(zip(rows, values if len(values) == len(rows) else values * len(rows), strict=True))
            for row, value in got:
                value.holders.add(row)
            for row, value in got:
                row.get(spec.name, value, self.arena)

    def known(self, name: str, values: Sequence[Value]) -> list[Value]:
        """The values; in place of each that is put once an equal one that a row has or that comes before it."""
        found = [row.values[name] for row in self.rows if name in row.values]
        for value in values:
            same = [one for one in found if value.data and value.once and one.once and one.data == value.data]
            if same:
                self.arena.free(value.pieces)
                self.deduplicated += len(value.data)
            found.append(same[0] if same else value)
        return found[len(found) - len(values) :]

    def why_not_name(self, names: Iterable[str], most_fields: int) -> set[Reason]:
        """Why fields may not be named in a call that would declare them."""
        new = set(names) - set(self.definition.fields)
        if new and not self.definition.open:
            return {Reason.FIELD_NOT_DECLARED}
        return {Reason.INVALID_REQUEST} if new and len(new) + len(self.definition.fields) > most_fields else set()

    def why_not_write(self, call: PutSamples | CommitClaim, rows: Sequence[Row | None], limits: Limits) -> set[Reason]:
        """What values, lengths and tags contradict. rows: None for those that are new."""
        reasons = self.why_not_name([spec.name for spec in call.columns], limits.max_fields)
        for spec in call.columns:
            if widened(self.held_shape(spec.name), spec.shape) is None or self.lacks_tokens(spec):
                reasons.add(Reason.FIELD_MISMATCH)
            if appends(call) and (spec.name not in self.definition.per_token_fields or spec.shape.kind != "jagged"):
                reasons.add(Reason.INVALID_REQUEST)
        if self.definition.per_token_fields & set(getattr(call, "once", ())):
            reasons.add(Reason.INVALID_REQUEST)
        for i, row in enumerate(rows):
            if len(self.lengths(call, i, row) - {-1}) > 1 or not self.says_length(call, i, row):
                reasons.add(Reason.LENGTH_MISMATCH)
            tags = call.tags[i] if isinstance(call, PutSamples) and call.tags else {}
            held = row.tags if row else {}
            if len(held | tags) > max(limits.max_tags_per_row, len(held)):
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
        before = {name: value.entries for name, value in held.items()} if appends(call) else {}
        told = [spec for spec in brought if of_dense or spec.shape.kind != "dense"]
        said = {row_entries(spec, i) + before.get(spec.name, 0) for spec in told}
        return kept | said | (set() if given is None else {int(given[i])})

    def held_shape(self, name: str) -> Shape | None:
        """The shape of a field of which a row, or a reserved group, has values."""
        held = any(name in row.values for row in self.rows) or any(name in group.shared for group in self.groups)
        return self.shapes.get(name) if held else None

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

    def update(self, rows: Iterable[Row]) -> None:
        """Rows got other values or tags, or became visible."""
        rows = list(rows)
        for line in self.lines:
            line.update(rows)

    # -- staleness -----------------------------------------------------------------------------------------------------

    @property
    def weight_version(self) -> int | None:
        return self.seen_version if self.trainer_version is None else self.trainer_version

    def see(self, version: int | None) -> None:
        if version is not None and version in VERSIONS:
            self.seen_version = version if self.seen_version is None else max(version, self.seen_version)

    def staleness(self, row: Row) -> int:
        current = self.weight_version
        return -1 if current is None or row.version is None else max(current - row.version, 0)

    def is_stale(self, task: str, row: Row) -> bool:
        """Whether the row is beyond the task's bound."""
        bound = self.policies[task].bound
        return bound is not None and (row.version is None or self.staleness(row) > bound)

    def fits(self, row: Row, where: Filter) -> bool:
        return fits(where, lambda term: self._held(row, term))

    def takes_fields_for_tags(self, where: Filter) -> bool:
        """Whether a filter compares what is a field, and a tag of none of the rows."""
        compared = {term.subject for term in where if not term.of_row and term.operator != "is null"}
        named = compared.intersection(self.definition.fields)
        return bool(self.rows) and any(
            all(self.fits(row, (Term("is null", tag),)) for row in self.rows) for tag in named
        )

    def _held(self, row: Row, term: Term) -> object:
        if not term.of_row:
            return row.tags.get(term.subject)
        fact = row.length if term.subject == "sequence_length" else self.staleness(row)
        return fact if fact >= 0 else None  # below 0: unknown

    def is_excluded(self, task: str, row: Row) -> bool:
        """Whether a row does not fit the filter of the task."""
        return not self.fits(row, self.policies[task].where)

    def is_rejected(self, task: str, row: Row) -> bool:
        """Whether it does not, and lacks nothing that the filter names."""
        named = [term for term in self.policies[task].where if term.subject]
        return self.is_excluded(task, row) and all(self._held(row, term) is not None for term in named)

    def withholds(self, task: str, row: Row) -> bool:
        """Whether the task does not get the row."""
        return self.is_stale(task, row) or self.is_excluded(task, row)

    def follow_version(self) -> None:
        if self.followed_version != self.weight_version:
            self.followed_version = self.weight_version
            for task in self.definition.tasks:
                self.ledgers[task].taken_before = self.ledgers[task].ended["committed"] + self.count(task, "claimed")
                self._refresh(task)

    def follow_policy(self, task: str, policy: TaskPolicy) -> None:
        self.policies[task] = policy
        self._refresh(task)

    def _refresh(self, task: str) -> None:
        """A task withholds other rows than before."""
        for line in self.lines:
            if line.task == task:
                line.sift()
                line.add(self.rows)

    def is_hinted(self, group: Group) -> bool:
        """Whether a producer is told that its rows are too stale already."""
        if group.start is None or self.weight_version is None:
            return False
        bounds = [policy.bound for policy in self.policies.values() if policy.bound is not None]
        return any(self.weight_version - group.start > bound for bound in bounds)

    def droppable(self, task: str, why: str) -> list[Row]:
        """Rows that a task drops for a reason, and the rows of their groups."""
        gone: dict[Row, None] = {}
        for row in self.rows if getattr(self.policies[task], f"drops_{why}") else ():
            unwanted = self.is_rejected(task, row)
            if why == "stale":
                unwanted = row.version is not None and self.is_stale(task, row)
            together = row.group.rows if row.group is not None else [row]
            held = any(one.state == "claimed" for each in together for one in each.standings.values())
            if unwanted and row.standings[task].state == "untaken" and not held and not row.hidden:
                gone.update(dict.fromkeys(together))
        return list(gone)

    @property
    def has_droppable(self) -> bool:
        return any(self.droppable(task, why) for task in self.definition.tasks for why in ("stale", "excluded"))

    def remove(self, rows: Sequence[Row], why: str = "") -> int:
        """Take rows out; the bytes that nobody else holds."""
        size = self.size_bytes
        for row in rows:
            self.removed[why or self._why_removed(row)] += 1
            self.put_before -= why in ("rolled_back", "failed") and row in self.before_band
            for task, standing in row.standings.items():
                if standing.state == "claimed":
                    self.ledgers[task].end(1, "cleared")
            row.resident = False
            row.lose(list(row.values), self.arena)
            self.rows.remove(row)
            if row.group is not None:
                row.group.rows.remove(row)
                if not row.group.rows:
                    self.forget(row.group)
        for line in self.lines:
            line.sift()
        self.became_ready(other for row in rows if row.group is not None for other in row.group.rows)
        if rows and not self.rows and why != "evicted" and self.surplus() > 0:
            self.begin_band()
        return size - self.size_bytes

    def forget(self, group: Group) -> None:
        """A group without rows is gone."""
        self.groups.remove(group)
        group.end_sharing(self.arena)

    def _why_removed(self, row: Row) -> str:
        through = row.standings and all(standing.state == "consumed" for standing in row.standings.values())
        return "consumed" if through else "cleared"

    @property
    def size_bytes(self) -> int:
        return sum(self._size_of(name) for name in self.definition.fields)

    def _size_of(self, name: str) -> int:
        """Bytes of a field, those that are shared once."""
        holders: list[Row | Group] = [*self.rows, *self.groups]
        held = {(one.values if isinstance(one, Row) else one.shared).get(name) for one in holders}
        return sum(len(value.data) for value in held if value is not None)

    def why_not_claim(self, wish: Wish, most_fields: int) -> set[Reason]:
        reasons = set() if wish.task in self.definition.tasks else {Reason.TASK_NOT_REGISTERED}
        if self.definition.clear_when_consumed and isinstance(wish, ClaimSamples) and wish.consume:
            reasons.add(Reason.INVALID_REQUEST)
        return reasons | self.why_not_name(wish.required_fields, most_fields)

    def is_hopeless(self, wish: Wish) -> bool:
        """Whether too few rows are left for a claim, and no more will come."""
        if not self.is_ending:
            return False
        states = {row: row.standings[wish.task].state for row in self.rows}
        untaken = [row for row in self.rows if states[row] == "untaken"]
        kept = [row for row in untaken if self.is_stale(wish.task, row) or self.is_rejected(wish.task, row)]
        lost = kept + [row for row in self.rows if states[row] in ("consumed", "dead")]
        units = {row.group if wish.whole_groups and row.group else row for row in self.rows}
        gone = {row.group if wish.whole_groups and row.group else row for row in lost}
        left = units - gone
        if wish.whole_groups and unit_of(wish) == "rows":
            return sum((row.group or row) in left for row in self.rows) < wish.min_size
        return len(left) < wish.min_size

    # -- reads ---------------------------------------------------------------------------------------------------------

    def shape_of_read(self, name: str, call: BeginRead) -> Shape:
        shape, is_cut = self.shapes[name], call.token_starts is not None and name in self.definition.per_token_fields
        return Shape("jagged", shape.dtype, entry_shape(shape)) if is_cut else shape

    def cut(self, value: Value, name: str, call: BeginRead, row: int) -> tuple[int, bytes]:
        """Entries and bytes that a read finds of the value of its row."""
        starts, ends = call.token_starts, call.token_ends
        if starts is None or ends is None or name not in self.definition.per_token_fields:
            return value.entries, value.data
        which = row if len(starts) > 1 else 0
        entries = range(value.entries)[int(starts[which]) : int(ends[which])]
        size = entry_bytes(self.shapes[name])
        return len(entries), value.data[entries.start * size : entries.stop * size]

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def line(self, wish: Wish) -> Line:
        policy = self.policies[wish.task]
        order = (policy.order, policy.order_tag) if wish.order is None else (wish.order, wish.order_tag)
        kind = Kind(wish.task, frozenset(wish.required_fields), wish.whole_groups, *order)
        for line in self.lines:
            if line.kind == kind:
                return line
        self.lines.append(Line(kind, self.rows, self.withholds))
        return self.lines[-1]

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
        self.ledgers[task].end(len(rows), how)
        for row in rows:
            row.standings[task].deliveries -= 1
        self.untake(task, rows, until)

    def fail(self, task: str, rows: Sequence[Row], how: str, reason: str, until: float | None = None) -> None:
        """Deliveries that failed."""
        self.ledgers[task].end(len(rows), how)
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
            self.ledgers[task].end(int(row.standings[task].state == "claimed"), "reset")
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
            {why: self.removed[why] for why in REASONS},
            sum(group.state == "reserved" for group in self.groups),
            closed=self.closed,
            weight_version=self.weight_version,
            flow=self.flow,
            waiting_calls=self.waiting_calls,
            deduplicated_bytes_total=self.deduplicated,
        )

    def _field_info(self, name: str) -> FieldInfo:
        rows, per_token = sum(name in row.values for row in self.rows), name in self.definition.per_token_fields
        return FieldInfo(name, self.shapes.get(name), per_token, rows, self._size_of(name))

    def _task_info(self, task: str, waiting: int) -> TaskInfo:
        untaken, claimed, consumed, delayed, dead = (self.count(task, state) for state in STATES)
        ledger = self.ledgers[task]
        ended = {how: rows for how, rows in ledger.ended.items() if rows}
        of_rows = (untaken, claimed, consumed, ledger.consumed, waiting, delayed, dead)
        rows = [row for row in self.rows if row.standings[task].state == "untaken"]
        fresh = [row for row in rows if not self.is_stale(task, row)]
        rejected = sum(self.is_rejected(task, row) for row in fresh)
        more = {"stale_rows": len(rows) - len(fresh), "policy": self.policies[task], "excluded_rows": rejected}
        more |= self._steps_info(task)
        return TaskInfo(task, *of_rows, ledger.delivered, ended, **more)  # type: ignore[arg-type]

    def _steps_info(self, task: str) -> dict[str, object]:
        """The greatest step, and that with which a trainer goes on."""
        steps = sorted(self.steps[task], key=lambda step: step.wish.step)
        if not steps:
            return {}
        newest = steps[-1].wish.step
        left = [step.wish.step for step in steps if not all(shard.is_committed for shard in step.shards)]
        return {"newest_step": newest, "next_step": left[0] if left else newest + 1}

    @property
    def offered(self) -> int:
        """Rows that a draw could have, or may yet."""
        return self.put_total - self.removed["rolled_back"] - self.removed["failed"]

    def begin_band(self) -> None:
        self.put_before, self.drawn_before, self.before_band = self.offered, self.drawn, list(self.rows)

    def surplus(self, more: int = 0) -> float:
        ratio = 0.0 if self.flow.band is None else self.flow.band.samples_per_insert
        return ratio * (self.offered + more - self.put_before) - (self.drawn - self.drawn_before)

    @property
    def is_ending(self) -> bool:
        return self.closed and not any(group.state == "reserved" for group in self.groups)

    @property
    def is_consumed(self) -> bool:
        consumed = all(self.count(task, "consumed") == len(self.rows) for task in self.definition.tasks)
        announced = self.put_total - self.removed["rolled_back"] >= self.definition.num_samples
        return consumed and (self.closed or announced)

    def dead_letters(self, task: str) -> list[DeadLetter]:
        standings = [(row.sample_id, row.standings[task]) for row in self.rows]
        return [DeadLetter(name, one.deliveries, one.reason) for name, one in standings if one.state == "dead"]

    def sample_tasks(self, row: Row, claim_ids: dict[str, str]) -> tuple[SampleTask, ...]:
        """claim_ids: of the row, by task."""
        return tuple(
            SampleTask(task, standing.state, standing.deliveries, claim_ids.get(task, ""), *self._shard_of(task, row))
            for task, standing in row.standings.items()
        )

    def _shard_of(self, task: str, row: Row) -> tuple[int | None, int | None]:
        """The step begun last and the rank whose shard has a row."""
        for step in reversed(self.steps[task]):
            for rank, shard in enumerate(step.shards):
                if any(each is row for each in shard.rows):
                    return step.wish.step, rank
        return None, None


def appends(call: PutSamples | CommitClaim) -> bool:
    return isinstance(call, PutSamples) and call.append


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
