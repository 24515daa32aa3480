"""Requests that are well-formed protobuf and break the contract, and bytes that are no message at all.

Each is said to every endpoint that has its verb (`test_requests`), over and over by an attacker (`attacks`), and is a
seed of fuzzing (`fuzz`).
"""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
from google.protobuf.message_factory import GetMessageClass

from rl_dataplane.v1 import data_plane_pb2 as pb

REQUEST, ROWS = "INVALID_REQUEST", "ROW_COUNT_MISMATCH"
SERVICE = pb.DESCRIPTOR.services_by_name["DataPlaneService"]
_numbers = itertools.count()


@dataclass(frozen=True)
class Request:
    """A request that is refused. fields: what is changed of one in order. reason: for programs. fact: what the message
    names, such as the field, the row, the number; "..." is for what is between.

    Partition p has fields x, y and z, task train, and three rows, which are ready, s and t among them; no row has z
    (`Target.fill`).
    """

    verb: str
    fields: dict[str, Any]
    reason: str
    fact: str

    @property
    def message(self) -> Any:
        """It, or the header of its stream, under a request_id of its own."""
        kind = _HEADERS.get(self.verb) or GetMessageClass(SERVICE.methods_by_name[self.verb].input_type)
        named = {"request_id": f"hostile-{next(_numbers)}"} if "request_id" in kind.DESCRIPTOR.fields_by_name else {}
        return kind(**{**named, **_DEFAULTS.get(self.verb, {}), **self.fields})


def int64s(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def column(**changed: Any) -> dict[str, Any]:
    """Of a put of a scalar byte for each row, with a layout that is changed."""
    layout = {"name": "z", "kind": pb.FIELD_KIND_DENSE, "data_type": pb.DATA_TYPE_UINT8, **changed}
    return {"columns": [pb.Column(**layout)]}


def tagged(value: object) -> dict[str, Any]:
    return {"row_tags": [b"", msgpack.packb(value)]}


def jagged(*lengths: int, **more: Any) -> dict[str, Any]:
    return {"kind": pb.FIELD_KIND_JAGGED, "row_lengths": int64s(*lengths), **more}


_HEADERS: dict[str, Any] = {"PutSamples": pb.PutSamplesHeader, "CommitClaim": pb.CommitClaimHeader}
"""Of verbs whose requests are streams."""
_TASK: dict[str, Any] = {"partition_id": "p", "task": "train"}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "ClaimSamples": {**_TASK, "batch_size": 2, "mode": pb.CLAIM_MODE_ACKNOWLEDGED},
    "ClaimShard": {**_TASK, "dp_world": 2, "batch_size": 2, "balance": pb.SHARD_BALANCE_ROWS},
    "ClearSamples": {"partition_id": "p"},
    "CommitClaim": {"claim_id": "nope"},
    "DropPartition": {"partition_id": "p"},
    "PutSamples": {"partition_id": "p", "sample_ids": ["s", "t"], **column()},
    "RegisterPartition": {"partition_id": "q", "fields": ["x"]},
    "ReleaseClaim": {"claim_id": "c"},
    "ResetTask": _TASK,
    "ReserveGroup": {"partition_id": "p", "group_id": "g", "sample_ids": ["new"]},
}
"""Of requests that are in order."""

_OBJECTS: dict[str, Any] = {"kind": pb.FIELD_KIND_OBJECT, "data_type": 0, "row_lengths": int64s(1, 1)}
_BOOL = pb.Column(name="z", kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_BOOL)
_BYTES_15 = int64s(1, 1)[:15]

_COLUMNS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no kind": ({"kind": 0}, REQUEST, "'z' ... kind"),
    "an unknown kind": ({"kind": 99}, REQUEST, "'z' ... kind"),
    "no element type": ({"data_type": 0}, REQUEST, "'z' ... element type"),
    "an unknown element type": ({"data_type": 99}, REQUEST, "'z' ... element type"),
    "an element type of objects": ({**_OBJECTS, "data_type": 1}, REQUEST, "object"),
    "a row shape of objects": ({**_OBJECTS, "row_shape": [1]}, REQUEST, "object"),
    "lengths of dense rows": ({"row_lengths": int64s(1, 1)}, REQUEST, "'z' ... dense"),
    "jagged rows without lengths": (jagged(), ROWS, "'z' has 0"),
    "objects without lengths": ({**_OBJECTS, "row_lengths": b""}, ROWS, "'z' has 0"),
    "lengths of one row": (jagged(2), ROWS, "'z' has 1"),
    "lengths of three rows": (jagged(1, 1, 0), ROWS, "'z' has 3"),
    "lengths of 15 bytes": (jagged(row_lengths=_BYTES_15), REQUEST, "15"),
    "a negative length": (jagged(3, -1), REQUEST, "'z', row 1: length -1"),
    "a length beyond all rows": (jagged(1 << 31, 0), REQUEST, "'z', row 0"),
    "lengths whose sum overflows": (
        jagged((1 << 31) - 1, (1 << 31) - 1, row_shape=[1 << 30, 512]), "PUT_TOO_LARGE", "budget",
    ),
    "nine dimensions": ({"row_shape": [1] * 9}, REQUEST, "'z' has 9"),
    "a shape beyond all memory": ({"row_shape": [1 << 63, 1 << 63]}, REQUEST, "'z' ... large"),
    "a nameless field": ({"name": ""}, REQUEST, "field"),
    "an over-long field name": ({"name": "x" * 257}, REQUEST, "257"),
}  # fmt: skip

_PUTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a request_id of 65 bytes": ({"request_id": "x" * 65}, REQUEST, "64"),
    "no partition": ({"partition_id": ""}, "PARTITION_NOT_FOUND", "''"),
    "an append of nothing": ({"columns": [], "append": True}, REQUEST, "column"),
    "an append to any field": ({"append": True}, REQUEST, "'z' ... per-token"),
    "an add to no group": ({"add_to_group": True}, REQUEST, "reservation"),
    "no sample": ({"sample_ids": []}, REQUEST, "65536"),
    "a field twice": ({"columns": [_BOOL, _BOOL]}, "DUPLICATE", "'z' ... duplicate"),
    "sequence lengths of 15 bytes": ({"sequence_lengths": _BYTES_15}, REQUEST, "sequence_lengths"),
    "sequence lengths of one row": ({"sequence_lengths": int64s(1)}, ROWS, "1"),
    "a sequence length of -2": ({"sequence_lengths": int64s(-2, 1)}, REQUEST, "'s'"),
    "tags of one row": ({"row_tags": [b""]}, ROWS, "1"),
    "tags that are no msgpack": ({"row_tags": [b"", b"\xc1"]}, REQUEST, "row 1"),
    "tags that end too soon": ({"row_tags": [b"\x81\xa1n", b""]}, REQUEST, "row 0"),
    "tags that go on": ({"row_tags": [b"\x80\x80", b""]}, REQUEST, "row 0"),
    "tags in a list": (tagged([1]), REQUEST, "list"),
    "tags with int keys": (tagged({1: 2}), REQUEST, "row 1"),
    "tags with bytes keys": (tagged({b"n": 2}), REQUEST, "'t'"),
    "tags that are lists": (tagged({"n": [1]}), REQUEST, "row 1 are not a valid msgpack map: tag 'n'"),
    "tags of an extension type": (tagged({"n": msgpack.ExtType(5, b"payload")}), REQUEST, "row 1"),
    "tags of an empty extension type": (tagged({"n": msgpack.ExtType(5, b"")}), REQUEST, "'t', tag 'n'"),
    "tags that are time stamps": (tagged({"n": msgpack.Timestamp(1)}), REQUEST, "row 1"),
    "tags that are no text": ({"row_tags": [b"\x81\xa1\xff\x01", b""]}, REQUEST, "row 0"),
    "tags nested without end": ({"row_tags": [b"\x81\xa1n" + b"\x91" * 5000, b""]}, REQUEST, "row 0"),
    "tags that announce a gigabyte": ({"row_tags": [b"\x81\xa1n\xdb\x40\x00\x00\x00", b""]}, REQUEST, "row 0"),
    "tags of 65 KiB": (tagged({str(i): "x" * 1024 for i in range(65)}), REQUEST, "65536"),
    "a pickle for tags": ({"row_tags": [pickle.dumps({"n": 1}), b""]}, REQUEST, "row 0"),
    "generations of 15 bytes": ({"generations": _BYTES_15}, REQUEST, "15"),
    "generations of one row": ({"generations": int64s(1)}, ROWS, "generations"),
    "generations of other rows": ({"generations": int64s(1, 2)}, "ROW_REPLACED", "'s'"),
    "an unknown claim": ({"claim_id": "nope"}, "CLAIM_NOT_FOUND", "'nope'"),
    "an unknown reservation": ({"reservation_id": "nope"}, "GROUP_FENCED", "'nope'"),
    "a payload shared by no group": ({"shared": True, "sample_ids": []}, REQUEST, "reservation"),
    "a caller of 257 bytes": ({"caller": "x" * 257}, REQUEST, "256"),
}

_CALLS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "claim without mode": ("ClaimSamples", {"mode": 0}, REQUEST, "mode"),
    "claim with an unknown mode": ("ClaimSamples", {"mode": 99}, REQUEST, "mode"),
    "claim of no rows": ("ClaimSamples", {"batch_size": 0}, REQUEST, "batch_size 0"),
    "claim of at least no rows": ("ClaimSamples", {"min_size": 0}, REQUEST, "min_size 0"),
    "claim of 4 billion rows": ("ClaimSamples", {"batch_size": (1 << 32) - 1}, REQUEST, "65536"),
    "claim of more rows than are ready": ("ClaimSamples", {"batch_size": 4}, "CLAIM_TIMEOUT", "3 of 3"),
    "claim of an unknown unit": ("ClaimSamples", {"unit": 99}, REQUEST, "unit"),
    "claim for a session that never was": ("ClaimSamples", {"session_id": "nobody"}, "SESSION_EXPIRED", "'nobody'"),
    "shard without balance": ("ClaimShard", {"balance": 0}, REQUEST, "balance"),
    "shard with an unknown balance": ("ClaimShard", {"balance": 99}, REQUEST, "balance"),
    "shard of an unknown unit": ("ClaimShard", {"unit": 99}, REQUEST, "unit"),
    "shard of groups that may be split": ("ClaimShard", {"unit": 2}, REQUEST, "whole_groups"),
    "shard of no ranks": ("ClaimShard", {"dp_world": 0}, REQUEST, "dp_world"),
    "shard of a rank beyond": ("ClaimShard", {"dp_rank": 2}, REQUEST, "dp_rank"),
    "shard for a session that never was": ("ClaimShard", {"session_id": "nobody"}, "SESSION_EXPIRED", "'nobody'"),
    "adoption of an unknown claim": ("AdoptClaim", {"claim_id": "n", "session_id": "s"}, "CLAIM_NOT_FOUND", "'n'"),
    "commit of an unknown claim": ("CommitClaim", {"claim_id": "nope"}, "CLAIM_NOT_FOUND", "'nope'"),
    "release of an unknown claim": ("ReleaseClaim", {"claim_id": "c" * 10_000}, "CLAIM_NOT_FOUND", "'ccc"),
    "release of a claim and of a request": ("ReleaseClaim", {"claim_request_id": "q"}, REQUEST, "both"),
    "release with a reason of 257 bytes": ("ReleaseClaim", {"reason": "x" * 257}, REQUEST, "256"),
    "giving up a request that was no claim": (
        "ReleaseClaim", {"claim_id": "", "claim_request_id": "x" * 65}, REQUEST, "64",
    ),
    "giving up a request without request_id": (
        "ReleaseClaim", {"claim_id": "", "claim_request_id": "q", "request_id": ""}, REQUEST, "request_id",
    ),
    "clear of a selection and everything": (
        "ClearSamples", {"sample_ids": ["s"], "whole_partition": True}, REQUEST, "both",
    ),
    "clear of nothing": ("ClearSamples", {}, REQUEST, "65536"),
    "clear with generations of 15 bytes": (
        "ClearSamples", {"sample_ids": ["s", "t"], "generations": _BYTES_15}, REQUEST, "15",
    ),
    "clear with generations of one row": (
        "ClearSamples", {"sample_ids": ["s", "t"], "generations": int64s(1)}, ROWS, "generations",
    ),
    "reset of samples and the whole task": (
        "ResetTask", {"whole_task": True, "sample_ids": ["s"]}, REQUEST, "both",
    ),
    "reset of nothing": ("ResetTask", {}, REQUEST, "65536"),
    "reset of an unknown task": ("ResetTask", {"task": "nope", "whole_task": True}, "TASK_NOT_REGISTERED", "'nope'"),
    "dead letters of an unknown task": (
        "ListDeadLetters", {"partition_id": "p", "task": "nope"}, "TASK_NOT_REGISTERED", "'nope'",
    ),
    "reservation of rows that exist": ("ReserveGroup", {"sample_ids": ["new", "s"]}, "SAMPLE_EXISTS", "'s'"),
    "reservation without a name": ("ReserveGroup", {"group_id": ""}, REQUEST, "group"),
    "end of an unknown group": ("FinishGroup", {"reservation_id": "nope"}, "GROUP_FENCED", "'nope'"),
    "roll-back of an unknown group": ("AbortGroup", {"reservation_id": "nope"}, "GROUP_FENCED", "'nope'"),
    "roll-back of a group and of a request": (
        "AbortGroup", {"reservation_id": "r", "reserve_request_id": "q"}, REQUEST, "both",
    ),
    "giving up a request that was no reservation": (
        "AbortGroup", {"reservation_id": "", "reserve_request_id": "x" * 65}, REQUEST, "64",
    ),
    "story of a sample of no partition": (
        "GetSample", {"partition_id": "nope", "sample_id": "s"}, "PARTITION_NOT_FOUND", "'nope'",
    ),
    **{f"{verb} without request_id": (verb, {"request_id": ""}, REQUEST, "request_id") for verb in _DEFAULTS},
}  # fmt: skip

REQUESTS = {
    **{name: Request("PutSamples", column(**layout), *told) for name, (layout, *told) in _COLUMNS.items()},
    **{name: Request("PutSamples", fields, *told) for name, (fields, *told) in _PUTS.items()},
    **{name: Request(*told) for name, told in _CALLS.items()},
}
NO_MESSAGES = {"no message": b"\xff" * 50, "text that is no UTF-8": b"\x0a\x02\xff\xfe"}
"""For every verb whose request has fields, the first of them a text or a message."""

NO_OBJECTS = {
    "no msgpack": b"\xc1",
    "truncated": b"\x92\x01",
    "two values": b"\x01\x02",
    "no value": b"",
    "an extension": b"\xd4\x05x",
    "a time stamp": b"\xd6\xff\x00\x00\x00\x01",
    "no UTF-8": b"\xa1\xff",
    "a pickle": pickle.dumps(print),
}
"""Values of objects that are not one msgpack value."""

NO_FRAMES = {
    "nothing": b"",
    "zeros": bytes(1000),
    "ones": b"\xff" * 1000,
    "half a frame": b"\xff\xff\x00\x00\x40\x00\x00\x00half",
    "a request for metrics without its end": b"GET /metrics HTTP/1.1\r\nHost: x\r\n",
    "a POST of a browser": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
    "a header line without an end": b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000,
    "HTTP/2 with a frame of 16 MiB": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x04\x00\x00\x00\x00\x00",
    "a hello of TLS": bytes.fromhex("16030100c8010000c40303") + bytes(189),
}
"""Of a connection, whatever it is to."""
