"""The sample inspector: rows of a partition or group, the story of a row, its values if they are small, dead letters.

Values are numbers by token (the first 4,096 tokens of at most 16 fields), other small numbers, and objects that are
text. They are read as any client reads them. No tokenizer is here: tokens are ids, unless a field has the text.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np

from dataplane_server.access.gate import acting_as
from dataplane_server.access.roles import Caller
from dataplane_server.core.calls.filters import ALL_ROWS
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Slots
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.rows.fields import Field
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.tasks.task_states import STATE_NAMES
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.frames import parse_frame

MOST_TOKENS = 4096
_MOST_FIELDS = 16
_MOST_NUMBERS = 64
_MOST_OBJECT_BYTES = 1 << 16
_MOST_LETTERS = 20_000
_PAGE_ROWS = 50
_LISTED_NUMBERS = 6
"""Fields of one number a row that lists of rows show."""
_LISTED_LETTERS = 400
_MOST_LISTED_BYTES = 1 << 13
"""Of an object that lists show."""
_DTYPES = {dtype.name: dtype.newbyteorder("<") for dtype in map(np.dtype, "?BHIQbhiqefd")}
_CALLER = "the page"
_MOST_EXACT = 1 << 53
"""The largest number up to which JavaScript has all integers."""


class Samples:
    """Reads rows for callers who may."""

    def __init__(self, plane: DataPlane, servicer: DataPlaneServicer, now: Any) -> None:
        self._plane = plane
        self._servicer = servicer
        self._now = now

    async def listed(
        self, caller: Caller, partition_id: str, task: str, state: str, group_id: str, page: int
    ) -> dict[str, object]:
        """Rows in order of arrival, with their states, fields of one number, and the first field that is text. With a
        group_id: the first rows of that group, and what the group is. Refusal for unknown names of partitions, tasks
        and states, and for callers who may not list them.
        """
        _check(caller, "ListSamples", partition_id)
        states = [state] if state else []
        found = self._plane.list_samples(partition_id, task, states, ALL_ROWS, _PAGE_ROWS, page, self._now())
        partition = self._plane.partitions[partition_id]
        answer: dict[str, object] = {"partition": partition_id}
        if group_id:
            answer["group"], slots = self._group(partition, group_id)
        else:
            slots, answer["next"] = partition.rows.find_existing(found.sample_ids), found.next_page_token
        rows = list(_described(partition, slots))
        if caller.may("ReadColumns", partition_id) and not partition.definition.digests:
            fields = [field for field in partition.fields.values() if _is_number(field)][:_LISTED_NUMBERS]
            answer["numbers"] = [field.name for field in fields]
            texts = [one for one in partition.fields.values() if one.shape is not None and one.shape.kind == "object"]
            for field in [*fields, *texts[:1]]:
                await self._add_values(caller, partition, field, slots, rows)
        return {**answer, "rows": rows}

    def _group(self, partition: Partition, group_id: str) -> tuple[dict[str, object] | None, Slots]:
        """What a group is, and its first rows. None if it has gone, as a flow goes on while a page is looked at."""
        if (group := partition.groups.find(group_id)) is None:
            return None, np.empty(0, np.int64)
        reserved = self._plane.list_groups(partition.partition_id, self._now()).groups
        client = next((one.client for one in reserved if one.group_id == group_id), "")
        versions = [group.start_weight_version, group.end_weight_version]
        told = {"id": group_id, "rows": group.size, "reserved": bool(group.reservation_id), "client": client}
        told |= {"versions": versions, "failed": group.failed}
        return told, partition.groups.members(group.number)[:_PAGE_ROWS]

    async def _add_values(
        self, caller: Caller, partition: Partition, field: Field, slots: Slots, rows: list[dict[str, Any]]
    ) -> None:
        """Read a field of the rows that hold it, and add the values to what is said of them. A row may go meanwhile."""
        held = np.flatnonzero(field.holds(slots) & (field.entries(slots) <= _MOST_LISTED_BYTES)).tolist()
        with contextlib.suppress(Refusal):
            if held:
                header, data = await self._read(caller, partition, [rows[place]["id"] for place in held], [field.name])
                for place, value in zip(held, _split(field, header.columns[0], data, len(held)), strict=True):
                    rows[place]["values"][field.name] = value

    async def dead(self, caller: Caller, partition_id: str, task: str) -> dict[str, object]:
        """Rows that a task has given up, with the reasons."""
        _check(caller, "ListDeadLetters", partition_id)
        letters = self._plane.dead_letters(partition_id, task)
        rows = [
            {"id": one.sample_id, "deliveries": one.deliveries, "reason": one.reason} for one in letters[:_PAGE_ROWS]
        ]
        return {"partition": partition_id, "task": task, "rows": rows, "more": max(len(letters) - _PAGE_ROWS, 0)}

    async def sample(self, caller: Caller, partition_id: str, sample_id: str) -> dict[str, object]:
        """What a row has, and what happened to it. Without a partition: in the first one that has it. Refusal if no
        partition that the caller may look into has it.
        """
        within = [partition_id] if partition_id else self._having(caller, sample_id)
        if not within:
            message = (
                f"no partition has a sample {sample_id!r}; choose a partition to see what happened to one that is gone"
            )
            raise Refusal(Reason.SAMPLE_NOT_FOUND, message)
        _check(caller, "GetSample", within[0])
        found, now = self._plane.sample(within[0], sample_id), self._now()
        row = found.resident
        events = [
            {
                "age_s": round(now - one.at, 2),
                "what": one.what,
                "who": one.who,
                "task": one.task,
                "claim": one.claim_id,
                "fields": one.fields,
                "reason": one.reason,
            }
            for one in found.events
        ]
        answer: dict[str, object] = {"partition": within[0], "others": within[1:], "id": sample_id, "events": events}
        if row is not None:
            answer["row"] = {
                "tokens": row.sequence_length,
                "tags": _plain(row.tags),
                "group": row.group_id,
                "hidden": row.hidden,
                "tasks": [
                    [task.task, task.state, task.deliveries, task.claim_id, task.step, task.dp_rank]
                    for task in row.tasks
                ],
            }
            partition = self._plane.partitions[within[0]]
            answer["fields"] = [
                [field.name, str(field.shape or ""), field.name in row.fields] for field in partition.fields.values()
            ]
            if caller.may("ReadColumns", within[0]) and not partition.definition.digests:
                answer["values"] = await self._values(caller, partition, sample_id)
        return answer

    def _having(self, caller: Caller, sample_id: str) -> list[str]:
        return [
            name
            for name, partition in self._plane.partitions.items()
            if caller.may("GetSample", name) and partition.rows.find_existing([sample_id])[0] >= 0
        ]

    # -- values --------------------------------------------------------------------------------------------------------

    async def _values(self, caller: Caller, partition: Partition, sample_id: str) -> list[dict[str, object]]:
        slots = partition.rows.find_existing([sample_id])
        fields = [field for field in partition.fields.values() if field.holds(slots)[0]]
        chosen = [field for field in fields if _is_small(field, int(field.entries(slots)[0]))][:_MOST_FIELDS]
        if not chosen:
            return []
        names = [field.name for field in chosen]
        whole = MOST_TOKENS if any(field.per_token for field in chosen) else None
        header, data = await self._read(caller, partition, [sample_id], names, whole)
        return list(_parsed(chosen, header, data))

    async def _read(
        self, caller: Caller, partition: Partition, sample_ids: list[str], names: list[str], most: int | None = None
    ) -> tuple[pb.ReadColumnsHeader, bytes]:
        """most: tokens of one row; None if no field is per-token."""
        asked = pb.ReadColumnsRequest(
            partition_id=partition.partition_id, sample_ids=sample_ids, fields=names, caller=_CALLER
        )
        if most is not None:
            asked.token_starts, asked.token_ends = (np.array([token], "<i8").tobytes() for token in (0, most))
        header, data = pb.ReadColumnsHeader(), bytearray()
        with acting_as(caller):
            async for message in self._servicer.ReadColumns(asked, None):
                frame = parse_frame(message)
                header.MergeFromString(frame.header or b"")
                data += frame.chunk or b""
        return header, bytes(data)


def _described(partition: Partition, slots: Slots) -> Iterator[dict[str, object]]:
    """What lists say of rows. Their values are added."""
    lengths, hidden = partition.rows["sequence_length"][slots].tolist(), partition.rows["hidden"][slots].tolist()
    told = zip(partition.rows.ids(slots), slots.tolist(), lengths, hidden, partition.rows.tags_of(slots), strict=True)
    for sample_id, slot, length, is_hidden, tags in told:
        yield {
            "id": sample_id,
            "group": partition.groups.id_of(slot),
            "hidden": is_hidden,
            "states": [[task.name, STATE_NAMES[task.states[slot]]] for task in partition.tasks.values()],
            "tokens": length,
            "tags": _plain(tags),
            "values": {},
        }


def _is_number(field: Field) -> bool:
    """Whether each row has one number in the field."""
    shape = field.shape
    return shape is not None and shape.kind == "dense" and math.prod(shape.row_shape) == 1 and _is_small(field, 1)


def _split(field: Field, column: pb.Column, data: bytes, rows: int) -> list[object]:
    """The values of a field of one number a row, or of objects: the first letters."""
    if field.shape is None or field.shape.kind != "object":
        return _numbers(data, field.shape.dtype) if field.shape else []
    ends = np.cumsum(np.frombuffer(column.row_lengths, "<i8")).tolist()
    begins = [0, *ends[:-1]]
    return [_object(data[begin:end])[:_LISTED_LETTERS] for begin, end in zip(begins, ends, strict=True)]


def _is_small(field: Field, entries: int) -> bool:
    shape = field.shape
    if shape is None or shape.kind == "object":
        return entries <= _MOST_OBJECT_BYTES
    if shape.dtype not in _DTYPES and shape.dtype != "bfloat16":
        return False
    return math.prod(shape.trailing) == 1 if field.per_token else entries * math.prod(shape.trailing) <= _MOST_NUMBERS


def _parsed(fields: list[Field], header: pb.ReadColumnsHeader, data: bytes) -> Iterator[dict[str, object]]:
    begin = 0
    for field, column in zip(fields, header.columns, strict=True):
        shape = field.shape
        entries = int(np.frombuffer(column.row_lengths, "<i8")[0]) if column.row_lengths else None
        if shape is None:
            continue
        size = (shape.dense_entries if entries is None else entries) * shape.entry_bytes
        value, begin = data[begin : begin + size], begin + size
        kind = "object" if shape.kind == "object" else "tokens" if field.per_token else "numbers"
        shown = _object(value) if kind == "object" else _numbers(value, shape.dtype)
        yield {"field": field.name, "kind": kind, "dtype": shape.dtype, "value": shown}


def _numbers(data: bytes, dtype: str) -> list[object]:
    if dtype == "bfloat16":
        found = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    else:
        found = np.frombuffer(data, _DTYPES[dtype])
    if found.dtype.kind != "f":
        return [_whole(int(number)) for number in found.tolist()]
    texts = [f"{number:.5g}" for number in found.tolist()]
    return [number if math.isfinite(number := float(text)) else text for text in texts]


def _whole(number: int) -> int | str:
    """A number, or its digits if JavaScript would change them."""
    return number if abs(number) <= _MOST_EXACT else str(number)


def _object(data: bytes) -> str:
    """Text as it is, anything else as Python writes it."""
    try:
        value = msgpack.unpackb(data, strict_map_key=False)
        return (value if isinstance(value, str) else repr(value))[:_MOST_LETTERS]
    except (ValueError, TypeError, RecursionError):  # also a list as a key, and lists in lists in lists
        return "not msgpack that can be read"


def _plain(tags: Any) -> dict[str, object]:
    return {name: _whole(value) if isinstance(value, int) else str(value) for name, value in tags.items()}


def _check(caller: Caller, verb: str, partition_id: str) -> None:
    if not caller.may(verb, partition_id):
        message = f"{caller.name or 'this caller'} needs a role for partition {partition_id!r} to see its rows"
        raise Refusal(Reason.PERMISSION_DENIED, message, partition_id=partition_id)
