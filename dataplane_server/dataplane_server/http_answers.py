"""Refusals as answers over HTTP: JSON, and the HTTP status of every error."""

from __future__ import annotations

import json
import math

import grpc
from aiohttp import web
from google.rpc import error_details_pb2, status_pb2

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
    grpc.StatusCode.DATA_LOSS: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""429 and 503 come with Retry-After."""
_NUMBERS = {code.value[0]: status for code, status in STATUS_TABLE.items()}


def error_answer(status: status_pb2.Status) -> web.Response:
    info, retry, headers = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), {}
    for detail in status.details:
        detail.Unpack(info)
        if detail.Unpack(retry):
            headers["Retry-After"] = str(math.ceil(retry.retry_delay.ToTimedelta().total_seconds()))
    if status.code == grpc.StatusCode.UNAUTHENTICATED.value[0]:
        headers["WWW-Authenticate"] = "Bearer"
    error = {"error": {**info.metadata, "reason": info.reason, "message": status.message}}
    text = json.dumps(error) + "\n"
    answer = web.json_response(text=text, status=_NUMBERS[status.code], headers=headers)
    answer.force_close()
    return answer
