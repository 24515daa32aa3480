"""Messages that are well-formed protobuf and break the contract."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import grpc
import msgpack
import numpy as np
import pytest
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2
from tests.integration.conftest import Unchanged

from dataplane_client.client import DataPlaneClient
from rl_dataplane.v1 import data_plane_pb2 as pb

Refusal = Callable[[Callable[[], object]], tuple[grpc.StatusCode, str, str]]

Fields = dict[str, Any]

INVALID = grpc.StatusCode.INVALID_ARGUMENT
REQUEST, ROWS = "INVALID_REQUEST", "ROW_COUNT_MISMATCH"
SERVICE = pb.DESCRIPTOR.services_by_name["DataPlaneService"]
_numbers = itertools.count()


@pytest.fixture
def registered(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["x", "y"], 0, ["train"])
    client.put_samples(["s", "t"], "p", tags=[{"n": 1}, {}])
    return client


def int64s(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def put(column: Fields | None = None, **more: Any) -> pb.PutSamplesRequest:
    """A put of two scalar bytes, in one frame, changed as told."""
    layout = {"name": "x", "kind": pb.FIELD_KIND_DENSE, "data_type": pb.DATA_TYPE_UINT8, **(column or {})}
    rows = {"partition_id": "p", "sample_ids": ["s", "t"], "columns": [pb.Column(**layout)], **more}
    header = pb.PutSamplesHeader(**{"request_id": f"request-{next(_numbers)}", **rows})
    return pb.PutSamplesRequest(header=header, chunk=pb.Chunk(data=b"xy"))


def tagged(value: object) -> Fields:
    return {"row_tags": [b"", msgpack.packb(value)]}


def jagged(*lengths: int, **more: Any) -> Fields:
    return {"kind": pb.FIELD_KIND_JAGGED, "row_lengths": int64s(*lengths), **more}


OBJECTS: Fields = {"kind": pb.FIELD_KIND_OBJECT, "data_type": 0, "row_lengths": int64s(1, 1)}
BOOL = pb.Column(name="x", kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_BOOL)
BYTES_15 = int64s(1, 1)[:15]
NO_INT64S = "15 bytes are not a multiple of 8"

COLUMNS: dict[str, tuple[Fields, str, str]] = {
    "no kind": ({"kind": 0}, REQUEST, "'x' has no kind"),
    "an unknown kind": ({"kind": 99}, REQUEST, "'x' has no kind"),
    "no element type": ({"data_type": 0}, REQUEST, "'x' has no element type"),
    "an unknown element type": ({"data_type": 99}, REQUEST, "'x' has no element type"),
    "an element type of objects": ({**OBJECTS, "data_type": 1}, REQUEST, "object"),
    "a row shape of objects": ({**OBJECTS, "row_shape": [1]}, REQUEST, "object"),
    "lengths of dense rows": ({"row_lengths": int64s(1, 1)}, REQUEST, "'x' is dense"),
    "jagged rows without lengths": (jagged(), ROWS, "'x' has 0 rows"),
    "objects without lengths": ({**OBJECTS, "row_lengths": b""}, ROWS, "'x' has 0 rows"),
    "lengths of one row": (jagged(2), ROWS, "'x' has 1 rows but the call names 2"),
    "lengths of three rows": (jagged(1, 1, 0), ROWS, "'x' has 3 rows"),
    "lengths of 15 bytes": (jagged(row_lengths=BYTES_15), REQUEST, NO_INT64S),
    "a negative length": (jagged(3, -1), REQUEST, "'x', row 1: length -1"),
    "a length beyond all rows": (jagged(1 << 31, 0), REQUEST, "'x', row 0"),
    "lengths whose sum overflows": (
        jagged((1 << 31) - 1, (1 << 31) - 1, row_shape=[1 << 30, 512]), "PUT_TOO_LARGE", "whole memory budget",
    ),
    "nine dimensions": ({"row_shape": [1] * 9}, REQUEST, "'x' has 9 dimensions"),
    "a shape beyond all memory": ({"row_shape": [1 << 63, 1 << 63]}, REQUEST, "too large"),
    "a nameless field": ({"name": ""}, REQUEST, "field name"),
    "an over-long field name": ({"name": "x" * 257}, REQUEST, "257"),
}  # fmt: skip

HEADERS: dict[str, tuple[Fields, str, str]] = {
    "no request_id": ({"request_id": ""}, REQUEST, "request_id"),
    "a request_id of 65 bytes": ({"request_id": "x" * 65}, REQUEST, "1 to 64 bytes"),
    "no partition": ({"partition_id": ""}, "PARTITION_NOT_FOUND", "''"),
    "an append of nothing": ({"columns": [], "append": True}, REQUEST, "at least one column"),
    "an append to any field": ({"append": True}, REQUEST, "'x': entries can be appended to per-token"),
    "an add to no group": ({"add_to_group": True}, REQUEST, "names its reservation"),
    "no sample": ({"sample_ids": []}, REQUEST, "1 to 65536"),
    "a field twice": ({"columns": [BOOL, BOOL]}, "DUPLICATE", "duplicate field 'x'"),
    "sequence lengths of 15 bytes": ({"sequence_lengths": BYTES_15}, REQUEST, "sequence_lengths"),
    "sequence lengths of one row": ({"sequence_lengths": int64s(1)}, ROWS, "1 rows"),
    "a sequence length of -2": ({"sequence_lengths": int64s(-2, 1)}, REQUEST, "'s'"),
    "tags of one row": ({"row_tags": [b""]}, ROWS, "tags for 1 rows"),
    "tags that are no msgpack": ({"row_tags": [b"", b"\xc1"]}, REQUEST, "tags of row 1"),
    "tags that end too soon": ({"row_tags": [b"\x81\xa1n", b""]}, REQUEST, "tags of row 0"),
    "tags that go on": ({"row_tags": [b"\x80\x80", b""]}, REQUEST, "tags of row 0"),
    "tags in a list": (tagged([1]), REQUEST, "got list, not a map"),
    "tags with int keys": (tagged({1: 2}), REQUEST, "tags of row 1"),
    "tags with bytes keys": (tagged({b"n": 2}), REQUEST, "'t'"),
    "tags that are lists": (tagged({"n": [1]}), REQUEST, "'t', tag 'n'"),
    "tags of an extension type": (tagged({"n": msgpack.ExtType(5, b"payload")}), REQUEST, "row 1"),
    "tags of an empty extension type": (tagged({"n": msgpack.ExtType(5, b"")}), REQUEST, "'t', tag 'n'"),
    "tags that are time stamps": (tagged({"n": msgpack.Timestamp(1)}), REQUEST, "row 1"),
    "tags that are no text": ({"row_tags": [b"\x81\xa1\xff\x01", b""]}, REQUEST, "tags of row 0"),
    "tags nested without end": ({"row_tags": [b"\x81\xa1n" + b"\x91" * 5000, b""]}, REQUEST, "row 0"),
    "tags that announce a gigabyte": ({"row_tags": [b"\x81\xa1n\xdb\x40\x00\x00\x00", b""]}, REQUEST, "row 0"),
    "tags of 65 KiB": (tagged({str(i): "x" * 1024 for i in range(65)}), REQUEST, "65536"),
    "a pickle for tags": ({"row_tags": [pickle.dumps({"n": 1}), b""]}, REQUEST, "tags of row 0"),
    "generations of 15 bytes": ({"generations": BYTES_15}, REQUEST, NO_INT64S),
    "generations of one row": ({"generations": int64s(1)}, ROWS, "generations"),
    "generations of other rows": ({"generations": int64s(1, 2)}, "ROW_REPLACED", "'s'"),
    "an unknown claim": ({"claim_id": "nope"}, "CLAIM_NOT_FOUND", "'nope'"),
    "an unknown reservation": ({"reservation_id": "nope"}, "GROUP_FENCED", "'nope'"),
    "a payload shared by no group": ({"shared": True, "sample_ids": []}, REQUEST, "reservation"),
    "a caller of 257 bytes": ({"caller": "x" * 257}, REQUEST, "256"),
}

OTHER_CODES = {
    "PARTITION_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "CLAIM_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "ROW_REPLACED": grpc.StatusCode.NOT_FOUND,
    "GROUP_FENCED": grpc.StatusCode.ABORTED,
}
"""Of reasons that are not INVALID_ARGUMENT."""


@pytest.mark.parametrize("name", [*COLUMNS, *HEADERS])
def test_a_put_is_refused_for(
    registered: DataPlaneClient, stub: Any, refusal: Refusal, unchanged: Unchanged, name: str
) -> None:
    fields, expected, fragment = {**COLUMNS, **HEADERS}[name]
    request = put(fields) if name in COLUMNS else put(**fields)
    with unchanged(registered):
        code, reason, message = refusal(lambda: stub.PutSamples(iter([request]), timeout=20))
    assert (code, reason) == (OTHER_CODES.get(expected, INVALID), expected)
    assert fragment in message


REQUESTS = {method.name: GetMessageClass(method.input_type) for method in SERVICE.methods}
TASK: Fields = {"partition_id": "p", "task": "train"}
DEFAULTS: dict[str, Fields] = {
    "ClaimSamples": {**TASK, "batch_size": 2, "mode": pb.CLAIM_MODE_ACKNOWLEDGED},
    "ClaimShard": {**TASK, "dp_world": 2, "batch_size": 2, "balance": pb.SHARD_BALANCE_ROWS},
    "ClearSamples": {"partition_id": "p"},
    "DropPartition": {"partition_id": "p"},
    "RegisterPartition": {"partition_id": "q", "fields": ["x"]},
    "ReleaseClaim": {"claim_id": "c"},
    "ResetTask": TASK,
    "ReserveGroup": {"partition_id": "p", "group_id": "g", "sample_ids": ["new"]},
}


def request(verb: str, **fields: Any) -> Any:
    """A request in order, changed as told, under a request_id of its own."""
    named = (
        {"request_id": f"request-{next(_numbers)}"} if "request_id" in REQUESTS[verb].DESCRIPTOR.fields_by_name else {}
    )
    return REQUESTS[verb](**{**named, **DEFAULTS.get(verb, {}), **fields})


CALLS: dict[str, tuple[str, Fields, str, str]] = {
    "claim without mode": ("ClaimSamples", {"mode": 0}, REQUEST, "mode"),
    "claim with an unknown mode": ("ClaimSamples", {"mode": 99}, REQUEST, "mode"),
    "claim of no rows": ("ClaimSamples", {"batch_size": 0}, REQUEST, "batch_size 0"),
    "claim of at least no rows": ("ClaimSamples", {"min_size": 0}, REQUEST, "min_size 0"),
    "claim of 4 billion rows": ("ClaimSamples", {"batch_size": (1 << 32) - 1}, REQUEST, "65536"),
    "claim of more rows than are ready": ("ClaimSamples", {"batch_size": 3}, "CLAIM_TIMEOUT", "2 of 2"),
    "claim of an unknown unit": ("ClaimSamples", {"unit": 99}, REQUEST, "batch unit"),
    "claim for a session that never was": ("ClaimSamples", {"session_id": "nobody"}, "SESSION_EXPIRED", "'nobody'"),
    "shard without balance": ("ClaimShard", {"balance": 0}, REQUEST, "balance"),
    "shard with an unknown balance": ("ClaimShard", {"balance": 99}, REQUEST, "balance"),
    "shard of an unknown unit": ("ClaimShard", {"unit": 99}, REQUEST, "batch unit"),
    "shard of groups that may be split": ("ClaimShard", {"unit": 2}, REQUEST, "whole_groups"),
    "shard of no ranks": ("ClaimShard", {"dp_world": 0}, REQUEST, "dp_world"),
    "shard of a rank beyond": ("ClaimShard", {"dp_rank": 2}, REQUEST, "dp_rank"),
    "shard for a session that never was": ("ClaimShard", {"session_id": "nobody"}, "SESSION_EXPIRED", "'nobody'"),
    "adoption of an unknown claim": ("AdoptClaim", {"claim_id": "n", "session_id": "s"}, "CLAIM_NOT_FOUND", "'n'"),
    "release of an unknown claim": ("ReleaseClaim", {"claim_id": "c" * 10_000}, "CLAIM_NOT_FOUND", "'ccc"),
    "release of a claim and of a request": ("ReleaseClaim", {"claim_request_id": "q"}, REQUEST, "not both"),
    "release with a reason of 257 bytes": ("ReleaseClaim", {"reason": "x" * 257}, REQUEST, "256"),
    "giving up a request that was no claim": (
        "ReleaseClaim", {"claim_id": "", "claim_request_id": "x" * 65}, REQUEST, "1 to 64 bytes",
    ),
    "giving up a request without request_id": (
        "ReleaseClaim", {"claim_id": "", "claim_request_id": "q", "request_id": ""}, REQUEST, "request_id",
    ),
    "clear of a selection and everything": (
        "ClearSamples", {"sample_ids": ["s"], "whole_partition": True}, REQUEST, "not both",
    ),
    "clear of nothing": ("ClearSamples", {}, REQUEST, "1 to 65536"),
    "clear with generations of 15 bytes": (
        "ClearSamples", {"sample_ids": ["s", "t"], "generations": BYTES_15}, REQUEST, NO_INT64S,
    ),
    "clear with generations of one row": (
        "ClearSamples", {"sample_ids": ["s", "t"], "generations": int64s(1)}, ROWS, "generations",
    ),
    "reset of samples and the whole task": (
        "ResetTask", {"whole_task": True, "sample_ids": ["s"]}, REQUEST, "not both",
    ),
    "reset of nothing": ("ResetTask", {}, REQUEST, "1 to 65536"),
    "reset of an unknown task": ("ResetTask", {"task": "nope", "whole_task": True}, "TASK_NOT_REGISTERED", "'nope'"),
    "dead letters of an unknown task": (
        "ListDeadLetters", {"partition_id": "p", "task": "nope"}, "TASK_NOT_REGISTERED", "'nope'",
    ),
    "reservation of rows that exist": ("ReserveGroup", {"sample_ids": ["new", "s"]}, "SAMPLE_EXISTS", "'s'"),
    "reservation without a name": ("ReserveGroup", {"group_id": ""}, REQUEST, "group"),
    "end of an unknown group": ("FinishGroup", {"reservation_id": "nope"}, "GROUP_FENCED", "'nope'"),
    "roll-back of an unknown group": ("AbortGroup", {"reservation_id": "nope"}, "GROUP_FENCED", "'nope'"),
    "story of a sample of no partition": (
        "GetSample", {"partition_id": "nope", "sample_id": "s"}, "PARTITION_NOT_FOUND", "'nope'",
    ),
    **{f"{verb} without request_id": (verb, {"request_id": ""}, REQUEST, "request_id") for verb in DEFAULTS},
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_refused_is_the(
    registered: DataPlaneClient, stub: Any, refusal: Refusal, unchanged: Unchanged, name: str
) -> None:
    verb, fields, expected, fragment = CALLS[name]
    with unchanged(registered):
        _, reason, message = refusal(lambda: getattr(stub, verb)(request(verb, **fields), timeout=20))
    assert reason == expected
    assert fragment in message


@pytest.mark.parametrize(
    ("request_id", "expected"), [("r", ("CLAIM_NOT_FOUND", "'nope'")), ("", (REQUEST, "request_id"))]
)
def test_a_commit_of_an_unknown_claim_or_without_request_id_is_refused(
    registered: DataPlaneClient,
    stub: Any,
    refusal: Refusal,
    unchanged: Unchanged,
    request_id: str,
    expected: tuple[str, str],
) -> None:
    header = pb.CommitClaimHeader(request_id=request_id, claim_id="nope")
    with unchanged(registered):
        _, reason, message = refusal(lambda: stub.CommitClaim(iter([pb.CommitClaimRequest(header=header)]), timeout=20))
    assert (reason, expected[1] in message) == (expected[0], True)


def test_a_request_id_of_one_verb_cannot_be_used_for_another(
    registered: DataPlaneClient, stub: Any, refusal: Refusal, unchanged: Unchanged
) -> None:
    stub.PutSamples(iter([put(request_id="used")]), timeout=20)
    clear = request("ClearSamples", request_id="used", whole_partition=True)
    with unchanged(registered):
        code, _, message = refusal(lambda: stub.ClearSamples(clear, timeout=20))
    assert code is grpc.StatusCode.ALREADY_EXISTS
    assert "was used for put" in message


def test_a_negative_wait_is_no_wait(registered: DataPlaneClient, stub: Any, refusal: Refusal) -> None:
    claim = request("ClaimSamples", batch_size=3)
    claim.wait_timeout.FromSeconds(-100)
    assert refusal(lambda: stub.ClaimSamples(claim, timeout=20))[0] is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_refusal_names_the_field_in_a_bad_request(registered: DataPlaneClient, stub: Any, detail: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.PutSamples(iter([put({"kind": 0})]), timeout=20)
    violation = detail(caught.value, error_details_pb2.BadRequest()).field_violations[0]
    assert (violation.field, violation.description) == ("x", "field 'x' has no kind")


def test_a_refusal_names_partition_and_sample_in_its_metadata(
    registered: DataPlaneClient, stub: Any, detail: Any
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.ReadColumns(pb.ReadColumnsRequest(partition_id="p", sample_ids=["z"], fields=["x"]), timeout=20))
    info = detail(caught.value, error_details_pb2.ErrorInfo())
    assert dict(info.metadata) == {"partition_id": "p", "sample_id": "z"}
