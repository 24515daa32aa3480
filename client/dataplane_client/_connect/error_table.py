"""Translates gRPC statuses to exceptions of `errors`. No grpc exception leaves the client."""

from __future__ import annotations

from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from dataplane_client._connect.connection_errors import in_our_words
from dataplane_client.errors import (
    AppendConflictError,
    AuthenticationError,
    ClaimFencedError,
    ClaimNotFoundError,
    ClaimTimeoutError,
    ConditionFailedError,
    CorruptedError,
    DataPlaneError,
    DeadlineError,
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

_DETAILS_KEY = "grpc-status-details-bin"

BY_REASON: dict[str, type[DataPlaneError]] = {
    "APPEND_CONFLICT": AppendConflictError,
    "CLAIM_FENCED": ClaimFencedError,
    "CLAIM_NOT_FOUND": ClaimNotFoundError,
    "CLAIM_TIMEOUT": ClaimTimeoutError,
    "CONDITION_FAILED": ConditionFailedError,
    "DIGEST_MISMATCH": CorruptedError,
    "END_OF_DATA": EndOfDataError,
    "GROUP_FENCED": GroupFencedError,
    "PARTITION_FULL": PartitionFullError,
    "ROW_REPLACED": ReplacedError,
    "SESSION_EXPIRED": SessionExpiredError,
    "TOO_FEW_ROWS": TooFewRowsError,
}
"""Reasons with their own class; for others the status decides."""

BY_CODE: dict[grpc.StatusCode, type[DataPlaneError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionError,
    grpc.StatusCode.ALREADY_EXISTS: PreconditionError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OutOfSpaceError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,  # by a server that shuts down
    grpc.StatusCode.ABORTED: SupersededError,
    grpc.StatusCode.UNAUTHENTICATED: AuthenticationError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.DATA_LOSS: CorruptedError,
    grpc.StatusCode.UNIMPLEMENTED: PreconditionError,
}
"""Other statuses are InternalError."""

_CODE_OF_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


def translated(error: grpc.RpcError, verb: str, target: str) -> DataPlaneError:
    """The exception for a failed call over gRPC. The message begins with the RPC's name and the server's address;
    `_common.tracebacks` puts the caller's verb in place of the RPC.
    """
    metadata: Any = error.trailing_metadata() or ()  # pairs, unlike the type stubs say
    packed = next((value for key, value in metadata if key == _DETAILS_KEY), b"")
    code = error.code()
    said = error.details() or code.name
    if packed:
        return _error(code, said, status_pb2.Status.FromString(packed), verb, target)
    failed = _error(code, in_our_words(code, said, target), status_pb2.Status(), verb, target)
    failed.details["grpc"] = said
    return failed


def translated_status(status: status_pb2.Status, verb: str, target: str) -> DataPlaneError:
    """The exception for a status that answers a call over the local socket."""
    code = _CODE_OF_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)
    return _error(code, status.message or code.name, status, verb, target)


def _error(code: grpc.StatusCode, message: str, status: status_pb2.Status, verb: str, target: str) -> DataPlaneError:
    info, retry_after_s = error_details_pb2.ErrorInfo(), None
    for detail in status.details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
        else:
            detail.Unpack(info)
    kind = BY_REASON.get(info.reason) or BY_CODE.get(code, InternalError)
    return kind(
        f"{verb} at {target}: {message}", reason=info.reason, details=info.metadata, retry_after_s=retry_after_s
    )
