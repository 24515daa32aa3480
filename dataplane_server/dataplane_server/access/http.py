"""Who makes an HTTP request."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from dataplane_server.access.gate import Credentials, Gate, bearer_token
from dataplane_server.access.roles import EVERYTHING, Caller

if TYPE_CHECKING:
    from aiohttp import web


def caller_of(request: web.Request, gate: Gate) -> Caller:
    """Refusal UNAUTHENTICATED says what is missing."""
    transport = request.transport
    if gate.is_open or transport is None:
        return EVERYTHING
    host, port = transport.get_extra_info("peername")[:2]
    is_v6 = transport.get_extra_info("socket").family == socket.AF_INET6
    peer = f"ipv6:[{host}]:{port}" if is_v6 else f"ipv4:{host}:{port}"
    names = _names(transport.get_extra_info("peercert"))
    return gate.at_port(Credentials(peer, bearer_token(request.headers.get("Authorization")), names))


def _names(certificate: dict[str, Any] | None) -> tuple[str, ...] | None:
    """As gRPC tells them: subject alternative names, or the common name of a certificate without any."""
    if not certificate:
        return None
    names = tuple(value for _, value in certificate.get("subjectAltName", ()))
    common = tuple(value for part in certificate["subject"] for key, value in part if key == "commonName")
    return names or common
