"""Sessions over the life of servers, clients, threads and tasks: nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from tests.forked import FORKS, forking
from tests.integration.shared_memory.conftest import stalled
from tests.waiting import eventually, soon

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import ClosedError, DataPlaneError
from dataplane_client.records.meta import KVBatchMeta
from dataplane_server.testing import ServerThread

Start = Callable[..., ServerThread]

MIB = 1 << 20


def rows_of(count: int, size: int = MIB) -> torch.Tensor:
    return torch.randint(0, 256, (count, size), dtype=torch.uint8)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def used(client: DataPlaneClient) -> int:
    return client.server_status().memory_used_bytes


def test_a_client_goes_on_with_the_memory_of_the_next_server(
    server: ServerThread, start_server: Start, listen: str, client: DataPlaneClient
) -> None:
    client.put_samples(["s"], "p", {"x": rows_of(1)})
    server.stop()
    start_server((listen,), memory_bytes=8 * MIB)
    sent = rows_of(1)
    client.register_partition("p", ["x"], 0, ["train"])
    client.put_samples(["s"], "p", {"x": sent})
    assert torch.equal(client.get_samples(["s"], "p", ["x"])["x"], sent)
    assert client.transport == "shm"


def test_of_the_sessions_that_many_calls_open_at_once_one_is_kept(
    server: ServerThread,
    start_server: Start,
    listen: str,
    client: DataPlaneClient,
    threads: ThreadPoolExecutor,
) -> None:
    server.stop()
    calls = [threads.submit(client.partitions) for _ in range(16)]
    again = start_server((listen,), memory_bytes=8 * MIB)
    assert [call.result(300) for call in calls] == [[]] * 16
    assert client.transport == "shm"
    eventually(lambda: sessions(again) == 1)
    client.close()
    eventually(lambda: sessions(again) == 0)


def sessions(server: ServerThread) -> int:
    assert server.server._local is not None
    return len(server.server._local._sessions)


def test_a_closed_client_leaves_no_descriptor(server: ServerThread, listen: str) -> None:
    for _ in range(2):  # whatever is opened once and for all is open now
        with connect(listen, transport="shm") as client:
            client.server_status()
    gc.collect()
    before = descriptors()
    for _ in range(5):
        with connect(listen, transport="shm") as client:
            client.register_partition("p", ["x"], 0, ["train"])
            client.put_samples(["s"], "p", {"x": rows_of(1)})
    del client
    gc.collect()
    eventually(lambda: descriptors() <= before)  # the server's ends too


@FORKS
def test_a_session_ends_with_its_client_although_a_child_that_it_has_forked_lives_on(client: DataPlaneClient) -> None:
    client.put_samples(["s"], "p", {"x": torch.nested.nested_tensor([rows_of(1)[0]], layout=torch.jagged)})
    context = forking()
    ours, theirs = context.Pipe()
    process = context.Process(target=leave_a_child, args=(client.target, theirs))
    process.start()
    try:
        assert ours.poll(200)
        process.join(200)
        assert process.exitcode == -signal.SIGKILL
        client.clear_samples(None, "p")
        eventually(lambda: used(client) == 0)
    finally:
        ours.send("end")


def leave_a_child(target: str, ours: Connection) -> None:
    """Be killed with a view and with a forked child, which waits until it is told to end."""
    client = connect(target, transport="shm")
    meta = KVBatchMeta(partition_id="p", task_name=None, sample_ids=["s"], fields=None)
    view = client.read_columns(meta, ("x",), layout="jagged")["x"]
    assert view.is_nested
    if os.fork() == 0:
        ours.send("forked")
        ours.recv()
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_client_that_is_dropped_open_leaves_no_session_and_warns_of_nothing(
    server: ServerThread, listen: str, grpc_client: DataPlaneClient
) -> None:
    sockets = local_sockets()
    client = connect(listen, transport="shm")
    client.register_partition("p", ["x"], 0, ["train"])
    client.put_samples(["s"], "p", {"x": rows_of(1)})
    assert local_sockets() > sockets
    del client
    gc.collect()  # a socket that nobody closed would warn here
    eventually(lambda: local_sockets() == sockets)


def local_sockets() -> int:
    """Unix sockets of Python's in this process, the clients' and the servers'."""
    sockets = [thing for thing in gc.get_objects() if type(thing) is socket.socket]
    return sum(1 for each in sockets if each.fileno() >= 0 and each.family == socket.AF_UNIX)


def test_descriptors_that_were_lent_are_not_inherited_by_programs(client: DataPlaneClient) -> None:
    arenas = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if "rl-dataplane-arena" in link_of(fd)]
    assert len(arenas) >= 3  # the server's, and the two that it lent
    assert [descriptor for descriptor in arenas if os.get_inheritable(descriptor)] == []


def link_of(descriptor: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return str(descriptor.readlink())
    return ""


@pytest.mark.parametrize("attempt", range(10))
def test_closing_at_any_moment_ends_every_call(
    grpc_client: DataPlaneClient, listen: str, threads: ThreadPoolExecutor, attempt: int
) -> None:
    client = connect(listen, timeout_s=60.0, transport="shm")
    client.register_partition("p", ["x"], 0, ["train"])
    calls = [threads.submit(client.claim, "p", "train", ["x"], 1, timeout_s=60.0) for _ in range(8)]
    threading.Event().wait(attempt * 0.001)
    client.close()
    for call in calls:
        with pytest.raises(ClosedError):
            call.result(200)
    eventually(lambda: grpc_client.server_status().waiting_claims == 0)


def test_many_threads_share_a_client(client: DataPlaneClient, threads: ThreadPoolExecutor) -> None:
    def there_and_back(worker: int) -> bool:
        same = []
        for turn in range(8):
            sent = rows_of(3, 1000 if turn % 2 else 200_000)
            ids = [f"{worker}-{turn}-{row}" for row in range(3)]
            client.put_samples(ids, "p", {"x" if turn % 2 else "y": sent})
            name = "x" if turn % 2 else "y"
            same.append(torch.equal(client.get_samples(ids, "p", [name])[name], sent))
            client.clear_samples(ids, "p")
        return all(same)

    assert all(threads.map(there_and_back, range(16)))
    assert used(client) == 0


async def test_a_put_that_is_cancelled_leaves_nothing_whenever_that_is(
    server: ServerThread, listen: str, grpc_client: DataPlaneClient
) -> None:
    sent = rows_of(4, 8 * MIB)
    async with await aio.connect(listen, timeout_s=200.0, transport="shm") as client:
        await client.register_partition("p", ["x"], 0, ["train"])
        for turn in range(25):
            put = asyncio.ensure_future(client.put_samples([f"{row}" for row in range(4)], "p", {"x": sent}))
            await asyncio.sleep(turn * 0.0005)
            put.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await put
                await client.clear_samples(None, "p")
        await soon(lambda: used(grpc_client) in (0, sent.numel()))
        await client.clear_samples(None, "p")
        await soon(lambda: used(grpc_client) == 0)
        await client.put_samples([f"{row}" for row in range(4)], "p", {"x": sent})
        assert torch.equal((await client.get_samples(["2"], "p", ["x"]))["x"], sent[2:3])


async def test_more_calls_at_once_than_a_socket_queues_are_all_carried_out(server: ServerThread, listen: str) -> None:
    async with await aio.connect(listen, timeout_s=60.0, transport="shm") as client:
        await client.register_partition("p", ["x"], 0, ["train"])
        claims = [asyncio.ensure_future(client.claim("p", "train", ["x"], 1)) for _ in range(1500)]
        await soon(lambda: server.server.plane.totals().waiting_claims == 1500)
        assert sessions(server) == 1
        await client.put_samples([str(row) for row in range(1500)], "p", {"x": torch.zeros(1500)})
        granted = await asyncio.gather(*claims)
    assert len({claim.meta.sample_ids[0] for claim in granted}) == 1500


def test_a_call_that_times_out_is_ended_on_the_server(
    client: DataPlaneClient, grpc_client: DataPlaneClient, server: ServerThread
) -> None:
    with stalled(server), pytest.raises(DataPlaneError, match="partitions at"):
        client.partitions(timeout_s=0.2)
    assert client.partitions() == grpc_client.partitions()
