"""Answers of the door: JSON, and the HTTP status of every error. No other module of the door makes one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import grpc
from aiohttp import web
from google.rpc import error_details_pb2, status_pb2

from dataplane_server.http_listener import only

STATUS_TABLE: dict[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""429 and 503 come with Retry-After. What is wrong with the HTTP request itself has HTTP's own status: 404 and 405 for
an unknown path and method, 408 for a body that is late, 413 for one that is too large, 415 for another type.
"""
_NUMBERS = {code.value[0]: status for code, status in STATUS_TABLE.items()}


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return only(web.json_response(value, status=status, headers=headers, dumps=_dumps))


def error_answer(status: status_pb2.Status) -> web.Response:
    """The answer to a call that failed."""
    info, retry, headers = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), {}
    for detail in status.details:
        detail.Unpack(info)
        if detail.Unpack(retry):
            headers["Retry-After"] = str(math.ceil(retry.retry_delay.ToTimedelta().total_seconds()))
    if status.code == grpc.StatusCode.UNAUTHENTICATED.value[0]:
        headers["WWW-Authenticate"] = "Bearer"
    return answer(_error(info.reason, status.message, info.metadata), _NUMBERS[status.code], headers)


def request_error(error: web.HTTPException) -> web.Response:
    """The answer to a request that is no call."""
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
    return answer(_error("INVALID_REQUEST", error.text or error.reason, {}), error.status, headers)


def _error(reason: str, message: str, metadata: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {"error": {**metadata, "reason": reason, "message": message}}


def _dumps(value: object) -> str:
    return json.dumps(value) + "\n"
