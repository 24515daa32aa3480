"""Refusals as gRPC statuses. No other module makes a status.

UNAVAILABLE: repeat the call. RESOURCE_EXHAUSTED: repeat it later (the status says when). ABORTED: the caller's state is
stale, so redo the larger step. FAILED_PRECONDITION and INVALID_ARGUMENT: do not repeat the call unchanged.
"""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.turns import TARGET_S

DOMAIN = "rl_dataplane"
DETAILS_KEY = "grpc-status-details-bin"

ERROR_TABLE: dict[Reason, grpc.StatusCode] = {
    Reason.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.DUPLICATE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.ROW_COUNT_MISMATCH: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.FIELD_NOT_DECLARED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.FIELD_MISMATCH: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.LENGTH_MISMATCH: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.MALFORMED_STREAM: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.PUT_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.PARTITION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.SAMPLE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.FIELD_NOT_PRODUCED: grpc.StatusCode.NOT_FOUND,
    Reason.TASK_NOT_REGISTERED: grpc.StatusCode.NOT_FOUND,
    Reason.CLAIM_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.ROW_REPLACED: grpc.StatusCode.NOT_FOUND,
    Reason.FIELD_HOLDS_VALUES: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.GROUP_INCOMPLETE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.GROUP_GIVEN_UP: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.ROW_RESERVED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.SAMPLE_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Reason.REQUEST_ID_USED: grpc.StatusCode.ALREADY_EXISTS,
    Reason.SHARD_COMMITTED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.PARTITION_DIFFERS: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.PARTITION_CLOSED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.END_OF_DATA: grpc.StatusCode.OUT_OF_RANGE,
    Reason.APPEND_CONFLICT: grpc.StatusCode.ABORTED,
    Reason.SNAPSHOT_FAILED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.CONDITION_FAILED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.TOO_FEW_ROWS: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.PARTITION_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.NO_SPACE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.LIMIT_REACHED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.CLAIM_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Reason.NODE_LOST: grpc.StatusCode.UNAVAILABLE,
    Reason.OVERLOADED: grpc.StatusCode.UNAVAILABLE,
    Reason.SUPERSEDED: grpc.StatusCode.ABORTED,
    Reason.CLAIM_FENCED: grpc.StatusCode.ABORTED,
    Reason.SESSION_EXPIRED: grpc.StatusCode.ABORTED,
    Reason.GROUP_FENCED: grpc.StatusCode.ABORTED,
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.DIGESTS_REQUIRED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.DIGEST_MISMATCH: grpc.StatusCode.DATA_LOSS,
}

RETRY_DELAY_S: dict[Reason, float] = {
    Reason.NO_SPACE: 1.0,
    Reason.PARTITION_FULL: 1.0,
    Reason.LIMIT_REACHED: 1.0,
    Reason.DRAINING: 0.5,
    Reason.NODE_LOST: 0.5,
    Reason.OVERLOADED: TARGET_S,  # those that wait now will have been served
}
"""How long the caller should wait before it tries again, in seconds."""


def status_of(refusal: Refusal) -> status_pb2.Status:
    """The status of a refusal. Details: ErrorInfo always, RetryInfo if waiting helps, BadRequest if the refusal names a
    field.
    """
    code = ERROR_TABLE[refusal.reason]
    info = error_details_pb2.ErrorInfo(reason=refusal.reason.name, domain=DOMAIN, metadata=refusal.metadata)
    details = [_packed(info)]
    if refusal.reason in RETRY_DELAY_S:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(RETRY_DELAY_S[refusal.reason] * 1e9))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    if code is grpc.StatusCode.INVALID_ARGUMENT and "field" in refusal.metadata:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=refusal.metadata["field"], description=refusal.message
        )
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    return status_pb2.Status(code=code.value[0], message=refusal.message, details=details)


def internal_error() -> status_pb2.Status:
    """The status of a defect, without its cause. The log has the stack."""
    info = error_details_pb2.ErrorInfo(reason="INTERNAL", domain=DOMAIN)
    message = "internal error; the server's log has the stack (event call_failed)"
    return status_pb2.Status(code=grpc.StatusCode.INTERNAL.value[0], message=message, details=[_packed(info)])


def _packed(message: object) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)  # type: ignore[arg-type]  # google.rpc is published without type information
    return packed
