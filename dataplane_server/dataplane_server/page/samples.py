"""The sample inspector: rows of a partition, the story of one, its values as far as they are small, dead letters.

Values are numbers by token (the first 4,096 tokens of at most 16 fields), other small numbers, and objects that are
text. They are read as any client reads them. No tokenizer is here: tokens are ids, unless a field has the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np

from dataplane_server.access.gate import acting_as
from dataplane_server.access.roles import Caller
from dataplane_server.core.calls.filters import ALL_ROWS
from dataplane_server.core.calls.refusal import Reason, Refusal
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
_DTYPES = {dtype.name: dtype.newbyteorder("<") for dtype in map(np.dtype, "?BHIQbhiqefd")}
_CALLER = "the page"


class Samples:
    """Reads rows for callers who may."""

    def __init__(self, plane: DataPlane, servicer: DataPlaneServicer, now: Any) -> None:
        self._plane = plane
        self._servicer = servicer
        self._now = now

    def listed(self, caller: Caller, partition_id: str, task: str, state: str, page: int) -> dict[str, object]:
        """Rows in order of arrival. Refusal for unknown names and for callers who may not list them."""
        _check(caller, "ListSamples", partition_id)
        states = [state] if state else []
        found = self._plane.list_samples(partition_id, task, states, ALL_ROWS, _PAGE_ROWS, page, self._now())
        columns = zip(found.sample_ids, found.sequence_lengths.tolist(), found.tags, strict=True)
        names = (
            [""] * len(found.sample_ids) if found.states is None else [STATE_NAMES[n] for n in found.states.tolist()]
        )
        rows = [
            {"id": sample_id, "tokens": length, "tags": _plain(tags), "state": name}
            for (sample_id, length, tags), name in zip(columns, names, strict=True)
        ]
        return {"partition": partition_id, "rows": rows, "next": found.next_page_token}

    def dead(self, caller: Caller, partition_id: str, task: str) -> dict[str, object]:
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
        first, end = np.array([0], "<i8").tobytes(), np.array([MOST_TOKENS], "<i8").tobytes()
        asked = pb.ReadColumnsRequest(
            partition_id=partition.partition_id,
            sample_ids=[sample_id],
            fields=names,
            token_starts=first,
            token_ends=end,
            caller=_CALLER,
        )
        header, data = pb.ReadColumnsHeader(), bytearray()
        with acting_as(caller):
            async for message in self._servicer.ReadColumns(asked, None):
                frame = parse_frame(message)
                header.MergeFromString(frame.header or b"")
                data += frame.chunk or b""
        return list(_parsed(chosen, header, bytes(data)))


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
        return [*map(int, found.tolist())]
    return [float(f"{number:.5g}") if math.isfinite(number) else str(number) for number in found.tolist()]


def _object(data: bytes) -> str:
    """Text as it is, anything else as Python writes it."""
    try:
        value = msgpack.unpackb(data, strict_map_key=False)
    except ValueError:
        return "not msgpack that can be read"
    return (value if isinstance(value, str) else repr(value))[:_MOST_LETTERS]


def _plain(tags: Any) -> dict[str, object]:
    return {str(key): value if isinstance(value, (str, int, bool)) else str(value) for key, value in tags.items()}


def _check(caller: Caller, verb: str, partition_id: str) -> None:
    if not caller.may(verb, partition_id):
        message = f"{caller.name or 'this caller'} needs a role for partition {partition_id!r} to see its rows"
        raise Refusal(Reason.PERMISSION_DENIED, message, partition_id=partition_id)
