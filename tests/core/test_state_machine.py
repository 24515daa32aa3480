"""The core against a model made of dicts, lists and one bytearray, call by call and bit for bit.

The model follows what is promised to callers, not how the core does it. It owns the arena: bytes are copied where a
reservation says, freed bytes are scribbled over, and whatever a read names must be what was put. Where promises leave
the core a choice (whether a fragmented arena has room) the model takes the core's answer if it is one of those allowed.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from dataplane_server.core.calls import (
    Admitted,
    ClaimRequest,
    ClearResult,
    Commit,
    CommitResult,
    Definition,
    DropResult,
    Effect,
    Failed,
    FieldInfo,
    Grant,
    Granted,
    PartitionInfo,
    Put,
    PutResult,
    ReadPlan,
    ReleaseResult,
    Reservation,
    TaskInfo,
    Waiting,
)
from dataplane_server.core.columns import DTYPE_BYTES, ColumnSpec, Shape
from dataplane_server.core.limits import Limits
from dataplane_server.core.plane import DataPlane, Totals
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.rows import Tags
from dataplane_server.core.space import Run
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

PROFILE = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
CAPACITY = 2048
LIMITS = Limits(
    memory_bytes=CAPACITY,
    max_rows=14,
    max_tags_per_row=3,
    max_waiting_claims=4,
    max_waiting_puts=3,
    remembered_requests=12,
    remember_s=30.0,
)
FLOWS = ("p", "q")
TASKS = ("score", "train")
SAMPLES = tuple(f"s{i}" for i in range(9))
SHAPES = {
    "a": [Shape("jagged", "int16", ())] * 4 + [Shape("dense", "int16", (3,)), Shape("dense", "int16", (5,))],
    "b": [Shape("dense", "uint8", (3, 33)), Shape("jagged", "uint8", (33,)), Shape("jagged", "uint8", (2, 33))],
    "c": [Shape("dense", "float32", ()), Shape("dense", "float32", ()), Shape("jagged", "float32", ())],
    "o": [Shape("object", "", ())],
}
FIELDS = tuple(SHAPES)
PER_TOKEN = frozenset("ab")

T = TypeVar("T")


# -- the model ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Value:
    data: bytes
    entries: int
    pieces: list[Run]


@dataclass(eq=False)
class Row:
    sample_id: str
    length: int = -1
    tags: Tags = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    pins: int = 0
    owed: list[Run] = field(default_factory=list)


@dataclass(eq=False)
class Flow:
    """A partition. `rows` is in order of arrival; a view lists the rows ready for (task, fields), next first."""

    definition: Definition
    rows: dict[str, Row] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    claimed: dict[str, set[Row]] = field(default_factory=dict)
    consumed: dict[str, set[Row]] = field(default_factory=dict)
    consumed_total: Counter[str] = field(default_factory=Counter)
    views: dict[tuple[str, frozenset[str]], list[Row]] = field(default_factory=dict)
    put_total: int = 0
    cleared_total: int = 0

    def ready(self, task: str, fields: frozenset[str], rows: Iterable[Row]) -> list[Row]:
        taken = self.claimed[task] | self.consumed[task]
        return [row for row in rows if fields <= row.values.keys() and row not in taken]

    def view(self, request: ClaimRequest) -> list[Row]:
        key = (request.task, frozenset(request.required_fields))
        if key not in self.views:
            self.views[key] = self.ready(*key, self.rows.values())
        return self.views[key]

    def produced(self, rows: Sequence[Row]) -> None:
        for key, view in self.views.items():
            view += [row for row in self.ready(*key, rows) if row not in view]

    def given_back(self, task: str, rows: Sequence[Row]) -> None:
        self.claimed[task] -= set(rows)
        for key, view in self.views.items():
            if key[0] == task:
                view[:0] = self.ready(*key, rows)

    def forget(self, rows: Iterable[Row], task: str | None = None) -> None:
        gone = set(rows)
        for key, view in self.views.items():
            if task in (None, key[0]):
                view[:] = [row for row in view if row not in gone]

    def info(self, waiting: Iterable[ClaimRequest]) -> PartitionInfo:
        waiters = Counter(request.task for request in waiting if request.partition_id == self.definition.partition_id)
        tasks = [
            TaskInfo(t, len(self.rows) - len(c) - len(d), len(c), len(d), self.consumed_total[t], waiters[t])
            for t in self.definition.tasks
            for c, d in [(self.claimed[t], self.consumed[t])]
        ]
        fields = [self._field_info(name) for name in self.definition.fields]
        size = sum(f.size_bytes for f in fields)
        n = len(self.rows)
        return PartitionInfo(
            self.definition, tuple(fields), tuple(tasks), n, size, self.put_total, self.cleared_total
        )

    def _field_info(self, name: str) -> FieldInfo:
        values = [row.values[name] for row in self.rows.values() if name in row.values]
        size = sum(len(value.data) for value in values)
        return FieldInfo(name, self.shapes.get(name), name in self.definition.per_token_fields, len(values), size)


@dataclass(eq=False)
class Write:
    call: Put | Commit
    partition_id: str
    sample_ids: Sequence[str]
    values: dict[str, list[Value]]
    runs: tuple[Run, ...] | None = None

    @property
    def sizes(self) -> list[int]:
        """Bytes of each column that has any."""
        return list(filter(None, (sum(len(v.data) for v in values) for values in self.values.values())))


@dataclass(eq=False)
class Claim:
    flow: Flow
    task: str
    rows: list[Row]

    def left(self) -> list[Row]:
        return [row for row in self.rows if self.flow.rows.get(row.sample_id) is row]


@dataclass(eq=False)
class Read:
    rows: list[Row]
    runs: tuple[Run, ...]
    data: bytes


@dataclass(eq=False)
class Answer:
    again: Callable[[float], object]
    value: str
    at: float


def entry_shape(shape: Shape) -> tuple[int, ...]:
    return shape.row_shape[1:] if shape.kind == "dense" else shape.row_shape


def shared_shape(held: Shape | None, new: Shape) -> Shape | None:
    """The shape of a field that held one shape and receives another; None where it must not."""
    if held in (None, new):
        return new
    assert held is not None
    if "object" in (held.kind, new.kind) or held.dtype != new.dtype or () in (d.row_shape for d in _dense(held, new)):
        return None
    return Shape("jagged", new.dtype, entry_shape(new)) if entry_shape(held) == entry_shape(new) else None


def _dense(*shapes: Shape) -> list[Shape]:
    return [shape for shape in shapes if shape.kind == "dense"]


def entry_bytes(shape: Shape) -> int:
    return 1 if shape.kind == "object" else DTYPE_BYTES[shape.dtype] * int(np.prod(entry_shape(shape), dtype=int))


def row_entries(spec: ColumnSpec, row: int) -> int:
    if spec.lengths is not None:
        return int(spec.lengths[row])
    return spec.shape.row_shape[0] if spec.shape.row_shape else 1


def aligned(n: int) -> int:
    return -(-n // 64) * 64


def padded(sizes: Sequence[int]) -> int:
    return sum(map(aligned, sizes[:-1])) + sum(sizes[-1:])


def pick(items: Iterable[T], choice: int) -> T:
    items = list(items)
    return items[choice % len(items)]


# -- calls to draw -----------------------------------------------------------------------------------------------------

choices = st.integers(0, 1000)
flow_ids = st.sampled_from(FLOWS * 8 + ("nowhere",))
lengths = st.sampled_from([0, 1, 3, 3, 3, 5, 5, 20])
tags = st.dictionaries(st.sampled_from("wxyz"), st.one_of(st.none(), st.integers(0, 3), st.just("v")), max_size=2)
sample_ids = st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=5, unique=True)
some_fields = st.lists(st.sampled_from(FIELDS), max_size=3, unique=True)


@st.composite
def columns(draw: st.DrawFn, n_rows: int, names: Sequence[str]) -> tuple[list[ColumnSpec], list[int]]:
    """Columns of n_rows rows, and the length that the rows of most jagged ones have."""
    of_rows = draw(st.lists(lengths, min_size=n_rows, max_size=n_rows))
    specs = []
    for name in names:
        shape = draw(st.sampled_from(SHAPES[name]))
        ragged = None if shape.kind == "dense" else np.array(of_rows, np.int64)
        specs.append(ColumnSpec(name, shape, ragged))
    return specs, of_rows


@st.composite
def puts(draw: st.DrawFn) -> Put:
    ids = draw(sample_ids)
    specs, of_rows = draw(columns(len(ids), draw(some_fields)))
    row_tags = draw(st.one_of(st.none(), st.lists(tags, min_size=len(ids), max_size=len(ids))))
    given = draw(st.sampled_from([None, None, of_rows, [-1] * len(ids), [7] * len(ids)]))
    given_array = None if given is None else np.array(given, np.int64)
    return Put("", draw(flow_ids), ids, specs, row_tags, given_array)


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    whole = draw(st.integers(0, 3))
    fields = FIELDS if whole else tuple(draw(some_fields)) or ("a",)
    tasks = TASKS if whole else tuple(draw(st.sampled_from([TASKS, TASKS[::-1], TASKS[:1], TASKS[1:], ()])))
    per_token = PER_TOKEN & set(fields) if draw(st.booleans()) else frozenset()
    return Definition(draw(st.sampled_from(FLOWS)), fields, tasks, draw(st.integers(0, 12)), per_token)


@st.composite
def claim_requests(draw: st.DrawFn) -> ClaimRequest:
    batch_size = draw(st.integers(1, 5))
    min_size = draw(st.integers(1, batch_size))
    task = draw(st.sampled_from(TASKS * 8 + ("nobody",)))
    required = tuple(draw(st.lists(st.sampled_from("abo"), max_size=2, unique=True)))
    return ClaimRequest("", draw(flow_ids), task, required, batch_size, min_size, draw(st.integers(0, 3)) == 0)


# -- the machine -------------------------------------------------------------------------------------------------------


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.plane = DataPlane(LIMITS)
        self.arena = bytearray(CAPACITY)
        self.used = bytearray(CAPACITY)  # 1 where a byte is in use
        self.flows: dict[str, Flow] = {}
        self.writes: dict[int, Write] = {}
        self.queue: list[int] = []  # tickets of writes that wait for room
        self.waiting: dict[int, ClaimRequest] = {}
        self.claims: dict[str, Claim] = {}
        self.claim_ids: list[str] = []  # ever handed out
        self.reads: dict[int, Read] = {}
        self.answers: OrderedDict[str, Answer] = OrderedDict()
        self.effects: dict[type, deque[Effect]] = {Admitted: deque(), Granted: deque(), Failed: deque()}
        self.now = 0.0
        self.requests = 0
        self.draining = False
        self.healthy = True
        self.random = random.Random(0)

    # -- calls and what they cause -------------------------------------------------------------------------------------

    def call(self, method: Callable[..., object], *args: object) -> object:
        """The answer, or the refusal, and the effects in one queue for each kind."""
        self.healthy = False
        try:
            outcome = method(*args)
        except Refusal as refusal:
            outcome = refusal
        for effect in self.plane.take_effects():
            self.effects[type(effect)].append(effect)
        return outcome

    def refused(self, outcome: object, reasons: set[Reason]) -> bool:
        """Whether the call was refused, as it must be exactly when there are reasons."""
        reason = outcome.reason if isinstance(outcome, Refusal) else None
        assert reason in (reasons or {None}), (outcome, reasons)
        return reason is not None

    def new_request(self) -> str:
        self.requests += 1
        self.now += self.requests % 3
        return f"r{self.requests}"

    def remember(self, request_id: str, answer: object, again: Callable[[float], object]) -> None:
        self.answers[request_id] = Answer(again, repr(answer), self.now)
        if len(self.answers) > LIMITS.remembered_requests:
            self.answers.popitem(last=False)

    def expect_failed(self, ticket: int, reason: Reason) -> None:
        failed = self.effects[Failed].popleft()
        assert isinstance(failed, Failed)
        assert (failed.ticket, failed.refusal.reason) == (ticket, reason)

    # -- room ----------------------------------------------------------------------------------------------------------

    def take_runs(self, runs: Iterable[Run]) -> None:
        for offset, size in runs:
            assert size > 0
            assert offset % 64 == 0
            assert not any(self.used[offset : offset + size]), "room was handed out twice"
            self.used[offset : offset + size] = b"\1" * size

    def free_runs(self, runs: Iterable[Run]) -> None:
        for offset, size in runs:
            assert all(self.used[offset : offset + size])
            self.used[offset : offset + size] = bytes(size)
            self.arena[offset : offset + size] = b"\xdd" * size

    def may_fit(self, write: Write) -> bool:
        return sum(write.sizes) <= self.used.count(0)

    def must_fit(self, write: Write) -> bool:
        """Whether one free range is long enough for all columns one after the other."""
        free = (m.end() - aligned(m.start()) for m in re.finditer(rb"\0+", self.used))
        return padded(write.sizes) <= max(free, default=0)

    def reserve(self, write: Write, reservation: Reservation) -> None:
        """Take the room and copy the bytes of the stream where it says."""
        data = b"".join(value.data for values in write.values.values() for value in values)
        assert reservation.size_bytes == sum(run.size_bytes for run in reservation.runs) == len(data)
        self.take_runs(reservation.runs)
        write.runs = reservation.runs
        places = [offset + i for offset, size in reservation.runs for i in range(size)]
        at = 0
        for offset, size in reservation.runs:
            self.arena[offset : offset + size] = data[at : at + size]
            at += size
        places_left = iter(places)
        for values in write.values.values():
            for value in values:
                value.pieces = [Run(next(places_left), 1) for _ in value.data]

    def expect_admissions(self) -> None:
        """Bytes may have become free: the queue is served from its head."""
        while self.queue:
            write = self.writes[self.queue[0]]
            admitted = self.effects[Admitted].popleft() if self.effects[Admitted] else None
            if admitted is None:
                assert not self.must_fit(write)
                return
            assert isinstance(admitted, Admitted)
            assert admitted.ticket == admitted.reservation.ticket == self.queue.pop(0)
            assert self.may_fit(write)
            self.reserve(write, admitted.reservation)

    def discard(self, ticket: int) -> None:
        write = self.writes.pop(ticket)
        if ticket in self.queue:
            self.queue.remove(ticket)
        self.free_runs(write.runs or ())

    # -- writes --------------------------------------------------------------------------------------------------------

    def why_not(self, call: Put | Commit, sample_ids: Sequence[str], flow: Flow | None) -> set[Reason]:
        if flow is None:
            return {Reason.PARTITION_NOT_FOUND}
        reasons = set()
        per_token = flow.definition.per_token_fields
        for spec in call.columns:
            if spec.name not in flow.definition.fields:
                reasons.add(Reason.FIELD_NOT_DECLARED)
            elif shared_shape(flow.shapes.get(spec.name), spec.shape) is None:
                reasons.add(Reason.FIELD_MISMATCH)
        new_names = {spec.name for spec in call.columns}
        for i, sample_id in enumerate(sample_ids):
            row = flow.rows.get(sample_id) or Row(sample_id)
            kept = {v.entries for name, v in row.values.items() if name in per_token and name not in new_names}
            kept |= {row_entries(spec, i) for spec in call.columns if spec.name in per_token}
            if isinstance(call, Put):
                kept |= {int(n) for n in (() if call.sequence_lengths is None else call.sequence_lengths[i : i + 1])}
                if call.tags is not None and len(row.tags.keys() | call.tags[i].keys()) > LIMITS.max_tags_per_row:
                    reasons.add(Reason.INVALID_REQUEST)
            if len(kept - {-1}) > 1:
                reasons.add(Reason.LENGTH_MISMATCH)
        n_new = len(set(sample_ids) - flow.rows.keys())
        if sum(len(f.rows) for f in self.flows.values()) + n_new > LIMITS.max_rows:
            reasons.add(Reason.LIMIT_REACHED)
        return reasons

    def subject(self, call: Put | Commit) -> tuple[set[Reason], Sequence[str], Flow | None]:
        """What a write would be refused for, apart from its columns; its rows; its partition."""
        if isinstance(call, Put):
            return set(), call.sample_ids, self.flows.get(call.partition_id)
        claim = self.claims.get(call.claim_id)
        if claim is None:
            return {Reason.CLAIM_NOT_FOUND}, (), None
        gone = len(claim.left()) < len(claim.rows)
        return {Reason.SAMPLE_NOT_FOUND} if gone else set(), [row.sample_id for row in claim.rows], claim.flow

    def begin(self, call: Put | Commit) -> int | None:
        """Begin a write, whether new or a repetition of one under way. Its ticket if it goes on."""
        before, ids, flow = self.subject(call)
        outcome = self.call(self.again(call), self.now)
        write = Write(call, flow.definition.partition_id if flow else "", ids, self.make_values(call, len(ids)))
        reasons = before or self.why_not(call, ids, flow)
        if padded(write.sizes) > CAPACITY:
            reasons.add(Reason.PUT_TOO_LARGE)
        if reasons:
            assert self.refused(outcome, reasons)
            return None
        earlier = [t for t, other in self.writes.items() if other.call.request_id == call.request_id]
        for ticket in earlier:
            self.expect_failed(ticket, Reason.SUPERSEDED)
            self.discard(ticket)
            self.expect_admissions()
        return self.admit(write, outcome)

    def admit(self, write: Write, outcome: object) -> int | None:
        stands_in_line = bool(self.queue and write.sizes)
        if isinstance(outcome, Reservation):
            assert self.may_fit(write)
            assert not stands_in_line
            self.writes[outcome.ticket] = write
            self.reserve(write, outcome)
            return outcome.ticket
        assert stands_in_line or not self.must_fit(write)
        if self.draining:
            assert self.refused(outcome, {Reason.DRAINING})
        elif len(self.queue) >= LIMITS.max_waiting_puts:
            assert self.refused(outcome, {Reason.LIMIT_REACHED})
        else:
            assert isinstance(outcome, Waiting)
            self.writes[outcome.ticket] = write
            self.queue.append(outcome.ticket)
            return outcome.ticket
        return None

    def again(self, call: Put | Commit) -> Callable[[float], object]:
        if isinstance(call, Put):
            return lambda now, put=call: self.plane.begin_put(put, now)  # type: ignore[misc]
        return lambda now, commit=call: self.plane.begin_commit(commit, now)  # type: ignore[misc]

    def make_values(self, call: Put | Commit, n_rows: int) -> dict[str, list[Value]]:
        made: dict[str, list[Value]] = {}
        for spec in call.columns:
            entries = [row_entries(spec, i) for i in range(n_rows)]
            made[spec.name] = [Value(self.random.randbytes(n * entry_bytes(spec.shape)), n, []) for n in entries]
        return made

    def finish_write(self, ticket: int) -> None:
        write = self.writes[ticket]
        before, _, flow = self.subject(write.call)
        reasons = before or self.why_not(write.call, write.sample_ids, flow)
        outcome = self.call(self.plane.finish, ticket, self.now)
        if self.refused(outcome, reasons):
            self.discard(ticket)
        else:
            assert flow is not None
            del self.writes[ticket]
            created = self.store(flow, write)
            consumed = self.end_claim(write.call.claim_id) if isinstance(write.call, Commit) else 0
            put_result = PutResult(created, sum(write.sizes))
            assert outcome == (put_result if isinstance(write.call, Put) else CommitResult(consumed))
            self.remember(write.call.request_id, outcome, self.again(write.call))
            self.expect_grants(flow)
        self.expect_admissions()

    def store(self, flow: Flow, write: Write) -> int:
        call, before = write.call, len(flow.rows)
        rows = [flow.rows.setdefault(sample_id, Row(sample_id)) for sample_id in write.sample_ids]
        for spec in call.columns:
            flow.shapes[spec.name] = shared_shape(flow.shapes.get(spec.name), spec.shape) or spec.shape
        for i, row in enumerate(rows):
            for name, values in write.values.items():
                self.let_go(row, [name])
                row.values[name] = values[i]
                row.length = values[i].entries if name in flow.definition.per_token_fields else row.length
            if isinstance(call, Put) and call.sequence_lengths is not None and call.sequence_lengths[i] >= 0:
                row.length = int(call.sequence_lengths[i])
            if isinstance(call, Put) and call.tags is not None:
                row.tags = row.tags | call.tags[i]
        flow.put_total += len(flow.rows) - before
        flow.produced(rows)
        return len(flow.rows) - before

    def let_go(self, row: Row, names: Iterable[str]) -> int:
        """Values of a row are gone: their bytes are free once no reader pins the row. Returns the bytes."""
        values = [row.values.pop(name) for name in names if name in row.values]
        pieces = [piece for value in values for piece in value.pieces]
        if row.pins:
            row.owed += pieces
        else:
            self.free_runs(pieces)
        return len(pieces)
