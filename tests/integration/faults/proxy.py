"""A proxy between clients and a server, which does to their bytes what networks do.

A fault belongs to a direction and holds from when it is set, for connections that are open and for later ones. Without
any the proxy forwards bytes as they come.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, Literal, TypeVar

T = TypeVar("T")
Direction = Literal["requests", "answers"]
Side = Literal["client", "server"]
BOTH: tuple[Direction, Direction] = ("requests", "answers")

_READ_BYTES = 1 << 16
_LONGEST_SLICE = 17
_RESET_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 s
_WAIT_S = 200.0


class FaultProxy:
    """Forwards TCP connections to `upstream`, on an event loop of its own thread, until `close`.

    swallow: directions that are a black hole: bytes are taken and not handed on, and the connection stays open.
    cut_after: bytes of a direction after which a connection is reset, so often as cuts_left says; each cut multiplies
        them by cut_growth.
    delay_s: how much later, in seconds, bytes of a direction arrive.
    slices: directions that are written in pieces of 1 to 17 bytes, by `seed`.
    bytes_per_s: how fast a direction is.
    repeat_after: bytes of a direction after which one read of a connection is handed on twice, so often as repeats_left
        says.
    flip: a pattern in the bytes of a direction, of whose next occurrence the first byte is changed, once.
    """

    def __init__(self, upstream: str, seed: int = 0) -> None:
        self._upstream = upstream.rpartition(":")
        self._connections: set[_Connection] = set()
        self._opening = 0
        self.dice = random.Random(seed)
        self.swallow: set[Direction] = set()
        self.cut_after: dict[Direction, int] = {}
        self.cuts_left = 0
        self.cut_growth = 1
        self.delay_s: dict[Direction, float] = {}
        self.slices: set[Direction] = set()
        self.bytes_per_s: dict[Direction, int] = {}
        self.repeat_after: dict[Direction, int] = {}
        self.repeats_left = 0
        self.flip: dict[Direction, bytes] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())

    def reset_connections(self) -> None:
        """Break every connection; later ones pass unharmed by black holes."""
        self.swallow = set()
        self._run(self._reset())

    def close_silently(self, side: Side) -> None:
        """Close every connection to one side; the other side is not told, and what it sends is lost."""
        self._run(self._close_silently(side))

    def close(self) -> None:
        """Break every connection and accept no others."""
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_S)
        self._loop.close()

    def takes_cut(self, direction: Direction, passed: int) -> bool:
        """Whether a connection is to be reset that has passed so many bytes; if so, that cut is made."""
        if not self.cuts_left or passed <= self.cut_after.get(direction, passed):
            return False
        self.cuts_left -= 1
        self.cut_after[direction] *= self.cut_growth
        return True

    def takes_repeat(self, direction: Direction, passed: int) -> bool:
        """Whether bytes are to be handed on twice by a connection that has passed so many; if so, they are."""
        if not self.repeats_left or passed <= self.repeat_after.get(direction, passed):
            return False
        self.repeats_left -= 1
        return True

    def flipped(self, direction: Direction, data: bytes) -> bytes:
        """The bytes as they are handed on."""
        at = data.find(self.flip[direction]) if direction in self.flip else -1
        if at < 0:
            return data
        del self.flip[direction]
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_WAIT_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._upstream
        self._opening += 1
        try:
            to_server = await asyncio.open_connection(host, int(port))
        except OSError:  # there is no server, now
            writer.close()
            return
        finally:
            self._opening -= 1
        connection = _Connection(self, (reader, writer), to_server)
        self._connections.add(connection)
        await connection.forward()
        self._connections.discard(connection)

    async def _reset(self) -> None:
        for connection in self._connections:
            connection.reset()

    async def _close_silently(self, side: Side) -> None:
        for connection in self._connections:
            connection.close_silently(side)

    async def _stop(self) -> None:
        self._server.close()
        while self._connections or self._opening:
            await self._reset()
            await asyncio.sleep(0.001)  # its tasks end


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: FaultProxy, client: _Streams, server: _Streams) -> None:
        self._proxy = proxy
        self._streams: dict[Side, _Streams] = {"client": client, "server": server}
        self._closed: Side | None = None  # of which the other side does not know

    async def forward(self) -> None:
        """Until both sides are closed."""
        await asyncio.gather(self._pump("requests", "client", "server"), self._pump("answers", "server", "client"))
        for _, writer in self._streams.values():
            writer.close()

    def reset(self) -> None:
        for side in self._streams:
            self._abort(side)

    def close_silently(self, side: Side) -> None:
        self._closed = side
        self._abort(side)

    def _abort(self, side: Side) -> None:
        writer = self._streams[side][1]
        if not writer.transport.is_closing():
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
            writer.transport.abort()

    async def _pump(self, direction: Direction, source: Side, sink: Side) -> None:
        reader, writer = self._streams[source][0], self._streams[sink][1]
        passed = 0
        try:
            while data := await reader.read(_READ_BYTES):
                passed += len(data)
                data = self._proxy.flipped(direction, data)
                if self._proxy.takes_cut(direction, passed):
                    writer.write(data[: len(data) // 2])
                    self.reset()
                elif self._closed != sink and direction not in self._proxy.swallow:
                    await self._hand_on(direction, data, writer)
                    if self._proxy.takes_repeat(direction, passed):
                        await self._hand_on(direction, data, writer)
        except ConnectionError:
            pass
        finally:
            if self._closed != source:
                writer.close()

    async def _hand_on(self, direction: Direction, data: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self._proxy.delay_s.get(direction, 0.0))
        pace = self._proxy.bytes_per_s.get(direction)
        for piece in self._pieces(direction, data, pace):
            writer.write(piece)
            await writer.drain()
            if pace:
                await asyncio.sleep(len(piece) / pace)

    def _pieces(self, direction: Direction, data: bytes, pace: int | None) -> Iterator[bytes]:
        begin, size = 0, -(-pace // 16) if pace else _READ_BYTES
        while begin < len(data):
            if direction in self._proxy.slices:
                size = self._proxy.dice.randint(1, _LONGEST_SLICE)
            yield data[begin : begin + size]
            begin += size
