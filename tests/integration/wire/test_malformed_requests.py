"""Messages that are well-formed protobuf and break the contract."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import grpc
import msgpack
import numpy as np
import pytest
from google.rpc import error_details_pb2

from dataplane_client.client import DataPlaneClient
from rl_dataplane.v1 import data_plane_pb2 as pb

Refusal = Callable[[Callable[[], object]], tuple[grpc.StatusCode, str, str]]
Unchanged = Callable[[DataPlaneClient], AbstractContextManager[None]]

INVALID = grpc.StatusCode.INVALID_ARGUMENT
_numbers = itertools.count()


@pytest.fixture
def registered(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["x", "y"], 0, ["train"])
    client.put_samples(["s", "t"], "p", tags=[{"n": 1}, {}])
    return client


def int64s(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def put(column: dict[str, Any] | None = None, data: bytes = b"xy", **more: Any) -> pb.PutSamplesRequest:
    """A put of two scalar bytes, in one frame, changed as told."""
    layout: dict[str, Any] = {"name": "x", "kind": pb.FIELD_KIND_DENSE, "data_type": pb.DATA_TYPE_UINT8}
    settings: dict[str, Any] = {
        "request_id": f"request-{next(_numbers)}",
        "partition_id": "p",
        "sample_ids": ["s", "t"],
        "columns": [pb.Column(**{**layout, **(column or {})})],
        **more,
    }
    return pb.PutSamplesRequest(header=pb.PutSamplesHeader(**settings), chunk=pb.Chunk(data=data))


def packed_tags(value: object) -> list[bytes]:
    return [b"", msgpack.packb(value)]


JAGGED = {"kind": pb.FIELD_KIND_JAGGED}
OBJECT = {"kind": pb.FIELD_KIND_OBJECT, "data_type": 0}

PUTS: dict[str, tuple[Callable[[], pb.PutSamplesRequest], str, str]] = {
    "no request_id": (lambda: put(request_id=""), "INVALID_REQUEST", "request_id"),
    "a request_id of 65 bytes": (lambda: put(request_id="x" * 65), "INVALID_REQUEST", "1 to 64 bytes"),
    "no partition": (lambda: put(partition_id=""), "PARTITION_NOT_FOUND", "''"),
    "an append of nothing": (lambda: put(columns=[], append=True), "INVALID_REQUEST", "at least one column"),
    "an append to any field": (
        lambda: put(append=True),
        "INVALID_REQUEST",
        "'x': entries can be appended to per-token",
    ),
    "an add to no group": (lambda: put(add_to_group=True), "INVALID_REQUEST", "names its reservation"),
    "no sample": (lambda: put(sample_ids=[]), "INVALID_REQUEST", "1 to 65536"),
    "no kind": (lambda: put({"kind": 0}), "INVALID_REQUEST", "'x' has no kind"),
    "an unknown kind": (lambda: put({"kind": 99}), "INVALID_REQUEST", "'x' has no kind"),
    "no element type": (lambda: put({"data_type": 0}), "INVALID_REQUEST", "'x' has no element type"),
    "an unknown element type": (lambda: put({"data_type": 99}), "INVALID_REQUEST", "'x' has no element type"),
    "an element type of objects": (
        lambda: put({**OBJECT, "data_type": 1, "row_lengths": int64s(1, 1)}),
        "INVALID_REQUEST",
        "object",
    ),
    "a row shape of objects": (
        lambda: put({**OBJECT, "row_shape": [1], "row_lengths": int64s(1, 1)}),
        "INVALID_REQUEST",
        "object",
    ),
    "lengths of dense rows": (lambda: put({"row_lengths": int64s(1, 1)}), "INVALID_REQUEST", "'x' is dense"),
    "jagged rows without lengths": (lambda: put(JAGGED), "ROW_COUNT_MISMATCH", "'x' has 0 rows"),
    "objects without lengths": (lambda: put(OBJECT), "ROW_COUNT_MISMATCH", "'x' has 0 rows"),
    "lengths of one row": (
        lambda: put({**JAGGED, "row_lengths": int64s(2)}),
        "ROW_COUNT_MISMATCH",
        "'x' has 1 rows but the call names 2",
    ),
    "lengths of three rows": (
        lambda: put({**JAGGED, "row_lengths": int64s(1, 1, 0)}),
        "ROW_COUNT_MISMATCH",
        "'x' has 3 rows",
    ),
    "lengths of 15 bytes": (
        lambda: put({**JAGGED, "row_lengths": int64s(1, 1)[:15]}),
        "INVALID_REQUEST",
        "15 bytes are not a multiple of 8",
    ),
    "a negative length": (
        lambda: put({**JAGGED, "row_lengths": int64s(3, -1)}),
        "INVALID_REQUEST",
        "'x', row 1: length -1",
    ),
    "a length beyond all rows": (
        lambda: put({**JAGGED, "row_lengths": int64s(1 << 31, 0)}),
        "INVALID_REQUEST",
        "'x', row 0",
    ),
    "lengths whose sum overflows": (
        lambda: put({**JAGGED, "row_shape": [1 << 30, 512], "row_lengths": int64s((1 << 31) - 1, (1 << 31) - 1)}),
        "PUT_TOO_LARGE",
        "whole memory budget",
    ),
    "nine dimensions": (lambda: put({"row_shape": [1] * 9}), "INVALID_REQUEST", "'x' has 9 dimensions"),
    "a shape beyond all memory": (lambda: put({"row_shape": [1 << 63, 1 << 63]}), "INVALID_REQUEST", "too large"),
    "a field twice": (
        lambda: put(columns=[pb.Column(name="x", kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_BOOL)] * 2),
        "DUPLICATE",
        "duplicate field 'x'",
    ),
    "a nameless field": (lambda: put({"name": ""}), "INVALID_REQUEST", "field name"),
    "an over-long field name": (lambda: put({"name": "x" * 257}), "INVALID_REQUEST", "257"),
    "sequence lengths of 15 bytes": (
        lambda: put(sequence_lengths=int64s(1, 1)[:15]),
        "INVALID_REQUEST",
        "sequence_lengths",
    ),
    "sequence lengths of one row": (lambda: put(sequence_lengths=int64s(1)), "ROW_COUNT_MISMATCH", "1 rows"),
    "a sequence length of -2": (lambda: put(sequence_lengths=int64s(-2, 1)), "INVALID_REQUEST", "'s'"),
    "tags of one row": (lambda: put(row_tags=[b""]), "ROW_COUNT_MISMATCH", "tags for 1 rows"),
    "tags that are no msgpack": (lambda: put(row_tags=[b"", b"\xc1"]), "INVALID_REQUEST", "tags of row 1"),
    "tags that end too soon": (lambda: put(row_tags=[b"\x81\xa1n", b""]), "INVALID_REQUEST", "tags of row 0"),
    "tags that go on": (lambda: put(row_tags=[b"\x80\x80", b""]), "INVALID_REQUEST", "tags of row 0"),
    "tags in a list": (lambda: put(row_tags=packed_tags([1])), "INVALID_REQUEST", "got list, not a map"),
    "tags with int keys": (lambda: put(row_tags=packed_tags({1: 2})), "INVALID_REQUEST", "tags of row 1"),
    "tags with bytes keys": (lambda: put(row_tags=packed_tags({b"n": 2})), "INVALID_REQUEST", "'t'"),
    "tags that are lists": (lambda: put(row_tags=packed_tags({"n": [1]})), "INVALID_REQUEST", "'t', tag 'n'"),
    "tags of an extension type": (
        lambda: put(row_tags=packed_tags({"n": msgpack.ExtType(5, b"payload")})),
        "INVALID_REQUEST",
        "row 1",
    ),
    "tags of an empty extension type": (
        lambda: put(row_tags=packed_tags({"n": msgpack.ExtType(5, b"")})),
        "INVALID_REQUEST",
        "'t', tag 'n'",
    ),
    "tags that are time stamps": (
        lambda: put(row_tags=packed_tags({"n": msgpack.Timestamp(1)})),
        "INVALID_REQUEST",
        "row 1",
    ),
    "tags that are no text": (lambda: put(row_tags=[b"\x81\xa1\xff\x01", b""]), "INVALID_REQUEST", "tags of row 0"),
    "tags nested without end": (lambda: put(row_tags=[b"\x81\xa1n" + b"\x91" * 5000, b""]), "INVALID_REQUEST", "row 0"),
    "tags that announce a gigabyte": (
        lambda: put(row_tags=[b"\x81\xa1n\xdb\x40\x00\x00\x00", b""]),
        "INVALID_REQUEST",
        "row 0",
    ),
    "generations of 15 bytes": (
        lambda: put(generations=int64s(1, 1)[:15]),
        "INVALID_REQUEST",
        "15 bytes are not a multiple of 8",
    ),
    "generations of one row": (lambda: put(generations=int64s(1)), "ROW_COUNT_MISMATCH", "generations"),
    "generations of other rows": (lambda: put(generations=int64s(1, 2)), "ROW_REPLACED", "'s'"),
    "an unknown claim": (lambda: put(claim_id="nope"), "CLAIM_NOT_FOUND", "'nope'"),
    "an unknown reservation": (lambda: put(reservation_id="nope"), "GROUP_FENCED", "'nope'"),
    "a payload shared by no group": (lambda: put(shared=True, sample_ids=[]), "INVALID_REQUEST", "reservation"),
    "a caller of 257 bytes": (lambda: put(caller="x" * 257), "INVALID_REQUEST", "256"),
    "a pickle for tags": (lambda: put(row_tags=[pickle.dumps({"n": 1}), b""]), "INVALID_REQUEST", "tags of row 0"),
    "tags of 65 KiB": (
        lambda: put(row_tags=packed_tags({str(i): "x" * 1024 for i in range(65)})),
        "INVALID_REQUEST",
        "65536",
    ),
}


OTHER_CODES = {
    "PARTITION_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "CLAIM_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "ROW_REPLACED": grpc.StatusCode.NOT_FOUND,
    "GROUP_FENCED": grpc.StatusCode.ABORTED,
}
"""Of reasons that are not INVALID_ARGUMENT."""


@pytest.mark.parametrize("name", PUTS)
def test_a_put_is_refused_for(
    registered: DataPlaneClient, stub: Any, refusal: Refusal, unchanged: Unchanged, name: str
) -> None:
    make, expected, fragment = PUTS[name]
    with unchanged(registered):
        code, reason, message = refusal(lambda: stub.PutSamples(iter([make()]), timeout=20))
    assert (code, reason) == (OTHER_CODES.get(expected, INVALID), expected)
    assert fragment in message


def shard(**more: Any) -> pb.ClaimShardRequest:
    settings: dict[str, Any] = {
        "request_id": f"request-{next(_numbers)}",
        "partition_id": "p",
        "task": "train",
        "dp_world": 2,
        "batch_size": 2,
        "balance": pb.SHARD_BALANCE_ROWS,
        **more,
    }
    return pb.ClaimShardRequest(**settings)


def claim(**more: Any) -> pb.ClaimSamplesRequest:
    settings: dict[str, Any] = {
        "request_id": f"request-{next(_numbers)}",
        "partition_id": "p",
        "task": "train",
        "batch_size": 2,
        "mode": pb.CLAIM_MODE_ACKNOWLEDGED,
        **more,
    }
    return pb.ClaimSamplesRequest(**settings)


CALLS: dict[str, tuple[str, Callable[[], object], str, str]] = {
    "claim without mode": ("ClaimSamples", lambda: claim(mode=0), "INVALID_REQUEST", "mode"),
    "claim with an unknown mode": ("ClaimSamples", lambda: claim(mode=99), "INVALID_REQUEST", "mode"),
    "claim without request_id": ("ClaimSamples", lambda: claim(request_id=""), "INVALID_REQUEST", "request_id"),
    "claim of no rows": ("ClaimSamples", lambda: claim(batch_size=0), "INVALID_REQUEST", "batch_size 0"),
    "claim of at least no rows": ("ClaimSamples", lambda: claim(min_size=0), "INVALID_REQUEST", "min_size 0"),
    "claim of 4 billion rows": (
        "ClaimSamples",
        lambda: claim(batch_size=(1 << 32) - 1),
        "INVALID_REQUEST",
        "65536",
    ),
    "claim of more rows than are ready": ("ClaimSamples", lambda: claim(batch_size=3), "CLAIM_TIMEOUT", "2 of 2"),
    "clear of a selection and everything": (
        "ClearSamples",
        lambda: pb.ClearSamplesRequest(request_id="r", partition_id="p", sample_ids=["s"], whole_partition=True),
        "INVALID_REQUEST",
        "not both",
    ),
    "clear of nothing": (
        "ClearSamples",
        lambda: pb.ClearSamplesRequest(request_id="r", partition_id="p"),
        "INVALID_REQUEST",
        "1 to 65536",
    ),
    "clear without request_id": (
        "ClearSamples",
        lambda: pb.ClearSamplesRequest(partition_id="p", sample_ids=["s"]),
        "INVALID_REQUEST",
        "request_id",
    ),
    "drop without request_id": (
        "DropPartition",
        lambda: pb.DropPartitionRequest(partition_id="p"),
        "INVALID_REQUEST",
        "request_id",
    ),
    "registration without request_id": (
        "RegisterPartition",
        lambda: pb.RegisterPartitionRequest(partition_id="q", fields=["x"]),
        "INVALID_REQUEST",
        "request_id",
    ),
    "release without request_id": (
        "ReleaseClaim",
        lambda: pb.ReleaseClaimRequest(claim_id="c"),
        "INVALID_REQUEST",
        "request_id",
    ),
    "release of an unknown claim": (
        "ReleaseClaim",
        lambda: pb.ReleaseClaimRequest(request_id="r", claim_id="c" * 10_000),
        "CLAIM_NOT_FOUND",
        "'ccc",
    ),
    "release of a claim and of a request": (
        "ReleaseClaim",
        lambda: pb.ReleaseClaimRequest(request_id="r", claim_id="c", claim_request_id="q"),
        "INVALID_REQUEST",
        "not both",
    ),
    "release with a reason of 257 bytes": (
        "ReleaseClaim",
        lambda: pb.ReleaseClaimRequest(request_id="r", claim_id="c", reason="x" * 257),
        "INVALID_REQUEST",
        "256",
    ),
    "giving up a request without request_id": (
        "ReleaseClaim",
        lambda: pb.ReleaseClaimRequest(claim_request_id="q"),
        "INVALID_REQUEST",
        "request_id",
    ),
    "giving up a request that was no claim": (
        "ReleaseClaim",
        lambda: pb.ReleaseClaimRequest(request_id="r", claim_request_id="x" * 65),
        "INVALID_REQUEST",
        "1 to 64 bytes",
    ),
    "claim for a session that never was": (
        "ClaimSamples",
        lambda: claim(session_id="nobody"),
        "SESSION_EXPIRED",
        "'nobody'",
    ),
    "shard without balance": ("ClaimShard", lambda: shard(balance=0), "INVALID_REQUEST", "balance"),
    "shard with an unknown balance": ("ClaimShard", lambda: shard(balance=99), "INVALID_REQUEST", "balance"),
    "shard of an unknown unit": ("ClaimShard", lambda: shard(unit=99), "INVALID_REQUEST", "batch unit"),
    "shard of groups that may be split": ("ClaimShard", lambda: shard(unit=2), "INVALID_REQUEST", "whole_groups"),
    "claim of an unknown unit": ("ClaimSamples", lambda: claim(unit=99), "INVALID_REQUEST", "batch unit"),
    "shard without request_id": ("ClaimShard", lambda: shard(request_id=""), "INVALID_REQUEST", "request_id"),
    "shard of no ranks": ("ClaimShard", lambda: shard(dp_world=0), "INVALID_REQUEST", "dp_world"),
    "shard of a rank beyond": ("ClaimShard", lambda: shard(dp_rank=2), "INVALID_REQUEST", "dp_rank"),
    "shard for a session that never was": (
        "ClaimShard",
        lambda: shard(session_id="nobody"),
        "SESSION_EXPIRED",
        "'nobody'",
    ),
    "adoption of an unknown claim": (
        "AdoptClaim",
        lambda: pb.AdoptClaimRequest(request_id="r", claim_id="nope", session_id="s"),
        "CLAIM_NOT_FOUND",
        "'nope'",
    ),
    "reset of samples and the whole task": (
        "ResetTask",
        lambda: pb.ResetTaskRequest(request_id="r", partition_id="p", task="train", whole_task=True, sample_ids=["s"]),
        "INVALID_REQUEST",
        "not both",
    ),
    "reset of nothing": (
        "ResetTask",
        lambda: pb.ResetTaskRequest(request_id="r", partition_id="p", task="train"),
        "INVALID_REQUEST",
        "1 to 65536",
    ),
    "reset of an unknown task": (
        "ResetTask",
        lambda: pb.ResetTaskRequest(request_id="r", partition_id="p", task="nope", whole_task=True),
        "TASK_NOT_REGISTERED",
        "'nope'",
    ),
    "dead letters of an unknown task": (
        "ListDeadLetters",
        lambda: pb.ListDeadLettersRequest(partition_id="p", task="nope"),
        "TASK_NOT_REGISTERED",
        "'nope'",
    ),
    "reservation of rows that exist": (
        "ReserveGroup",
        lambda: pb.ReserveGroupRequest(request_id="r", partition_id="p", group_id="g", sample_ids=["new", "s"]),
        "SAMPLE_EXISTS",
        "'s'",
    ),
    "reservation without a name": (
        "ReserveGroup",
        lambda: pb.ReserveGroupRequest(request_id="r", partition_id="p", sample_ids=["new"]),
        "INVALID_REQUEST",
        "group",
    ),
    "reservation without request_id": (
        "ReserveGroup",
        lambda: pb.ReserveGroupRequest(partition_id="p", group_id="g", sample_ids=["new"]),
        "INVALID_REQUEST",
        "request_id",
    ),
    "end of an unknown group": (
        "FinishGroup",
        lambda: pb.FinishGroupRequest(request_id="r", reservation_id="nope"),
        "GROUP_FENCED",
        "'nope'",
    ),
    "roll-back of an unknown group": (
        "AbortGroup",
        lambda: pb.AbortGroupRequest(request_id="r", reservation_id="nope"),
        "GROUP_FENCED",
        "'nope'",
    ),
    "clear with generations of 15 bytes": (
        "ClearSamples",
        lambda: pb.ClearSamplesRequest(
            request_id="r", partition_id="p", sample_ids=["s", "t"], generations=int64s(1, 2)[:15]
        ),
        "INVALID_REQUEST",
        "15 bytes are not a multiple of 8",
    ),
    "clear with generations of one row": (
        "ClearSamples",
        lambda: pb.ClearSamplesRequest(request_id="r", partition_id="p", sample_ids=["s", "t"], generations=int64s(1)),
        "ROW_COUNT_MISMATCH",
        "generations",
    ),
    "story of a sample of no partition": (
        "GetSample",
        lambda: pb.GetSampleRequest(partition_id="nope", sample_id="s"),
        "PARTITION_NOT_FOUND",
        "'nope'",
    ),
    "commit of an unknown claim": (
        "CommitClaim",
        lambda: iter([pb.CommitClaimRequest(header=pb.CommitClaimHeader(request_id="r", claim_id="nope"))]),
        "CLAIM_NOT_FOUND",
        "'nope'",
    ),
    "commit without request_id": (
        "CommitClaim",
        lambda: iter([pb.CommitClaimRequest(header=pb.CommitClaimHeader(claim_id="nope"))]),
        "INVALID_REQUEST",
        "request_id",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_refused_is_the(
    registered: DataPlaneClient, stub: Any, refusal: Refusal, unchanged: Unchanged, name: str
) -> None:
    verb, make, expected, fragment = CALLS[name]
    with unchanged(registered):
        _, reason, message = refusal(lambda: getattr(stub, verb)(make(), timeout=20))
    assert reason == expected
    assert fragment in message


def test_a_request_id_of_one_verb_cannot_be_used_for_another(
    registered: DataPlaneClient, stub: Any, refusal: Refusal, unchanged: Unchanged
) -> None:
    stub.PutSamples(iter([put(request_id="used")]), timeout=20)
    request = pb.ClearSamplesRequest(request_id="used", partition_id="p", whole_partition=True)
    with unchanged(registered):
        code, _, message = refusal(lambda: stub.ClearSamples(request, timeout=20))
    assert code is INVALID
    assert "was used for put" in message


def test_a_negative_wait_is_no_wait(registered: DataPlaneClient, stub: Any, refusal: Refusal) -> None:
    request = claim(batch_size=3)
    request.wait_timeout.FromSeconds(-100)
    assert refusal(lambda: stub.ClaimSamples(request, timeout=20))[0] is grpc.StatusCode.DEADLINE_EXCEEDED


# -- details for programs ----------------------------------------------------------------------------------------------


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
