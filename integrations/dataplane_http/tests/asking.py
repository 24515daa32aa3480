"""Requests as programs without Python make them."""

from __future__ import annotations

import http.client
import json
import ssl
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    body: Any
    headers: http.client.HTTPMessage

    @property
    def error(self) -> tuple[int, str]:
        return self.status, self.body["error"]["reason"]


Ask = Callable[..., Answer]


def ask_at(address: str, ca: Path | None = None) -> Ask:
    """ca: for TLS."""

    def ask(
        method: str, path: str, body: object = None, *, raw: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(address, timeout=300)
        if ca is not None:
            connection = http.client.HTTPSConnection(
                address, timeout=300, context=ssl.create_default_context(cafile=ca)
            )
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} | (headers or {})
        connection.request(method, path, data, {key: value for key, value in given.items() if value})
        response = connection.getresponse()
        answer = Answer(response.status, json.loads(response.read()), response.headers)
        connection.close()
        return answer

    return ask


def new_id() -> str:
    """For a request: the server remembers those of other tests."""
    return uuid.uuid4().hex
