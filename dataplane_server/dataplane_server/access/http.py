"""Who makes an HTTP request."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from aiohttp import web

from dataplane_server.access.gate import Credentials, Gate, bearer_token
from dataplane_server.access.loopback import name_of_peer
from dataplane_server.access.roles import EVERYTHING, Caller

stranger: ContextVar[str | None] = ContextVar("stranger", default="nothing is known of its connection")
"""What the listener found when the connection of the request being served was opened; see `Gate.stranger`."""


def caller_of(request: web.Request, gate: Gate) -> Caller:
    """Refusal UNAUTHENTICATED says what is missing."""
    if gate.is_open:
        return EVERYTHING
    transport = request.transport  # None if the connection is closed; what it has brought is decided upon all the same
    certificate = None if transport is None else transport.get_extra_info("peercert")
    token = bearer_token(request.headers.get("Authorization"))
    address = None if transport is None else transport.get_extra_info("peername")
    peer = "" if address is None else name_of_peer(*address)
    return gate.at_connection(Credentials(peer, token, _names(certificate)), stranger.get())


def _names(certificate: dict[str, Any] | None) -> tuple[str, ...] | None:
    """As gRPC tells them: subject alternative names, or the common name of a certificate without any."""
    if not certificate:
        return None
    names = tuple(value for _, value in certificate.get("subjectAltName", ()))
    common = tuple(value for part in certificate["subject"] for key, value in part if key == "commonName")
    return names or common
