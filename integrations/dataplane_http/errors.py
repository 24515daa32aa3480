"""Errors of the client as JSON, and the HTTP status of each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from dataplane_client import errors

STATUS_TABLE: dict[type[errors.DataPlaneError], int] = {
    errors.InvalidArgumentError: 400,
    errors.UnsupportedTypeError: 400,
    errors.AuthenticationError: 401,
    errors.PermissionDeniedError: 403,
    errors.NotFoundError: 404,
    errors.ClaimFencedError: 409,
    errors.GroupFencedError: 409,
    errors.PreconditionError: 409,
    errors.SupersededError: 409,
    errors.AppendConflictError: 409,
    errors.SessionExpiredError: 409,
    errors.EndOfDataError: 410,
    errors.OutOfSpaceError: 429,
    errors.CorruptedError: 500,
    errors.InternalError: 500,
    errors.UnavailableError: 503,
    errors.ClosedError: 503,
    errors.DeadlineError: 504,
}
"""429 and 503 come with Retry-After. What is wrong with the HTTP request itself has HTTP's own status: 404 and 405 for
an unknown path and method, 408 for a body that is late, 413 for one that is too large, 415 for another type.
"""
_CALL = re.compile(r"[\w.]+ at (unix:.*?|\S+): ")
"""The verb and the address with which messages of the server begin."""
_NO_REASON = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 500: "INTERNAL", 503: "UNAVAILABLE"}


def refused(message: str, reason: str = "INVALID_REQUEST", **details: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(message, reason=reason, details=details)


async def error_answer(request: Request | None, error: errors.DataPlaneError) -> Response:
    """The answer to a call that failed. Its message is the server's, without the verb and the address."""
    status = next(STATUS_TABLE[kind] for kind in type(error).__mro__ if kind in STATUS_TABLE)
    if isinstance(error, errors.ClosedError):
        message = "the gateway is stopping, or the server no longer accepts the token"
        error = errors.UnavailableError(message, reason="DRAINING")
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status in (429, 503):
        headers["Retry-After"] = str(math.ceil(error.retry_after_s or 1.0))
    reason = error.reason or _NO_REASON.get(status, "INVALID_REQUEST")
    called = _CALL.match(error.message)
    return answer_of(status, reason, error.message[called.end() if called else 0 :], error.details, headers)


def answer_of(
    status: int, reason: str, message: str, details: Mapping[str, str] = {}, headers: Mapping[str, str] = {}
) -> Response:
    """Half a letter of a name that the caller sent, which UTF-8 does not have, becomes a question mark."""
    text = json.dumps({"error": {**details, "reason": reason, "message": message}}, ensure_ascii=False)
    return Response(text.encode(errors="replace"), status, dict(headers), "application/json")
