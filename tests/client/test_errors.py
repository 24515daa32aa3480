"""One family of errors: each keeps the builtin names that callers catch, survives pickling, and knows its status.

White-box: statuses that our server does not send.
"""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from dataplane_client import errors
from dataplane_client._connect.error_table import BY_CODE, BY_REASON, translated
from dataplane_client.errors import (
    ClaimFencedError,
    ClaimNotFoundError,
    ClaimTimeoutError,
    DataPlaneError,
    DeadlineError,
    GroupFencedError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfSpaceError,
    PreconditionError,
    ReplacedError,
    SessionExpiredError,
    SupersededError,
    UnavailableError,
    UnsupportedTypeError,
)
from rl_dataplane.v1 import data_plane_pb2 as pb

FAMILY = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, DataPlaneError)]


class Failed(grpc.RpcError):
    """A failed call as gRPC raises it."""

    def __init__(self, code: grpc.StatusCode, message: str | None, details: status_pb2.Status | None = None) -> None:
        super().__init__()
        self._code, self._message, self._details = code, message, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._message

    def trailing_metadata(self) -> tuple[Any, ...]:
        other = ("x-proxy", "seen")
        if self._details is None:
            return (other,)
        return (other, ("grpc-status-details-bin", self._details.SerializeToString()))


def details(*messages: object) -> status_pb2.Status:
    status = status_pb2.Status()
    for message in messages:
        packed = any_pb2.Any()
        packed.Pack(message)  # type: ignore[arg-type]  # google.rpc is published without type information
        status.details.append(packed)
    return status


# -- the family --------------------------------------------------------------------------------------------------------


BUILTINS = {
    ValueError: [InvalidArgumentError],
    TypeError: [UnsupportedTypeError],
    KeyError: [NotFoundError, ClaimNotFoundError, ClaimFencedError, GroupFencedError, ReplacedError],
    ConnectionError: [SessionExpiredError, UnavailableError],
    RuntimeError: [PreconditionError, SupersededError, InternalError],
    TimeoutError: [DeadlineError, ClaimTimeoutError, OutOfSpaceError],
    ClaimNotFoundError: [ClaimFencedError],
}


@pytest.mark.parametrize(("builtin", "kinds"), BUILTINS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_an_error_is_catchable_by_its_builtin_name(builtin: type[Exception], kinds: list[type[DataPlaneError]]) -> None:
    assert [kind for kind in kinds if not (issubclass(kind, builtin) and issubclass(kind, DataPlaneError))] == []


def test_an_error_survives_pickling_and_prints_its_message_without_quotes() -> None:
    for kind in FAMILY:
        error = kind("what 'x' did", reason="WHY", details={"field": "x"}, retry_after_s=1.5)
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  # trainers raise errors across processes
        assert (type(again), str(again), again.reason) == (kind, "what 'x' did", "WHY")
        assert (again.details, again.retry_after_s) == ({"field": "x"}, 1.5)


# -- from statuses -----------------------------------------------------------------------------------------------------


def test_every_status_becomes_an_error_of_ours() -> None:
    info = error_details_pb2.ErrorInfo(domain="rl_dataplane")
    for code in grpc.StatusCode:
        error = translated(Failed(code, "why", details(info)), "PutSamples", "host:1")
        assert type(error) is BY_CODE.get(code, InternalError)
        assert str(error) == "PutSamples at host:1: why"
        assert (error.reason, error.details, error.retry_after_s) == ("", {}, None)


@pytest.mark.parametrize("said", ["ipv4:1.2.3.4: recvmsg: some new words of gRPC", None], ids=str)
@pytest.mark.parametrize("code", ["CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE"])
def test_what_grpc_says_itself_is_kept_apart_from_the_message(code: str, said: str | None) -> None:
    error = translated(Failed(grpc.StatusCode[code], said), "PutSamples", "host:1")
    assert str(error).startswith("PutSamples at host:1: ")
    assert "recvmsg" not in str(error)
    assert error.details == {"grpc": said or code}


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.DATA_LOSS], ids=str)
def test_a_status_without_words_is_named(status: grpc.StatusCode) -> None:
    assert str(translated(Failed(status, None), "Put", "t")) == f"Put at t: {status.name}"


def test_reasons_with_a_class_of_their_own_go_before_the_status_and_are_those_of_the_contract() -> None:
    for reason, kind in BY_REASON.items():
        info = error_details_pb2.ErrorInfo(reason=reason, domain="rl_dataplane")
        assert type(translated(Failed(grpc.StatusCode.UNKNOWN, "why", details(info)), "Claim", "t")) is kind
    assert {f"ERROR_REASON_{reason}" for reason in BY_REASON} <= set(pb.ErrorReason.keys())


def test_all_details_are_taken_whatever_their_order() -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))
    info = error_details_pb2.ErrorInfo(reason="NO_SPACE", domain="rl_dataplane", metadata={"free_bytes": "7"})
    request = error_details_pb2.BadRequest()
    error = translated(Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", details(retry, request, info)), "Put", "t")
    assert type(error) is OutOfSpaceError
    assert (error.reason, error.details, error.retry_after_s) == ("NO_SPACE", {"free_bytes": "7"}, 1.5)
