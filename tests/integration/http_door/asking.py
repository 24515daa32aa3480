"""Requests to the door, as agents without Python make them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def error(self) -> tuple[int, str]:
        return self.status, self.body["error"]["reason"]


Ask = Callable[..., Answer]


def ask_at(address: str) -> Ask:
    def ask(
        method: str, path: str, body: object = None, *, raw: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(address, timeout=30)
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} | (headers or {})
        connection.request(method, path, data, {key: value for key, value in given.items() if value})
        response = connection.getresponse()
        answer = Answer(response.status, json.loads(response.read()), dict(response.getheaders()))
        connection.close()
        return answer

    return ask
