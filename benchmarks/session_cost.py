"""The cost of sessions for an otherwise idle server.

One server has 1,000 sessions, each on its own connection, with heartbeats at the times at which real clients with the
default grace send them, or evenly spread, as those of clients with skewed clocks; another server is idle. Two processes
keep the sessions; their work is not measured. After a warm-up of two intervals, the CPU time of both servers is read
from the kernel, over the same half a minute, in five slices.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any

import grpc

from dataplane_client import connect
from dataplane_client._connect.channel import CHANNEL_OPTIONS
from dataplane_client._connect.heartbeats import beat_interval_s, until_next_beat_s
from dataplane_client.options import ClientOptions
from report import Session, table
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from servers import ServerProcess, server_process
from timing import Series

GOAL_CORES, PROCESSES, SLICES, OPEN_S = 0.05, 2, 5, 120.0
OPEN_AT_ONCE = 4  # in each process: the server refuses a burst, and these streams do not try again as clients do
GRACE_S = ClientOptions().session_grace_s
INTERVAL_S = beat_interval_s(GRACE_S)
_SPAWN = multiprocessing.get_context("spawn")


def measure(session: Session) -> None:
    for spread in (False, True):
        _measure(session, spread)


def _measure(session: Session, spread: bool) -> None:
    count, seconds = session.pick((1000, 30.0), (20, 5.0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # servers inherit it; each session takes one
    with server_process("256MiB") as idle, server_process("256MiB") as busy, sessions(busy, count, spread):
        time.sleep(2 * INTERVAL_S)
        found = cores([idle, busy], seconds)
        with connect(busy.unix) as client:
            alive = client.server_status().sessions
    rows = [
        [name, *(f"{value * 100:.2f}" for value in (series.median, series.low, series.high))]
        for name, series in zip(("idle", f"{count:,} sessions"), found, strict=True)
    ]
    session.console.print(
        table("CPU time of a server, % of a core", ("server", "median", "lowest slice", "highest"), rows)
    )
    beats, taken = count / INTERVAL_S, found[1].median
    each = f"{beats:.0f} heartbeats a second, {(taken - found[0].median) / beats * 1e6:.0f} microseconds each"
    title = f"{count:,} sessions{', heartbeats spread' if spread else ''}: under {GOAL_CORES:.0%} of a core"
    text = f"{taken:.1%}: {each}; {count - alive} have expired"
    session.goal(title, text, taken < GOAL_CORES, taken)


@contextmanager
def sessions(server: ServerProcess, count: int, spread: bool) -> Iterator[None]:
    """Open `count` sessions that send heartbeats."""
    opened = _SPAWN.Semaphore(0)
    shares = [count // PROCESSES + (number < count % PROCESSES) for number in range(PROCESSES)]
    keepers = [_SPAWN.Process(target=keep, args=(server.unix, share, spread, opened), daemon=True) for share in shares]
    for keeper in keepers:
        keeper.start()
    try:
        for _ in range(count):
            if not opened.acquire(timeout=OPEN_S):
                raise RuntimeError("the sessions did not open")
        yield
    finally:
        for keeper in keepers:
            keeper.terminate()
            keeper.join(30)


def keep(address: str, count: int, spread: bool, opened: Semaphore) -> None:
    opening = asyncio.Semaphore(OPEN_AT_ONCE)

    async def keep_one(number: int) -> None:
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            stub: Any = pb_grpc.DataPlaneServiceStub(channel)
            async with opening:
                stream = stub.Session()
                await stream.write(pb.SessionRequest(open=pb.OpenSession(client_name=f"session {number}")))
                await stream.read()
            opened.release()
            await asyncio.sleep(INTERVAL_S * number / count)  # real clients do not all start at the same time
            while True:
                await stream.write(pb.SessionRequest())
                await asyncio.sleep(INTERVAL_S if spread else until_next_beat_s(GRACE_S, time.time()))

    async def keep_all() -> None:
        await asyncio.gather(*(keep_one(number) for number in range(count)))

    asyncio.run(keep_all())


def cores(servers: Sequence[ServerProcess], seconds: float) -> list[Series]:
    """Cores that each server used, by slice."""
    found: list[tuple[float, ...]] = []
    for _ in range(SLICES):
        before, began = [cpu_s(server) for server in servers], time.monotonic()
        time.sleep(seconds / SLICES)
        after, lasted = [cpu_s(server) for server in servers], time.monotonic() - began
        found.append(tuple((end - begin) / lasted for begin, end in zip(before, after, strict=True)))
    return [Series(each) for each in zip(*found, strict=True)]


def cpu_s(server: ServerProcess) -> float:
    """Seconds of user and system time, over all threads."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
