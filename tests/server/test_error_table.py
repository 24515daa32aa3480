"""From refusals to statuses: every reason has its code, and programs find the details where google.rpc puts them."""

from __future__ import annotations

from typing import Any

import pytest
from google.rpc import error_details_pb2, status_pb2

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.http_answers import STATUS_TABLE
from dataplane_server.service.error_table import ERROR_TABLE, status_of


def details(status: status_pb2.Status) -> dict[str, Any]:
    """The details by the name of their type."""
    kinds = (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.BadRequest)
    found = {}
    for packed in status.details:
        kind = next(kind for kind in kinds if packed.Is(kind.DESCRIPTOR))
        found[kind.DESCRIPTOR.name] = kind.FromString(packed.value)
    return found


@pytest.mark.parametrize(
    ("reason", "details_of_it", "violations"),
    [
        (Reason.FIELD_MISMATCH, {"field": "x"}, [("x", "why")]),
        (Reason.FIELD_NOT_PRODUCED, {"field": "x"}, []),
        (Reason.DUPLICATE, {"name": "x"}, []),
    ],
)
def test_an_invalid_field_of_the_request_and_no_other_is_named_in_a_bad_request(
    reason: Reason, details_of_it: dict[str, str], violations: list[tuple[str, str]]
) -> None:
    found = details(status_of(Refusal(reason, "why", **details_of_it)))
    named = found["BadRequest"].field_violations if "BadRequest" in found else []
    assert [(violation.field, violation.description) for violation in named] == violations


def test_every_error_has_a_status_of_http() -> None:
    assert set(ERROR_TABLE.values()) <= STATUS_TABLE.keys()
