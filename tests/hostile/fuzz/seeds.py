"""The seeds of the corpus: what honest and hostile clients say to a server, and files that a server wrote.

They are made anew by every run, since requests and files change with the contract. What fuzzing has found is committed.
"""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from typing import Any

import msgpack
import numpy as np
import torch
from google.protobuf.message import Message
from tests.hostile.endpoints import LOCAL_METHODS, METHODS, grpc_body, local_body
from tests.hostile.fuzz import disk_targets
from tests.hostile.fuzz.inputs import CUT, DELETE, FLIP, INSERT, OVERWRITE, edit, joined
from tests.hostile.fuzz.wire_targets import VERBS
from tests.hostile.fuzz.world import SERVICE, World, loop, put_frame, register
from tests.hostile.requests import REQUESTS
from tests.integration.wire.local_peer import framed

from dataplane_client._values.column_messages import column_message
from dataplane_client._values.object_values import ObjectPacker
from dataplane_client._values.wire_columns import encode_columns
from dataplane_client.records.filters import filter_message
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.durability.log_reader import LogReader
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import local_pb2
from rl_dataplane.v1.frames import frame_prefix
from rl_dataplane.v1.local_frames import TRACED

_MOST_PIECE_BYTES = 1 << 14
EXPRESSIONS = [
    "std > 0.1 and source in ('math', 'code') and not n is null",
    "0.5 <= std < 1e999 or tags['any name'] != \"it's\"",
    "sequence_length >= 1 and staleness <= 1 and not (std == -1 or n is not null)",
    "source not in [] and std != True",
    "((a == 1) or (b == 2)) and c > -9223372036854775808",
    "not not std == 0x1_0",
    "x is None",
    "std >",
    "(" * 150 + "a == 1" + ")" * 150,
    "a == " + "-" * 300 + "1",
    " or ".join(f"t{number} == {number}" for number in range(40)),
]
OBJECTS: list[object] = [
    None,
    {"role": "user", "content": "2 + 2?", 3: [True, 1.5, -7, 1 << 63]},
    (1, (), [b"x"]),
    np.arange(6, dtype=np.int16).reshape(2, 3),
    np.array(["a", "bcd"]),
    np.float32(1.5),
    np.str_("a\0"),
    torch.arange(4, dtype=torch.bfloat16),
    torch.zeros(2, 0, dtype=torch.bool),
    [[[]]] * 40,
]
BODIES = [
    '{"samples": [{"sample_id": "s9", "fields": {"x": [1, 2], "y": 0.5, "o": {"a": [null]}}, "tags": {"std": 1e3}}]}',
    '{"samples": [{"sample_id": "s8", "fields": {"z": [true]}}, {"sample_id": "s7", "fields": {"z": []}}],'
    ' "request_id": "q", "group_id": "g", "weight_version": 7, "dtypes": {"z": "bool"}}',
    '{"samples": [{"sample_id": "s\\ud800", "sequence_length": -1}], "weight_version": 1e400}',
    '{"samples": [{"sample_id": "s", "fields": {"o": ' + "[" * 200 + "]" * 200 + "}}]}",
    '{"samples": ' + '{"a":' * 970 + "1" + "}" * 970 + "}",
    '{"samples": [], "dtypes": {"x": "float16"}, "unknown": NaN}',
    '{"samples": [{"sample_id": "s", "fields": {"y": 1' + "0" * 400 + "}}]}",
]


class Traffic:
    """Calls of one client, recorded as they are sent: verb, request, and the values behind a header."""

    def __init__(self) -> None:
        self._world = World()
        self.sent: list[tuple[str, Message, bytes]] = []

    async def record(self) -> None:
        await self._world.fill()
        session = next(info.session_id for info in self._world.plane.list_sessions(0.0))
        where = filter_message(EXPRESSIONS[0], "claim")
        await self._say("ExtendPartition", request_id="e", fields=["z"], tasks=["c"], num_samples=9)
        await self._say("SetWeightVersion", request_id="v", version=4)
        policy = pb.TaskPolicy(max_staleness=2, order=pb.CLAIM_ORDER_HIGHEST_TAG, order_tag="std", where=where)
        flow = pb.FlowPolicy(max_rows=9, when_full=pb.WHEN_FULL_EVICT, band=pb.DrawBand(samples_per_insert=2, most=9))
        await self._say("SetPolicies", request_id="p", tasks={"c": policy}, flow=flow)
        await self._say("PutSamples", Traffic.put("u", ["s2", "s3"]), b"\1" * 8)
        claim: dict[str, Any] = {"task": "b", "required_fields": ["x"], "batch_size": 2, "session_id": session}
        grant = await self._say("ClaimSamples", request_id="k", mode=pb.CLAIM_MODE_ACKNOWLEDGED, **claim)
        await self._say("ReadColumns", sample_ids=grant.sample_ids, fields=["x", "o"], generations=grant.generations)
        column = pb.Column(name="z", kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_UINT8)
        commit = pb.CommitClaimHeader(request_id="m", claim_id=grant.claim_id, columns=[column])
        await self._say("CommitClaim", commit, b"\7\7")
        claim |= {"task": "a", "min_size": 1, "required_fields": ["y"]}
        shard = await self._say("ClaimShard", request_id="h", dp_world=1, balance=pb.SHARD_BALANCE_TOKENS, **claim)
        await self._say("AdoptClaim", request_id="d", claim_id=shard.claim.claim_id, session_id=session)
        await self._say("ReleaseClaim", request_id="l", claim_id=shard.claim.claim_id, reason="why")
        draw: dict[str, Any] = {
            "strategy": pb.DRAW_STRATEGY_PRIORITIZED,
            "priority_tag": "std",
            "where": where,
            "seed": 3,
        }
        await self._say("DrawSamples", request_id="w", batch_size=1, **draw)
        group: dict[str, Any] = {"group_id": "g", "sample_ids": ["g0"], "session_id": session, "weight_version": 4}
        reserved = await self._say("ReserveGroup", request_id="n", **group)
        await self._say("PutSamples", Traffic.put("o", ["g0"], reserved.reservation_id), b"\2" * 4)
        await self._say("FinishGroup", request_id="i", reservation_id=reserved.reservation_id)
        await self._say("AbortGroup", request_id="j", reservation_id=reserved.reservation_id, reason="late")
        await self._say("ResetTask", request_id="s", task="b", whole_task=True)
        for verb in ("GetPartition", "ListPartitions", "GetServerStatus", "ListSessions", "ListClaims", "ExplainWaits"):
            await self._say(verb)
        await self._say("GetConsumptionStatus", tasks=["a", "b"])
        await self._say("ListDeadLetters", task="a")
        await self._say("GetSample", sample_id="s0")
        await self._say("ListSamples", task="a", states=["untaken"], where=where, page_size=2)
        await self._say("ClearSamples", request_id="c", sample_ids=["s0"], where=where)
        await self._say("ClosePartition", request_id="t")
        await self._say("CreateSnapshot", request_id="x", snapshot="a")
        await self._say("DropPartition", request_id="y")
        await self._say("RegisterPartition", register())
        self._world.end()

    @staticmethod
    def put(request_id: str, ids: list[str], reservation_id: str = "") -> pb.PutSamplesHeader:
        return pb.PutSamplesHeader(
            request_id=request_id,
            partition_id="p",
            sample_ids=ids,
            columns=[pb.Column(name="y", kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_FLOAT32)],
            row_tags=[msgpack.packb({"std": 0.25})] * len(ids),
            reservation_id=reservation_id,
            once=["y"],
        )

    async def _say(self, verb: str, given: Any = None, values: bytes = b"", **fields: Any) -> Any:
        method = SERVICE.methods_by_name[verb]
        kind = getattr(pb, method.input_type.name)
        if given is None:
            known = {"partition_id": "p"} if "partition_id" in kind.DESCRIPTOR.fields_by_name else {}
            given = kind(**known, **fields)
        self.sent.append((verb, given, values))
        with contextlib.suppress(Refusal):
            return await self._world.call(verb, world_body(verb, given, values))


def world_body(verb: str, message: Message, values: bytes = b"") -> bytes:
    """A request as `World.call` takes it."""
    body = grpc_body(verb, message, values)
    return joined([body]) if METHODS[verb].client_streaming else body


@functools.cache
def seeds(name: str) -> tuple[bytes, ...]:
    """The seeds of a target."""
    return tuple(_SEEDS[name]())


@functools.cache
def _traffic() -> list[tuple[str, Message, bytes]]:
    traffic = Traffic()
    loop().run_until_complete(traffic.record())
    return traffic.sent


def _frames() -> list[bytes]:
    frames = [frame_prefix(m.SerializeToString(), 0, len(v)) + v for _, m, v in _traffic() if v]
    return [put_frame(), *frames, frame_prefix(None, 7, 3) + b"abc", b"\x12\x03\x12\x01a\x0a\x00"]


def _streams() -> list[bytes]:
    commit = pb.CommitClaimHeader(request_id="m", claim_id="c").SerializeToString()
    return [
        b"\x05\x00" + joined([frame_prefix(commit, 0, 2) + b"ab", frame_prefix(None, 2, 3) + b"cde"]),
        b"\x00\x00" + joined([frame_prefix(commit, 0, 0)]),
        b"\x01\x00" + joined([frame_prefix(b"", 0, 0), frame_prefix(b"", 0, 1) + b"x"]),
    ]


def _requests() -> list[bytes]:
    """What an honest client says, all of it and a request at a time, and what a hostile one does, verb by verb."""
    sent = [_piece(*call) for call in _traffic()]
    kinds = {f"{verb} {len(data)}": data for (verb, *_), data in zip(_traffic(), sent, strict=True)}
    hostile: dict[str, list[bytes]] = defaultdict(list)
    for one in REQUESTS.values():
        if (message := one.message).ByteSize() < _MOST_PIECE_BYTES:
            hostile[one.verb].append(_piece(one.verb, message, b"xy" if one.verb == "PutSamples" else b""))
    return [joined(sent), *(joined([one]) for one in kinds.values()), *map(joined, hostile.values())]


def _piece(verb: str, message: Message, values: bytes) -> bytes:
    return bytes([VERBS.index(verb)]) + world_body(verb, message, values)


def _local() -> list[bytes]:
    local = [framed(LOCAL_METHODS[verb], local_body(verb, message, values)) for verb, message, values in _traffic()]
    return [b"".join(local), *local, _hand_over(), b"".join(local[:3])[:-3], framed(local_pb2.LOCAL_METHOD_JOIN)]


def _filter_terms() -> list[bytes]:
    filters = [filter_message(text, "seed") for text in EXPRESSIONS[:6]]
    return [message.SerializeToString() for message in filters if message is not None]


def _snapshots() -> list[bytes]:
    return [
        joined([]),
        joined([b'{"format": 2}']),
        joined([b'{"values_bytes": "many", "rows": null}']),
        joined([b"["]),
        joined([b"[" * 2000]),
        joined([b"", edit(OVERWRITE, 8, content=b"\xff" * 8)]),
        joined([b"", edit(OVERWRITE, 8, content=b"\xff" * 6 + b"\x00\x00")]),
        joined([b"", edit(CUT, 9)]),
        joined([b"", b"", edit(FLIP, 200, 3)]),
        joined([b"", b"", b"", edit(FLIP, 10, 3)]),
    ]


def _hand_over() -> bytes:
    """A put into the arena: reserve, finish; a lease, and its release before and after."""
    put = local_pb2.LocalPutRequest(handle=1)
    put.header.CopyFrom(Traffic.put("z", ["s5"]))
    request = pb.ReadColumnsRequest(partition_id="p", sample_ids=["s0"], fields=["x"])
    read = local_pb2.LocalReadRequest(handle=2, request=request)
    traced = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    return b"".join(
        [
            framed(local_pb2.LOCAL_METHOD_PUT, put),
            framed(local_pb2.LOCAL_METHOD_FINISH_WRITE, local_pb2.FinishWriteRequest(handle=1)),
            framed(local_pb2.LOCAL_METHOD_READ, read),
            framed(local_pb2.LOCAL_METHOD_LET_GO, local_pb2.LetGoRequest(handles=[2, 3])),
            framed(local_pb2.LOCAL_METHOD_READ | TRACED, traced + read.SerializeToString()),
        ]
    )


def _columns() -> list[bytes]:
    fields = {
        "x": [torch.arange(2), torch.arange(3)],
        "y": torch.ones(2, 3, dtype=torch.float16),
        "b": np.array([True, False]),
        "o": np.array([{"a": 1}, None], object),
    }
    columns = encode_columns(fields)
    found = [(columns, b"".join(bytes(column.values) for column in columns))]
    found += [([column], bytes(column.values)) for column in columns]
    headers = [pb.ReadColumnsHeader(columns=map(column_message, some)) for some, _ in found]
    return [b"\x02" + joined([h.SerializeToString(), values]) for h, (_, values) in zip(headers, found, strict=True)]


def _records() -> list[bytes]:
    folder = disk_targets.written_directory()
    reader = LogReader(folder, 0)
    records = list(chain.from_iterable(iter(reader.read, [])))
    calls = [msgpack.unpackb(record, use_list=True) for record in records]
    mistyped = [msgpack.packb([now, name, *fields[:-1], {}]) for now, name, *fields in calls]
    return [joined(records), *(joined([record]) for record in records), joined([records[0], *mistyped[1:]])]


def _damage(names: list[str]) -> list[bytes]:
    """Each file cut, flipped in its middle, zeroed, without some bytes, or gone."""
    kinds = [
        edit(CUT, 30),
        edit(FLIP, 200, 1),
        edit(OVERWRITE, 300, content=bytes(64)),
        edit(DELETE, 100, 5),
        edit(INSERT, 65535, content=b"\xd1REC\x01"),
        disk_targets.GONE,
    ]
    return [b"", *(joined([b""] * number + [kind]) for number in range(len(names)) for kind in kinds)]


def _of_pieces(chunks: list[bytes]) -> list[bytes]:
    kinds = [edit(CUT, 20), edit(FLIP, 40, 2), edit(OVERWRITE, 10, content=b"\xcf" + b"\x7f" * 8), edit(DELETE, 3, 1)]
    return [b"", *(joined([b""] * number + [kind]) for number in range(len(chunks)) for kind in kinds)]


_SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "frame": _frames,
    "stream": _streams,
    "requests": _requests,
    "local": _local,
    "http": lambda: [body.encode() for body in BODIES],
    "filter_expression": lambda: [text.encode() for text in EXPRESSIONS],
    "filter_terms": _filter_terms,
    "objects": lambda: [joined([ObjectPacker().pack(value)]) for value in OBJECTS],
    "columns": _columns,
    "data_directory": lambda: _damage(sorted(disk_targets.base_directory().files)),
    "log_records": _records,
    "checkpoint": lambda: _of_pieces(disk_targets.base_chunks()),
    "snapshot": _snapshots,
}
