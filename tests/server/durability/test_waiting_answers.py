"""With durability `disk`, no answer leaves before what it tells of is on stable storage, whatever way it takes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import torch
from tests.server.durability.test_life import REGISTER, raised

from dataplane_client import NotFoundError, aio
from dataplane_server.access.gate import OPEN_GATE
from dataplane_server.core.calls.life_calls import Recover
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.requests import SetWeightVersion
from dataplane_server.durability.group_commit import GroupCommit
from dataplane_server.durability.log_writer import LogWriter
from dataplane_server.durability.logged_plane import LoggedPlane
from dataplane_server.http_side import HttpSide
from dataplane_server.observe.metrics import Metrics
from dataplane_server.page.page import open_page
from dataplane_server.service.grpc.boundary import Boundary
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from dataplane_server.service.local.local_calls import LocalCalls
from dataplane_server.service.local.local_endpoint import LocalEndpoint
from dataplane_server.service.local.local_methods import local_methods
from dataplane_server.service.messages.parsing import Messages
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import Values
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from rl_dataplane.v1.records import duration


class SlowDisk:
    """A server whose disk can be made to wait, and a client of it."""

    def __init__(self, folder: Path) -> None:
        self.is_ready, self.is_asked = asyncio.Event(), asyncio.Event()
        self.is_ready.set()
        limits = Limits(memory_bytes=1 << 20)
        self.plane, self.arena = LoggedPlane(limits), Arena(limits.memory_bytes, shared=True)
        self.commits = GroupCommit(self.plane, self.arena, LogWriter(folder, 0, {}), raised, self._in_thread)
        self.plane.log_to(self.commits, raised)
        self.plane.apply(Recover(False, defer_frees=True), 0.0)
        metrics = Metrics(self.plane, lambda: True)
        self.shell = Shell(self.plane, metrics, commits=self.commits)
        values = Values(self.plane, self.arena)
        servicer = DataPlaneServicer(self.shell, values, metrics)
        methods = local_methods(LocalCalls(self.shell, values, metrics), servicer)
        self.local = LocalEndpoint(self.shell, self.arena, metrics, methods)
        self.local.listen_abstract()
        servicer.share_memory(self.arena.nonce, self.local.abstract_name)
        self.server = grpc.aio.server(interceptors=[Boundary(metrics, Messages(limits), self.shell.stable)])
        pb_grpc.add_DataPlaneServiceServicer_to_server(servicer, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.http = HttpSide(metrics, bool, page=open_page(servicer, self.shell, metrics, bool, OPEN_GATE))

    async def _in_thread(self, work: Callable[[], None]) -> None:
        self.is_asked.set()
        await self.is_ready.wait()
        work()


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[SlowDisk]:
    made = SlowDisk(tmp_path)
    await made.server.start()
    yield made
    made.is_ready.set()
    await made.server.stop(0)
    await made.http.stop()
    await made.local.drain(0)
    await made.local.close()
    await made.commits.close()
    made.arena.close()


async def told_when_ready(disk: SlowDisk, call: Awaitable[Any]) -> Any:
    """The answer of a call, which waits for the disk."""
    answer, asked = asyncio.ensure_future(call), asyncio.ensure_future(disk.is_asked.wait())
    done, _ = await asyncio.wait([answer, asked], return_when=asyncio.FIRST_COMPLETED)
    disk.is_ready.set()
    await asyncio.wait([answer])
    assert done == {asked}
    return answer.result()


@pytest.mark.parametrize("transport", ["grpc", "shm"])
@pytest.mark.parametrize("verb", ["get_samples", "partition", "put_samples", "a refused read", "a refused call"])
async def test_an_answer_waits_for_the_disk(disk: SlowDisk, transport: str, verb: str) -> None:
    async with await aio.connect(f"127.0.0.1:{disk.port}", transport=transport) as client:  # type: ignore[arg-type]
        await client.register_partition("p", ["x"], 1, ["t"])
        await client.put_samples(["s"], "p", {"x": torch.ones(1)})
        disk.is_ready.clear()
        disk.is_asked.clear()
        disk.shell.apply(SetWeightVersion("v", "p", 1))  # of which the answer could tell
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "get_samples": lambda: client.get_samples(["s"], "p", ["x"]),
            "partition": lambda: client.partition("p"),
            "put_samples": lambda: client.put_samples(["t"], "p", {"x": torch.ones(1)}),
            "a refused read": lambda: client.get_samples(["none"], "p", ["x"]),
            "a refused call": lambda: client.partition("none"),
        }
        with contextlib.suppress(NotFoundError):
            await told_when_ready(disk, calls[verb]())


async def test_rows_on_the_page_wait_for_the_disk(disk: SlowDisk) -> None:
    url = f"http://127.0.0.1:{await disk.http.start('127.0.0.1', 0)}/page/samples?partition=p"
    disk.is_ready.clear()
    disk.shell.apply(REGISTER)
    async with aiohttp.ClientSession() as session:
        assert (await told_when_ready(disk, session.get(url))).status == 200


async def test_a_session_is_told_its_id_when_no_other_life_can_give_it_to_another_client(disk: SlowDisk) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{disk.port}") as channel:
        disk.is_ready.clear()
        stream: Any = pb_grpc.DataPlaneServiceStub(channel).Session()
        await stream.write(pb.SessionRequest(open=pb.OpenSession(client_name="c")))
        assert (await told_when_ready(disk, stream.read())).session_id
        stream.cancel()


async def test_heartbeats_are_written_although_no_answer_waits_for_them(disk: SlowDisk) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{disk.port}") as channel:
        stream: Any = pb_grpc.DataPlaneServiceStub(channel).Session()
        await stream.write(pb.SessionRequest(open=pb.OpenSession(client_name="c", grace=duration(3600.0))))
        await stream.read()
        disk.is_asked.clear()
        for _ in range(5000):
            await stream.write(pb.SessionRequest())
        await asyncio.wait_for(disk.is_asked.wait(), 200)
        stream.cancel()
