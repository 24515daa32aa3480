"""When values travel over the direct port, and that whatever ends there leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from tests.forked import FORKS, forking
from tests.integration.conftest import ANY_PORT
from tests.integration.faults.proxy import FaultProxy
from tests.integration.shared_memory.test_choice_of_way import works
from tests.waiting import eventually, soon

from dataplane_client import aio
from dataplane_client._memory.direct_port import opened
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DeadlineError, PreconditionError
from dataplane_client.options import Credentials, TransportChoice
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.service.local.direct_endpoint import DirectEndpoint
from dataplane_server.testing import ServerThread

MIB = 1 << 20
BIG = torch.arange(7 * MIB // 8).reshape(1, -1)
"""More than the sockets of a connection take in at first. Later they take in more."""


@pytest.fixture
def server() -> Iterator[ServerThread]:
    """A server that shares no memory, so its clients are as those of other hosts."""
    server = ServerThread(
        ServerConfig(listen=(ANY_PORT,), direct=ANY_PORT, share_memory=False, limits=Limits(memory_bytes=16 * MIB))
    )
    yield server
    server.stop()


def endpoint_of(server: ServerThread) -> DirectEndpoint:
    assert server.server._direct is not None
    return server.server._direct


def test_who_shares_no_memory_with_the_server_uses_its_direct_port(server: ServerThread) -> None:
    choices: list[tuple[TransportChoice, str]] = [("auto", "direct"), ("direct", "direct"), ("grpc", "grpc")]
    for transport, expected in choices:
        with connect(server.addresses[0], transport=transport) as client:
            assert (client.transport, works(client)) == (expected, True)
            assert server.server.metrics.attached_clients == 0  # it maps no memory


@pytest.mark.parametrize("what", ["nobody", "a stranger", "another server"])
def test_if_the_port_leads_elsewhere_values_travel_over_grpc_unless_the_client_insists(
    server: ServerThread, start_server: Callable[..., ServerThread], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = start_server()
    named = server.server.servicer._direct_port
    assert named is not None
    ports = {"nobody": 1, "a stranger": other.addresses[0], "another server": other.server.direct_address}
    named.port = int(str(ports[what]).rpartition(":")[2])
    with caplog.at_level(logging.INFO, "dataplane_client"), connect(server.addresses[0]) as client:
        assert (client.transport, works(client)) == ("grpc", True)
    assert "direct_port_not_used" in {record.getMessage().split()[0] for record in caplog.records}
    with pytest.raises(PreconditionError, match=server.addresses[0]):
        connect(server.addresses[0], transport="direct")


@pytest.mark.long
def test_a_client_that_insists_waits_for_a_port_that_is_slow(server: ServerThread) -> None:
    named = server.server.servicer._direct_port
    assert named is not None
    proxy = FaultProxy(str(server.server.direct_address))
    proxy.delay_s["answers"] = 2.5  # others wait for 2 s
    named.port = int(proxy.address.rpartition(":")[2])
    choices: list[tuple[TransportChoice, str]] = [("auto", "grpc"), ("direct", "direct")]
    for transport, expected in choices:
        with connect(server.addresses[0], transport=transport, timeout_s=200.0) as client:
            assert client.transport == expected
    proxy.close()


def test_a_client_that_insists_has_to_use_the_tcp_address(
    start_server: Callable[..., ServerThread], listen: str
) -> None:
    unix = f"unix:///tmp/rl-dataplane-direct-{os.getpid()}.sock"
    start_server((unix,))
    with pytest.raises(PreconditionError, match="host:port"):
        connect(unix, transport="direct")


def test_the_addresses_of_a_host_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def silent(line: socket.socket, _: object) -> None:
        waited.append(line.gettimeout() or 0.0)
        time.sleep(waited[-1])
        raise TimeoutError

    three = 3 * socket.getaddrinfo("127.0.0.1", 1, type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: three)
    monkeypatch.setattr(socket.socket, "connect", silent)
    with pytest.raises(TimeoutError):
        opened(("host", 1), 0.3, 10)
    assert len(waited) == 3
    assert sum(waited) < 0.31


def test_a_client_with_a_token_keeps_to_grpc(server: ServerThread, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    credentials = Credentials(token_file=str(tmp_path / "token"))
    with connect(server.addresses[0], credentials=credentials) as client:
        assert client.transport == "grpc"


# -- what ends half-way ------------------------------------------------------------------------------------------------


@contextmanager
def nothing_moves(server: ServerThread) -> Iterator[None]:
    """The server takes no values in and sends none out."""
    go_on, threads = threading.Event(), endpoint_of(server).threads
    waiting = [threads.submit(go_on.wait, 300) for _ in range(threads._max_workers)]
    yield
    go_on.set()
    assert all(one.result() for one in waiting)


@pytest.fixture
def flow(server: ServerThread) -> Iterator[DataPlaneClient]:
    with connect(server.addresses[0], transport="direct") as client:
        client.register_partition("p", ["x"], 0, ["train"])
        yield client


def leaves_whole_rows(flow: DataPlaneClient) -> bool:
    """Whether the server holds the bytes of its rows, and no others."""
    return flow.server_status().memory_used_bytes == flow.partition("p").rows * BIG.nbytes


def test_a_put_and_a_read_end_at_their_deadline(server: ServerThread, flow: DataPlaneClient) -> None:
    flow.put_samples(["first"], "p", {"x": BIG})
    with nothing_moves(server):
        with pytest.raises(DeadlineError):
            flow.put_samples(["late"], "p", {"x": BIG}, timeout_s=0.3)
        with pytest.raises(DeadlineError):
            flow.get_samples(["first"], "p", ["x"], timeout_s=0.3)
    eventually(lambda: leaves_whole_rows(flow))  # the late one too, if the sockets had taken in all of it
    for row in flow.list_samples("p").meta.sample_ids:
        assert torch.equal(flow.get_samples([row], "p", ["x"])["x"], BIG)


def test_a_put_whose_connection_the_kernel_gives_up_is_made_again(server: ServerThread, flow: DataPlaneClient) -> None:
    local = flow._transport._local
    assert local is not None
    (line,) = local._connections._idle
    line._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 500)
    with ThreadPoolExecutor(1) as threads:
        with nothing_moves(server):
            putting = threads.submit(flow.put_samples, ["a"], "p", {"x": BIG})
            wait([putting], 3.0)
        putting.result()
    assert leaves_whole_rows(flow)


async def test_a_cancelled_put_or_read_is_over_at_once_and_leaves_nothing(
    server: ServerThread, flow: DataPlaneClient
) -> None:
    flow.put_samples(["first"], "p", {"x": BIG})
    async with await aio.connect(server.addresses[0], transport="direct") as client:

        async def put() -> None:
            await client.put_samples(["s"], "p", {"x": BIG})

        async def get() -> None:
            await client.get_samples(["first"], "p", ["x"])

        for call in (put, get):
            with nothing_moves(server):
                under_way = asyncio.create_task(call())
                await asyncio.sleep(0.2)
                assert not under_way.done()
                under_way.cancel()
                assert (await asyncio.wait([under_way], timeout=120))[0]
        await soon(lambda: flow.server_status().memory_used_bytes == BIG.nbytes)
        assert torch.equal((await client.get_samples(["first"], "p", ["x"]))["x"], BIG)


def put_for_ever(pipe: Connection, address: str, name: str) -> None:
    with connect(address, transport="direct") as client:
        pipe.send("ready")
        for number in itertools.count():
            client.put_samples([f"{name}_{number}"], "p", {"x": BIG})
            client.get_samples([f"{name}_{number}"], "p", ["x"])
            client.clear_samples([f"{name}_{number}"], "p")


@FORKS
@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.soak)])
def test_clients_killed_at_any_moment_leave_whole_rows_or_none(
    server: ServerThread, flow: DataPlaneClient, kills: int
) -> None:
    context = forking()
    for number in range(kills):
        pipe, theirs = context.Pipe()
        process = context.Process(target=put_for_ever, args=(theirs, server.addresses[0], f"d{number}"))
        process.start()
        assert pipe.recv() == "ready"
        time.sleep(number % 8 * 0.007)
        process.kill()
        process.join(120)
        eventually(lambda: leaves_whole_rows(flow))
        flow.clear_samples(None, "p")
