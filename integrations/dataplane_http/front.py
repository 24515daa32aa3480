"""What every request passes before a route: who may connect, by which name, with which token; and its body, whole.

Where requests need no token, a port on loopback serves processes of the gateway's own user, of root, and of allowed
users: the kernel is asked who has the other end of the connection, and is believed while a process has it. It answers
only by names that no web site can have, to no page of another origin, so that no site gets in through a browser by
leading its own name there (DNS rebinding). With TLS the browser has compared the name with the certificate.

Lists, objects and names are counted in the bytes of a body before anything is made of it. When a caller hangs up, its
request is cancelled: a put that waits leaves nothing, and rows that it claimed return.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dataplane_client.errors import AuthenticationError, DataPlaneError, PermissionDeniedError
from dataplane_http.app import SLASH
from dataplane_http.callers import Callers
from dataplane_http.errors import answer_of, error_answer, refused

MAX_BODY_BYTES = 4 << 20
MAX_ENTRIES = 1 << 19
"""Brackets, braces and colons of a body, those in strings included."""
MAX_LONG_BODIES = 8
"""That are served at once, and as many that commit or finish."""
_LONG_BYTES = 64 << 10
BODY_S = 10.0
_DRAIN_S = 1.0
_ENDING = ("/commit", "/finish")
"""Ends of paths with places of their own: puts that wait for memory wait for what a commit frees."""
_OPEN_PATHS = ("/healthz", "/openapi.json")
_PRIVATE = (".internal", ".local", ".localhost", ".svc")
"""Ends of names that no public name server has."""


@dataclass(frozen=True)
class Door:
    """Who may come in. host: as the gateway was told to listen at. tokens: whether every request needs one. users: of
    this host that may connect; None for all. body_s: how long a body may take, in seconds.
    """

    host: str
    tokens: bool = False
    users: frozenset[int] | None = None
    body_s: float = BODY_S


class _HungUpError(Exception):
    """Nobody is there to answer."""


class Front:
    """An ASGI application before another one."""

    def __init__(self, app: ASGIApp, callers: Callers, door: Door) -> None:
        self._app = app
        self._callers = callers
        self._door = door
        self._long = {ends: asyncio.Semaphore(MAX_LONG_BODIES) for ends in (False, True)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = HTTPConnection(scope)
        scope["path"] = unquote(scope["raw_path"].replace(b"%2F", b"%2f").decode().replace("%2f", SLASH))
        try:
            self._check_name(request)
            self._check_user(scope)
            is_open = scope["path"] in _OPEN_PATHS  # not that of the URL, which depends on the header Host
            calling = contextlib.nullcontext() if is_open else self._callers.of(self._token(request))
            async with calling as scope["caller"]:
                body = await self._body(request, receive)
                ends = scope["path"].endswith(_ENDING)
                async with self._long[ends] if len(body) > _LONG_BYTES else contextlib.nullcontext():
                    await _until_hung_up(self._app, scope, body, receive, send)
            return None
        except _HungUpError:
            return None
        except DataPlaneError as error:
            answer: Response = await error_answer(None, error)
        except HTTPException as error:
            answer = answer_of(error.status_code, "INVALID_REQUEST", error.detail)
        if "expect" not in request.headers:  # a caller that is still sending would not read the answer
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(_drained(receive), _DRAIN_S)
        await answer(scope, receive, send)
        return None

    def _token(self, request: HTTPConnection) -> str | None:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return token.strip()
        if self._door.tokens:
            raise AuthenticationError("the request has no token; send Authorization: Bearer TOKEN")
        return None

    def _check_name(self, request: HTTPConnection) -> None:
        if self._door.tokens:
            return
        host, origin, scheme = request.headers.get("Host"), request.headers.get("Origin"), request.scope["scheme"]
        if host is not None and scheme != "https" and not is_own_name(host, self._door.host):
            message = f"without TLS or tokens the gateway is called by an address or a private name, not {host!r}"
            raise PermissionDeniedError(message)
        if origin is not None and origin.lower() != f"{scheme}://{host or ''}".lower():
            raise PermissionDeniedError(f"a page of {origin!r} calls, which is not the gateway's")

    def _check_user(self, scope: Scope) -> None:
        if self._door.users is None:
            return
        user = user_of(scope["client"], scope["server"])
        if user is None or user not in {0, os.geteuid(), *self._door.users}:
            who = "a process" if user is None else f"user {user}"
            instead = "start it with --allow-user, with tokens, or with --insecure"
            raise AuthenticationError(f"loopback is open to the gateway's own user, and {who} calls; {instead}")

    async def _body(self, request: HTTPConnection, receive: Receive) -> bytes:
        declared = request.headers.get("Content-Length", "0")
        if declared == "0" and "Transfer-Encoding" not in request.headers:
            await receive()  # that there is none
            return b""
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json" or "Content-Encoding" in request.headers:
            raise HTTPException(415, "the body must be application/json, without a Content-Encoding")
        if int(declared) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        try:
            body = await asyncio.wait_for(_received(receive), self._door.body_s)
        except asyncio.TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {self._door.body_s:g} s") from None
        count = sum(map(body.count, (b"[", b"{", b":")))
        if count > MAX_ENTRIES:
            message = f"the body has {count} brackets, braces and colons; the limit is {MAX_ENTRIES} (max_entries)"
            raise refused(message, max_entries=str(MAX_ENTRIES))
        return body


async def _received(receive: Receive) -> bytes:
    parts, size, more = list[bytes](), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _HungUpError
        parts.append(message.get("body", b""))
        size, more = size + len(parts[-1]), message.get("more_body", False)
        if size > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body has more than {MAX_BODY_BYTES} bytes")
    return b"".join(parts)


async def _drained(receive: Receive) -> None:
    while (await receive()).get("more_body", False):
        pass


async def _until_hung_up(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Serve a request whose body is here, or cancel it when its caller hangs up."""
    came: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    hung_up = asyncio.ensure_future(receive())

    async def replay() -> Message:
        return came.pop() if came else await asyncio.shield(hung_up)

    serving = asyncio.ensure_future(app(scope, replay, send))
    try:
        await asyncio.wait({serving, hung_up}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        hung_up.cancel()
        if not serving.done():
            serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def is_own_name(host: str, listening: str) -> bool:
    """Whether a Host header has a name that no web site can have. listening: the host that the gateway was given."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    near = is_loopback(listening)
    if not name or _is_address(name) or name in {"localhost", listening.lower()}:
        return bool(name)
    return not near and ("." not in name or name.endswith(_PRIVATE) or name == socket.gethostname().lower())


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return False


def user_of(peer: tuple[str, int], local: tuple[str, int]) -> int | None:
    """The user whose process has the other end of a TCP connection on this host; None if there is none."""
    ends = [_in_proc(*peer), _in_proc(*local)]
    for line in Path("/proc/net/tcp6" if ":" in peer[0] else "/proc/net/tcp").read_text().splitlines()[1:]:
        _, found, other, state, _, _, _, user, _, inode, *_ = line.split()
        if [found, other] == ends and state == _ESTABLISHED and inode != "0":  # else the kernel says user 0
            return int(user)
    return None


_ESTABLISHED = "01"


def _in_proc(host: str, port: int) -> str:
    packed = ipaddress.ip_address(host).packed
    words = (packed[start : start + 4][::-1] for start in range(0, len(packed), 4))
    return f"{b''.join(words).hex().upper()}:{port:04X}"
