"""A client of the server for each token that requests bring. The server decides who that is and what they may do."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import grpc

from dataplane_client import Credentials, aio
from dataplane_client.errors import (
    AuthenticationError,
    ClaimFencedError,
    GroupFencedError,
    OutOfSpaceError,
    PermissionDeniedError,
    UnavailableError,
)
from dataplane_http.held import Held

MAX_CALLERS = 64
_CONNECT_S = 5.0
_SWEEP_S = 0.25


@dataclass
class Caller:
    """users: requests under way. puts: locks by the names of requests."""

    token: str | None
    users: int = 0
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    opened: aio.AsyncDataPlaneClient | None = None
    claims: Held[aio.AsyncClaim] = field(default_factory=lambda: Held("claim", ClaimFencedError, _release))
    groups: Held[aio.AsyncGroup] = field(default_factory=lambda: Held("group", GroupFencedError, _abort))
    puts: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    @property
    def client(self) -> aio.AsyncDataPlaneClient:
        assert self.opened is not None  # noqa: S101  # for the type checker
        return self.opened

    @property
    def is_idle(self) -> bool:
        return not self.users and self.claims.is_empty and self.groups.is_empty


def _release(claim: aio.AsyncClaim, why: str) -> Awaitable[int]:
    return claim.release(reason=why, timeout_s=_CONNECT_S)


def _abort(group: aio.AsyncGroup, why: str) -> Awaitable[int]:
    return group.abort(why, timeout_s=_CONNECT_S)


class Callers:
    """server: its address. Values travel over gRPC, where each call has its token."""

    def __init__(self, server: str) -> None:
        self._server = aio.connect_later(server).target  # refuses what is no address
        self._credentials = Credentials.from_environment()
        self._callers: OrderedDict[str | None, Caller] = OrderedDict()  # the one that was used last is the last

    @contextlib.asynccontextmanager
    async def of(self, token: str | None) -> AsyncIterator[Caller]:
        """The caller with a token, for a block. Raises what `connect` does, and OutOfSpaceError."""
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise AuthenticationError("a token must be printable ASCII characters")
        if token not in self._callers:
            await self._make_room()
        caller = self._callers.setdefault(token, Caller(token))
        self._callers.move_to_end(token)
        caller.users += 1
        try:
            async with caller.connecting:
                caller.opened = caller.opened or await self._connect(token)
            yield caller
        finally:
            caller.users -= 1
            if caller.opened is None and not caller.users:
                del self._callers[token]

    async def _connect(self, token: str | None) -> aio.AsyncDataPlaneClient:
        credentials = dataclasses.replace(self._credentials, token=token, token_file=None)
        return await aio.connect(
            self._server, transport="grpc", connect_timeout_s=_CONNECT_S, client_name="http", credentials=credentials
        )

    async def check(self) -> None:
        """Ask for the server's health, which it tells without counting a refusal. Raises UnavailableError."""
        if self._server.startswith("ray://"):  # only a client finds its place
            async with self.of(None) as caller:
                await caller.client.server_status(timeout_s=_CONNECT_S)
            return
        async with self._channel() as channel:
            asked: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            try:
                await asked(b"", timeout=_CONNECT_S)
            except grpc.aio.AioRpcError as error:
                message = f"the server at {self._server} does not answer: {error.details()}"
                raise UnavailableError(message, reason="UNAVAILABLE") from None

    def _channel(self) -> grpc.aio.Channel:
        found = self._credentials
        if found.ca is None or self._server.startswith("unix:"):
            return grpc.aio.insecure_channel(self._server)
        files = (None if found.ca == "system" else found.ca, found.key, found.certificate)
        tls = grpc.ssl_channel_credentials(*(None if file is None else Path(file).read_bytes() for file in files))
        name = [] if found.server_name is None else [("grpc.ssl_target_name_override", found.server_name)]
        return grpc.aio.secure_channel(self._server, tls, name)

    async def _make_room(self) -> None:
        if len(self._callers) < MAX_CALLERS:
            return
        idle = next((caller for caller in self._callers.values() if caller.is_idle), None)
        if idle is None:
            message = f"{MAX_CALLERS} callers use the gateway or hold something there; the limit is {MAX_CALLERS}"
            raise OutOfSpaceError(message, reason="LIMIT_REACHED", details={"max_callers": str(MAX_CALLERS)})
        await self._end(idle)

    async def sweep(self) -> None:
        """Give up what callers have left, again and again."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            for caller in list(self._callers.values()):
                await self._sweep(caller)

    async def _sweep(self, caller: Caller) -> None:
        try:
            await caller.claims.sweep()
            await caller.groups.sweep()
        except PermissionDeniedError:  # its token or a role has ended: only the end of its session returns the rows
            await self._end(caller)

    async def _end(self, caller: Caller) -> None:
        if self._callers.get(caller.token) is caller:
            del self._callers[caller.token]
        await caller.client.close()

    async def close(self) -> None:
        """End all calls and sessions."""
        opened = [caller.opened for caller in self._callers.values() if caller.opened is not None]
        await asyncio.gather(*(client.close() for client in opened))
