"""Every reason for a refusal, sent through a real server and client: one class of error for each, details included."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from dataplane_client import aio
from dataplane_client.errors import (
    AppendConflictError,
    AuthenticationError,
    ClaimFencedError,
    ClaimNotFoundError,
    ClaimTimeoutError,
    ConditionFailedError,
    CorruptedError,
    DataPlaneError,
    EndOfDataError,
    GroupFencedError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfSpaceError,
    PartitionFullError,
    PermissionDeniedError,
    PreconditionError,
    ReplacedError,
    SessionExpiredError,
    SupersededError,
    TooFewRowsError,
    UnavailableError,
)
from dataplane_server.access.opening import open_gate
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.plane import DataPlane
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service.grpc.boundary import Boundary
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from dataplane_server.service.local.direct_calls import DirectCalls
from dataplane_server.service.local.direct_endpoint import DirectEndpoint
from dataplane_server.service.local.local_calls import LocalCalls
from dataplane_server.service.local.local_endpoint import LocalEndpoint
from dataplane_server.service.local.local_methods import local_methods
from dataplane_server.service.messages.parsing import Messages
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import Values
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc

EXPECTED: dict[type[DataPlaneError], str] = {
    InvalidArgumentError: "INVALID_REQUEST DUPLICATE ROW_COUNT_MISMATCH FIELD_NOT_DECLARED FIELD_MISMATCH "
    "LENGTH_MISMATCH MALFORMED_STREAM PUT_TOO_LARGE",
    NotFoundError: "PARTITION_NOT_FOUND SAMPLE_NOT_FOUND FIELD_NOT_PRODUCED TASK_NOT_REGISTERED",
    PreconditionError: "FIELD_HOLDS_VALUES GROUP_INCOMPLETE GROUP_GIVEN_UP ROW_RESERVED SAMPLE_EXISTS REQUEST_ID_USED "
    "SHARD_COMMITTED PARTITION_DIFFERS PARTITION_CLOSED SNAPSHOT_FAILED DIGESTS_REQUIRED",
    UnavailableError: "DRAINING NODE_LOST OVERLOADED",
    OutOfSpaceError: "NO_SPACE LIMIT_REACHED",
    ClaimNotFoundError: "CLAIM_NOT_FOUND",
    ClaimTimeoutError: "CLAIM_TIMEOUT",
    SupersededError: "SUPERSEDED",
    ClaimFencedError: "CLAIM_FENCED",
    SessionExpiredError: "SESSION_EXPIRED",
    GroupFencedError: "GROUP_FENCED",
    ReplacedError: "ROW_REPLACED",
    EndOfDataError: "END_OF_DATA",
    AppendConflictError: "APPEND_CONFLICT",
    ConditionFailedError: "CONDITION_FAILED",
    CorruptedError: "DIGEST_MISMATCH",
    TooFewRowsError: "TOO_FEW_ROWS",
    PartitionFullError: "PARTITION_FULL",
    AuthenticationError: "UNAUTHENTICATED",
    PermissionDeniedError: "PERMISSION_DENIED",
}
"""Each class with its reasons."""
RETRIED_LATER = ["NO_SPACE", "PARTITION_FULL", "LIMIT_REACHED", "DRAINING", "NODE_LOST", "OVERLOADED"]


class Refusing(DataPlaneServicer):
    """Refuses every description for the reason that the partition is named after."""

    _overloads = 2  # before the partition "busy" is described

    def __init__(self, *shell_values_metrics: Any) -> None:
        super().__init__(*shell_values_metrics)
        self._to_refuse = {"session", "partition"}  # once, before there is no answer

    async def GetPartition(self, request: pb.GetPartitionRequest, context: object) -> pb.GetPartitionResponse:  # noqa: N802
        if request.partition_id == "defect":
            raise ZeroDivisionError("a secret of the server")
        if request.partition_id == "silent":
            await self._refuse_then_be_silent("partition")
        if request.partition_id == "busy":
            self._overloads -= 1
            if self._overloads < 0:
                return pb.GetPartitionResponse(partition=pb.Partition(partition_id="busy"))
            raise Refusal(Reason.OVERLOADED, "why it is so")
        raise Refusal(Reason[request.partition_id], "why it is so", sample_id="s")

    async def Session(self, requests: object, context: object) -> None:  # type: ignore[override]  # noqa: N802
        await self._refuse_then_be_silent("session")

    async def _refuse_then_be_silent(self, kind: str) -> None:
        if kind not in self._to_refuse:
            await asyncio.Event().wait()
        self._to_refuse.remove(kind)
        raise Refusal(Reason.DRAINING, "why it is so", sample_id="s")

    async def ReadColumns(self, request: object, context: object) -> AsyncIterator[bytes]:  # type: ignore[override]  # noqa: N802
        column = pb.Column(name="x", kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_INT8)
        yield pb.ReadColumnsResponse(header=pb.ReadColumnsHeader(columns=[column])).SerializeToString()
        raise Refusal(Reason.SAMPLE_NOT_FOUND, "in the middle of the stream")


@pytest.fixture(params=["grpc", "shm", "direct"])
async def refusing(request: pytest.FixtureRequest) -> AsyncIterator[aio.AsyncDataPlaneClient]:
    """A client of a server that refuses. It gives up at the first refusal: its pauses are longer than its deadline."""
    plane, arena = DataPlane(Limits()), Arena(4096, shared=True)
    metrics = Metrics(plane, lambda: True)
    shell = Shell(plane, metrics)
    values = Values(plane, arena)
    servicer = Refusing(shell, values, metrics)
    local = LocalEndpoint(shell, arena, metrics, local_methods(LocalCalls(shell, values, metrics), servicer))
    local.listen_abstract()
    servicer.share_memory(arena.nonce, local.abstract_name)
    direct_methods = local_methods(DirectCalls(shell, values, metrics), servicer)
    gate = open_gate(ServerConfig(insecure=True), plane, lambda request: False)
    direct = DirectEndpoint(shell, values, metrics, direct_methods, gate)
    servicer.serve_directly(direct.listen("127.0.0.1", 0), direct.nonce)
    server = grpc.aio.server(interceptors=[Boundary(metrics, Messages(plane.limits), shell.stable)])
    pb_grpc.add_DataPlaneServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options: dict[str, Any] = {"timeout_s": 20.0, "first_backoff_s": 50.0, "transport": request.param}
    async with await aio.connect(f"127.0.0.1:{port}", **options) as client:
        yield client
    await server.stop(0)
    for endpoint in (local, direct):
        await endpoint.drain(0)
        await endpoint.close()
    arena.close()


async def test_each_refusal_arrives_as_its_error(refusing: aio.AsyncDataPlaneClient) -> None:
    kinds = {Reason[name]: kind for kind, names in EXPECTED.items() for name in names.split()}
    for reason in Reason:
        with pytest.raises(DataPlaneError) as caught:
            await refusing.partition(reason.name)
        error = caught.value
        assert type(error) is kinds[reason], reason
        assert str(error) == f"partition at {refusing.target}: why it is so"
        assert (error.reason, error.details) == (reason.name, {"sample_id": "s"})
        assert (error.retry_after_s is not None) is (reason.name in RETRIED_LATER), reason


async def test_a_call_whose_last_attempt_gets_no_answer_tells_why_those_before_it_were_refused(
    refusing: aio.AsyncDataPlaneClient,
) -> None:
    """An ordinary call, and one that opens a session."""
    async with await aio.connect(refusing.target, timeout_s=5.0, transport=refusing.transport) as client:
        calls = client.partition("silent"), client.claim("p", "train", ["x"], 1, timeout_s=5.0)
        errors = await asyncio.gather(*calls, return_exceptions=True)
    for error in errors:
        assert isinstance(error, UnavailableError)
        assert "why it is so; repeated without an answer until the deadline" in str(error)
        assert (error.reason, error.details, error.retry_after_s) == ("DRAINING", {"sample_id": "s"}, 0.5)


async def test_a_call_that_is_refused_for_overload_is_made_again_the_same_way_until_it_is_answered(
    refusing: aio.AsyncDataPlaneClient,
) -> None:
    async with await aio.connect(refusing.target, transport=refusing.transport) as client:
        with pytest.raises(DataPlaneError):
            await client.partition("NO_SPACE")
        way = client._transport._local
        assert (await client.partition("busy", timeout_s=60.0)).partition_id == "busy"
        assert client._transport._local is way, "the session that it has attached"


@pytest.mark.parametrize("refusing", ["grpc"], indirect=True)
async def test_a_refusal_in_the_middle_of_a_stream_arrives_too(refusing: aio.AsyncDataPlaneClient) -> None:
    with pytest.raises(NotFoundError, match="in the middle of the stream"):
        await refusing.get_samples(["s"], "p", ["x"])


async def test_a_defect_is_logged_with_its_stack_and_told_without(
    refusing: aio.AsyncDataPlaneClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "dataplane_server"), pytest.raises(InternalError) as caught:
        await refusing.partition("defect")
    assert "secret" not in str(caught.value)
    assert caught.value.reason == "INTERNAL"
    assert "ZeroDivisionError: a secret of the server" in caplog.text
    assert '"verb": "GetPartition"' in caplog.text
