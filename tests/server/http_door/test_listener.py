"""The door's listener and settings: slow callers, many callers, addresses."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import struct
import threading
from collections.abc import AsyncIterator

import pytest

from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.requests import RegisterPartition
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.plane import DataPlane
from dataplane_server.http_door.answers import STATUS_TABLE
from dataplane_server.http_door.door import MAX_CONNECTIONS, HttpDoor
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service.error_table import ERROR_TABLE
from dataplane_server.service.servicer import DataPlaneServicer
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import ArenaValues
from dataplane_server.storage.arena import Arena
from dataplane_server.testing import ServerThread

HEAD = (
    b"POST /v1/partitions/p/samples HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n"
)


@pytest.fixture
async def door(request: pytest.FixtureRequest) -> AsyncIterator[HttpDoor]:
    """A door to which bodies may take as long as the test says, in seconds, or 0.3."""
    plane = DataPlane(Limits(memory_bytes=1 << 16))
    metrics, arena = Metrics(plane, lambda: True), Arena(1 << 16, shared=False)
    shell = Shell(plane, metrics)
    door = HttpDoor(
        DataPlaneServicer(shell, ArenaValues(shell.plane, arena), metrics),
        shell,
        metrics,
        body_s=getattr(request, "param", 0.3),
    )
    yield door
    await door.stop()
    shell.drain()
    arena.close()


@pytest.fixture
async def port(door: HttpDoor) -> int:
    return await door.start("127.0.0.1", 0)


async def test_a_body_that_is_late_is_refused_and_keeps_no_other_caller_out(port: int) -> None:
    slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * MAX_CONNECTIONS)]
    for _, writer in slow:
        writer.write(HEAD + b"{")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/partitions/p HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b'"PARTITION_NOT_FOUND"' in await asyncio.wait_for(reader.read(), 20.0)
    for late, _ in slow:
        head, _, body = (await asyncio.wait_for(late.read(), 20.0)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body)["error"]["message"] == "the body did not arrive within 0.3 s"
    for _, open_writer in [*slow, (reader, writer)]:
        open_writer.close()


@pytest.mark.parametrize("door", [1000.0], indirect=True)
async def test_bodies_that_do_not_come_lose_their_places_to_those_that_wait(port: int) -> None:
    slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5 * MAX_CONNECTIONS // 2)]
    for number, (_, writer) in enumerate(slow):
        writer.write(HEAD + b"{" if number % 2 else HEAD[:9])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD.replace(b"100", b"14") + b'{"samples":[]}')
    assert b'"PARTITION_NOT_FOUND"' in await asyncio.wait_for(reader.read(), 30.0)
    gone = [late for late, _ in slow if late.at_eof() or late.exception()]
    assert len(slow) - MAX_CONNECTIONS < len(gone) < len(slow)
    for _, open_writer in [*slow, (reader, writer)]:
        open_writer.close()


@pytest.mark.parametrize("door", [1000.0], indirect=True)
@pytest.mark.parametrize("ends", ["closed", "reset"])
async def test_a_caller_that_hangs_up_within_its_body_is_no_error(
    port: int, ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader, leaving = await asyncio.open_connection("127.0.0.1", port)
    leaving.write(HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
    assert b"100 Continue" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20.0)
    if ends == "reset":
        linger = struct.pack("ii", 1, 0)
        leaving.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    leaving.close()
    for _ in range(3):  # the door has noticed by then
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/partitions/p HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b'"PARTITION_NOT_FOUND"' in await asyncio.wait_for(reader.read(), 20.0)
        writer.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("door", [1000.0], indirect=True)
async def test_others_are_served_while_a_long_body_is_parsed(door: HttpDoor, port: int) -> None:
    door._shell.apply(RegisterPartition("r", Definition("p", ("x",), ("t",))))
    parsing = threading.Event()
    door.threads.submit(parsing.wait, 30.0)  # a body before it
    long, long_writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"samples":["%s"]}' % (b"a" * (1 << 20))
    long_writer.write(HEAD.replace(b"100", b"%d" % len(body)) + body)
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD.replace(b"100", b"14") + b'{"samples":[]}')
        assert b"400 Bad Request" in await asyncio.wait_for(reader.read(), 20.0)
        writer.close()
    assert not long.at_eof()
    parsing.set()
    assert b"sample 0 must be an object" in await asyncio.wait_for(long.read(), 20.0)
    long_writer.close()


def test_every_error_of_the_contract_has_a_status() -> None:
    assert set(ERROR_TABLE.values()) <= STATUS_TABLE.keys()


def test_a_port_that_is_taken_is_refused_by_the_name_of_the_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match="--http-door"):
            ServerThread(ServerConfig(listen=("127.0.0.1:0",), http_door=address))


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:9465", "localhost:0"])
def test_a_door_opens_to_this_host(address: str) -> None:
    ServerConfig(http_door=address).validate()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("9465", "http_door: '9465' is not host:port"),
        ("unix:///run/door", "http_door: 'unix:///run/door' is not host:port"),
        ("0.0.0.0:9465", "http_door: '0.0.0.0:9465' can be reached from other hosts"),
    ],
)
def test_a_door_to_other_hosts_is_refused_unless_the_server_may_be_insecure(address: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        ServerConfig(http_door=address).validate()
    if "other hosts" in words:
        ServerConfig(http_door=address, insecure=True).validate()
