"""The HTTP listener: long scrapes beside calls, clients that stop half-way, scrapers that do not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.requests import DropPartition, RegisterPartition
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.plane import DataPlane
from dataplane_server.http_side import MAX_CONNECTIONS, MAX_SCRAPES, HttpSide
from dataplane_server.observe.metrics import Metrics

PARTITIONS, TASKS = 64, 64
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"

Ask = Callable[[bytes], Coroutine[Any, Any, bytes]]


def big_plane() -> DataPlane:
    """A plane with a hundred thousand series: 20 MB of text, which no socket holds unread."""
    plane, tasks = DataPlane(Limits(memory_bytes=1 << 20)), tuple(f"{task:0100}" for task in range(TASKS))
    for number in range(PARTITIONS):
        plane.apply(RegisterPartition(f"r{number}", Definition(f"p{number}", ("a",), tasks)), 0.0)
    return plane


@asynccontextmanager
async def serving(plane: DataPlane, max_s: float) -> AsyncIterator[tuple[int, Ask]]:
    """The port of a listener, and what asks it and reads to the end."""
    side = HttpSide(Metrics(plane, lambda: True), lambda: True, max_s=max_s)
    port = await side.start("127.0.0.1", 0)

    async def ask(request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 200.0)
        writer.close()
        return answer

    try:
        yield port, ask
    finally:
        await side.stop()


async def test_other_calls_are_served_while_a_long_scrape_goes_on() -> None:
    async with serving(big_plane(), 200.0) as (_, ask):
        scrape, healthy = asyncio.create_task(ask(SCRAPE)), 0
        while not scrape.done():
            answer = await ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            healthy += answer.endswith(b"ok\n")
        assert (await scrape).count(b"dataplane_task_rows{") == 5 * PARTITIONS * TASKS
        assert healthy > 5


async def test_a_connection_ends_with_its_answer_also_if_that_is_404() -> None:
    async with serving(DataPlane(Limits()), 60.0) as (_, ask):
        assert (await ask(b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n")).startswith(b"HTTP/1.1 404")


@pytest.mark.long
def test_a_partition_that_goes_while_it_is_scraped_is_there_with_all_of_its_series_or_not_at_all() -> None:
    plane = big_plane()
    turns = Metrics(plane, lambda: True).turns()
    text = [next(turns)]
    plane.apply(DropPartition("drop", f"p{PARTITIONS - 1}"), 0.0)
    text += turns
    counts = {
        family.name: len({sample.labels["partition"] for sample in family.samples})
        for family in text_string_to_metric_families(b"".join(text).decode())
        if family.name in ("dataplane_rows", "dataplane_puts", "dataplane_task_rows", "dataplane_claims")
    }
    assert len(counts) == 4
    assert set(counts.values()) <= {PARTITIONS - 1, PARTITIONS}
    assert len(set(counts.values())) == 1


async def test_scrapers_that_do_not_read_keep_others_out_for_a_bounded_time_and_memory() -> None:
    for max_s in (1.0, 10.0, 100.0):  # the first that is long enough for this machine
        async with serving(big_plane(), max_s) as (port, ask):
            idle, refused = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]](), b""
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                for _ in range(MAX_SCRAPES):
                    idle.append(await asyncio.open_connection("127.0.0.1", port, limit=1024))
                    idle[-1][1].write(SCRAPE)
                    await idle[-1][0].readexactly(9)
                refused = await ask(SCRAPE)
            if was_refused := refused.startswith(b"HTTP/1.1 503"):
                await is_free_again(port)
            for _, writer in idle:
                writer.transport.abort()
        if was_refused:
            break
    assert refused.endswith(b"scrapes are under way; scrape again when one has ended, and less often\n")


async def is_free_again(port: int) -> None:
    """Wait until a scrape is begun."""
    status = b""
    while b"200" not in status:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(SCRAPE)
        with suppress(ConnectionError):
            status = await asyncio.wait_for(reader.readline(), 200.0)
        writer.transport.abort()
        await asyncio.sleep(0.05)  # the server does not announce free places


async def test_clients_that_stop_half_way_do_not_keep_others_out() -> None:
    async with serving(DataPlane(Limits()), 0.2) as (port, ask):
        halves = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * MAX_CONNECTIONS)]
        for _, writer in halves:
            writer.write(b"GET /metrics HTTP/1.1\r\n")
        answer = b""
        while not answer.endswith(b"ok\n"):  # on a busy machine this request, too, is sent too late
            with suppress(ConnectionError):
                answer = await ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for half, open_writer in halves:
            with suppress(ConnectionResetError):  # of a connection that ended before its half was read
                assert await asyncio.wait_for(half.read(), 200.0) == b""
            open_writer.close()
