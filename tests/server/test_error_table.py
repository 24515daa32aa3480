"""From refusals to statuses: every reason has its code, and programs find the details where google.rpc puts them."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.error_table import ERROR_TABLE, RETRY_DELAY_S, internal_error, status_of

CODES = {code.value[0]: code for code in grpc.StatusCode}


def details(status: status_pb2.Status) -> dict[str, Any]:
    """The details by the name of their type."""
    kinds = (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.BadRequest)
    found = {}
    for packed in status.details:
        kind = next(kind for kind in kinds if packed.Is(kind.DESCRIPTOR))
        found[kind.DESCRIPTOR.name] = kind.FromString(packed.value)
    return found


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_a_reason_has_a_code_that_says_it_failed(reason: Reason) -> None:
    assert ERROR_TABLE[reason] not in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_a_refusal_carries_reason_domain_and_metadata(reason: Reason) -> None:
    status = status_of(Refusal(reason, "why", sample_id="s", rows=3))
    info = details(status)["ErrorInfo"]
    assert (CODES[status.code], status.message) == (ERROR_TABLE[reason], "why")
    assert (info.reason, info.domain, dict(info.metadata)) == (
        reason.name,
        "rl_dataplane",
        {"sample_id": "s", "rows": "3"},
    )


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_overload_and_shutdown_and_they_alone_say_when_to_come_back(reason: Reason) -> None:
    found = details(status_of(Refusal(reason, "why")))
    waiting_helps = ERROR_TABLE[reason] in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    assert ("RetryInfo" in found) is waiting_helps
    if waiting_helps:
        assert found["RetryInfo"].retry_delay.ToNanoseconds() == RETRY_DELAY_S[reason] * 1e9 > 0


def test_an_invalid_field_is_named_in_a_bad_request() -> None:
    found = details(status_of(Refusal(Reason.FIELD_MISMATCH, "why", field="x")))
    violation = found["BadRequest"].field_violations[0]
    assert (violation.field, violation.description) == ("x", "why")


@pytest.mark.parametrize(
    "refusal",
    [Refusal(Reason.FIELD_NOT_PRODUCED, "why", field="x"), Refusal(Reason.DUPLICATE, "why", name="x")],
    ids=str,
)
def test_other_refusals_blame_no_field_of_the_request(refusal: Refusal) -> None:
    assert "BadRequest" not in details(status_of(refusal))


def test_a_defect_is_told_without_its_story() -> None:
    status = internal_error()
    assert CODES[status.code] is grpc.StatusCode.INTERNAL
    assert details(status)["ErrorInfo"].reason == "INTERNAL"
