"""The HTTP listener, beside clients that stop half-way."""

from __future__ import annotations

import asyncio

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.plane import DataPlane
from dataplane_server.observe.http import MAX_CONNECTIONS, HttpSide
from dataplane_server.observe.metrics import Metrics


async def test_clients_that_stop_half_way_do_not_keep_others_out() -> None:
    side = HttpSide(Metrics(DataPlane(Limits()), lambda: True), lambda: True, max_s=0.2)
    port = await side.start("127.0.0.1", 0)
    halves = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * MAX_CONNECTIONS)]
    for _, writer in halves:
        writer.write(b"GET /metrics HTTP/1.1\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 20.0)).endswith(b"ok\n")
    assert [await asyncio.wait_for(half.read(), 20.0) for half, _ in halves] == [b""] * len(halves)
    for _, open_writer in [*halves, (reader, writer)]:
        open_writer.close()
    await side.stop()
