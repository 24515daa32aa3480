"""A proxy between client and server that breaks connections on command."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import pytest

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, connect

Direction = Literal["requests", "answers"]


class FaultProxy:
    """Forwards TCP connections to `upstream`, on an event loop of its own thread.

    swallow: directions whose bytes are taken and not handed on. cut_after: bytes of a direction after which a
    connection is reset, so often as cuts_left says.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream.rpartition(":")
        self._writers: set[asyncio.StreamWriter] = set()
        self.swallow: set[Direction] = set()
        self.cut_after: dict[Direction, int] = {}
        self.cuts_left = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())

    def reset_connections(self) -> None:
        """Break every connection; later ones pass unharmed."""
        self.swallow = set()
        asyncio.run_coroutine_threadsafe(self._abort(), self._loop).result(10)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._upstream
        upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        pair = {writer, upstream_writer}
        self._writers |= pair
        await asyncio.gather(
            self._pump("requests", reader, upstream_writer), self._pump("answers", upstream_reader, writer)
        )
        self._writers -= pair

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        try:
            while data := await reader.read(1 << 16):
                passed += len(data)
                if self.cuts_left and passed > self.cut_after.get(direction, passed):
                    self.cuts_left -= 1
                    await self._abort()
                if direction not in self.swallow:
                    writer.write(data)
                    await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _stop(self) -> None:
        self._server.close()
        await self._abort()
        await asyncio.sleep(0.01)  # the connections' tasks end


@pytest.fixture
def way() -> str:
    """The proxy speaks TCP only, and what goes through memory does not go through it."""
    return "tcp"


@pytest.fixture
def proxy(address: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(address)
    yield proxy
    proxy.close()


@pytest.fixture
def shaky(proxy: FaultProxy) -> Iterator[DataPlaneClient]:
    """A client whose connection runs through the proxy; `client` goes straight to the same server."""
    with connect(proxy.address, timeout_s=20.0, transport="grpc") as client:
        yield client


@pytest.fixture
async def async_shaky(proxy: FaultProxy) -> AsyncIterator[aio.AsyncDataPlaneClient]:
    async with await aio.connect(proxy.address, timeout_s=20.0, transport="grpc") as client:
        yield client
