"""Reads. Their rows are pinned: a clear or an overwrite neither waits for a read nor changes what it sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dataplane_server.core.calls.answers import ReadColumn, ReadPlan
from dataplane_server.core.calls.columns import Shape
from dataplane_server.core.calls.digests import check_checks
from dataplane_server.core.calls.listings import Holder
from dataplane_server.core.calls.names import check_caller, check_distinct, check_generations, check_sample_ids
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import BeginRead
from dataplane_server.core.calls.values import Int64Array, Runs, Slots
from dataplane_server.core.rows.fields import Field
from dataplane_server.core.rows.ranges import column_pieces
from dataplane_server.core.rows.stored_values import mask_of
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import State

_LEAST_ROWS = 64
_FORMER = "clients of the former server"
_OF_SNAPSHOT = "the snapshot that is being written"


class _Pinned(NamedTuple):
    """Rows that stay readable as they were. began: see `RowTable.pin`."""

    partition: Partition
    slots: Slots
    began: int


class Reads:
    """Reads that have begun and not ended, by ticket. Tickets of reads are numbers of their own."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._begun = 0
        self._rows = 0
        self._pinned: dict[int, _Pinned] = {}
        self._readers: dict[int, tuple[str, int]] = {}  # the caller, and the bytes that it reads
        self._former: list[_Pinned] = []  # that clients of a former server may still read
        self._of_snapshot: list[_Pinned] = []
        self._snapshot = ""  # the one that is under way

    def begin(self, call: BeginRead) -> ReadPlan:
        partition = self._state.partition(call.partition_id)
        if not call.fields:
            message = f"a read of partition {call.partition_id!r} names no field"
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=call.partition_id)
        check_distinct("field", call.fields)
        check_sample_ids(call.sample_ids, self._state.limits)
        check_generations(call.sample_ids, call.generations)
        check_caller(call.caller, self._state.limits)
        tokens = _token_range(call)
        for name in call.fields:
            partition.field(name)
        slots = partition.rows.find(call.sample_ids)
        if call.generations is not None:
            partition.rows.check_same(call.sample_ids, slots, call.generations)
        self._check_room(len(slots))
        check_checks(partition.definition, call)
        columns, pieces, digests = _plan(partition, slots, call.fields, tokens)
        self._check_pieces(call, len(pieces[0]))
        ticket = self._begun = max(call.ticket, self._begun + 1)
        self._pinned[ticket] = _pin(partition, slots)
        self._rows += max(len(slots), _LEAST_ROWS)
        lengths = partition.rows["sequence_length"][slots].astype("int64")
        size_bytes = int(pieces[1].sum())
        self._readers[ticket] = (call.caller, size_bytes)
        partition.count_read(len(slots), size_bytes)
        return ReadPlan(ticket, columns, lengths, Runs(*pieces), size_bytes, digests)

    def end(self, ticket: int) -> None:
        """Unpin the rows. Unknown tickets are ignored."""
        pinned = self._pinned.pop(ticket, None)
        if pinned is not None:
            del self._readers[ticket]
            _unpin([pinned])
            self._rows -= max(len(pinned.slots), _LEAST_ROWS)

    def recover(self, *, held: bool) -> None:
        """End all reads and the snapshot. held: all rows, and what reads have kept of others, stay readable until
        `let_go`.
        """
        self._former += self._pinned.values()
        self._pinned.clear()
        self._readers.clear()
        self._rows = 0
        if held:
            self._former += self._pin_all()
        else:
            self.let_go()
        self.end_snapshot()

    def let_go(self) -> None:
        """Unpin what clients of a former server may have read."""
        _unpin(self._former)

    def begin_snapshot(self, name: str) -> None:
        if self._snapshot:
            message = f"snapshot {self._snapshot!r} is being written; there can be one at a time"
            raise Refusal(Reason.LIMIT_REACHED, message)
        self._snapshot = name
        self._of_snapshot = self._pin_all()

    def end_snapshot(self) -> None:
        self._snapshot = ""
        _unpin(self._of_snapshot)

    def _pin_all(self) -> list[_Pinned]:
        return [_pin(partition, partition.rows.all_slots()) for partition in self._state.partitions.values()]

    def _check_room(self, rows: int) -> None:
        """Refusal LIMIT_REACHED if reads under way, leases included, have too many rows."""
        most = self._state.limits.max_read_rows
        if self._rows + max(rows, _LEAST_ROWS) > most:
            message = f"{len(self._pinned)} reads are under way; together they may have {most} rows (max_read_rows)"
            raise Refusal(Reason.LIMIT_REACHED, message, max_read_rows=most)

    def _check_pieces(self, call: BeginRead, pieces: int) -> None:
        """Refusal LIMIT_REACHED for values that are scattered so much that planning the read would delay all others."""
        most = self._state.limits.max_read_pieces
        if pieces > most:
            message = (
                f"partition {call.partition_id!r}: the values of {len(call.sample_ids)} rows and {len(call.fields)} "
                f"fields lie in {pieces} pieces of memory; one read may have {most} (max_read_pieces): read fewer rows "
                "or fields at a time, or rows in the order in which they were put"
            )
            raise Refusal(Reason.LIMIT_REACHED, message, partition_id=call.partition_id, max_read_pieces=most)

    def held(self) -> Iterator[Holder]:
        """What each read under way holds; then what clients of a former server, and a snapshot, may still read."""
        for pinned, (caller, size_bytes) in zip(self._pinned.values(), self._readers.values(), strict=True):
            yield Holder(caller, 0, size_bytes, _owed_by(pinned))
        for name, reads in ((_FORMER, self._former), (_OF_SNAPSHOT, self._of_snapshot)):
            yield from (Holder(name, owed_bytes=_owed_by(pinned)) for pinned in reads)

    def partitions(self) -> list[Partition]:
        """Partitions with pinned rows, each once. They may have been dropped."""
        pinned = (*self._pinned.values(), *self._former, *self._of_snapshot)
        return list({id(each.partition): each.partition for each in pinned}.values())


def _pin(partition: Partition, slots: Slots) -> _Pinned:
    return _Pinned(partition, slots, partition.rows.pin(slots))


def _unpin(pinned: list[_Pinned]) -> None:
    while pinned:
        partition, slots, began = pinned.pop()
        partition.rows.unpin(slots, began)


def _owed_by(pinned: _Pinned) -> int:
    return pinned.partition.rows.owed_by(pinned.slots, pinned.began)


def _token_range(call: BeginRead) -> tuple[Int64Array, Int64Array] | None:
    """The first and the last token (exclusive) to read; one number for all rows, or one a row."""
    starts, ends, rows = call.token_starts, call.token_ends, len(call.sample_ids)
    if starts is None and ends is None:
        return None
    given = [0 if numbers is None else numbers.size for numbers in (starts, ends)]
    if starts is None or ends is None or given not in ([1, 1], [rows, rows]):
        message = (
            f"a read of {rows} rows needs as many token_starts as token_ends, one for all rows or one for each; "
            f"got {given[0]} and {given[1]}"
        )
        raise Refusal(Reason.ROW_COUNT_MISMATCH, message, partition_id=call.partition_id)
    wrong = np.flatnonzero((starts < 0) | (ends < starts))
    if wrong.size:
        row = int(wrong[0])
        which = f"sample {call.sample_ids[row]!r}" if starts.size == rows else "all rows"
        message = f"token range {starts[row]} to {ends[row]} of {which}: a range needs 0 <= start <= end"
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=call.partition_id)
    return starts, ends


def _plan(
    partition: Partition, slots: Slots, names: Sequence[str], tokens: tuple[Int64Array, Int64Array] | None
) -> tuple[tuple[ReadColumn, ...], tuple[Int64Array, Int64Array], Int64Array | None]:
    """The layout of fields of rows, starts and lengths of their pieces of memory, and the digests of their values, if
    they have some. tokens: starts and ends within per-token fields. Refusal FIELD_NOT_PRODUCED names the first row that
    lacks a field.
    """
    fields = [partition.field(name) for name in names]
    shapes = _produced_shapes(partition, fields, slots)
    offsets, entries = partition.values.locate(slots, fields)
    entry_bytes = np.array([[shape.entry_bytes] for shape in shapes])
    for row in [row for row, field in enumerate(fields) if field.per_token and tokens is not None]:
        starts, ends = np.minimum(tokens, entries[row])  # type: ignore[arg-type]  # it is not None here
        offsets[row] += starts * entry_bytes[row]
        entries[row] = ends - starts
        shapes[row] = Shape("jagged", shapes[row].dtype, shapes[row].trailing)
    sizes = entries * entry_bytes
    columns = tuple(map(ReadColumn, names, shapes, entries))
    return columns, column_pieces(offsets, sizes), partition.values.digests(slots, fields)


def _produced_shapes(partition: Partition, fields: Sequence[Field], slots: Slots) -> list[Shape]:
    """The shapes of fields, which all of the rows must hold."""
    mask = np.uint64(mask_of(fields))
    shapes = [field.shape for field in fields if field.shape is not None]
    if len(shapes) == len(fields) and ((partition.rows["produced"][slots] & mask) == mask).all():
        return shapes
    raise next(_not_produced(partition, field, slots) for field in fields if not field.holds(slots).all())


def _not_produced(partition: Partition, field: Field, slots: Slots) -> Refusal:
    lacking = np.flatnonzero(~field.holds(slots))
    first = partition.rows.ids(slots[lacking[:1]])[0]
    more = f" (and {lacking.size - 1} more of the call)" if lacking.size > 1 else ""
    message = (
        f"partition {partition.partition_id!r}: sample {first!r} has not produced field {field.name!r}{more}; a claim "
        "that requires the field waits for it"
    )
    metadata = {"partition_id": partition.partition_id, "sample_id": first, "field": field.name}
    return Refusal(Reason.FIELD_NOT_PRODUCED, message, **metadata)
