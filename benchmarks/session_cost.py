"""Measure the cost of sessions for an otherwise idle server.

    python benchmarks/session_cost.py [--sessions N] [--seconds S]

Runs two server processes. One has N sessions, each on its own connection, with heartbeats at the times at which real
clients with the default grace send them; the other is idle. Two processes keep the sessions; their work is not
measured. After a warm-up of two intervals, reads the CPU time of both servers from the kernel, over the same --seconds
(30), in five slices, and prints the spread of the slices. --spread spreads the heartbeats evenly, as those of clients
with skewed clocks.

Goal: 1,000 sessions take less than 5 % of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

from dataplane_client._connect.channel import CHANNEL_OPTIONS
from dataplane_client._connect.session import beat_interval_s, until_next_beat_s
from dataplane_client.options import ClientOptions
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from servers import ServerProcess, server_process

GOAL_CORES = 0.05
GOAL_SESSIONS = 1000
PROCESSES = 2
SLICES = 5
OPEN_S = 120.0
_SPAWN = multiprocessing.get_context("spawn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=GOAL_SESSIONS)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the measurement")
    parser.add_argument("--spread", action="store_true", help="heartbeats evenly spread over time")
    options = parser.parse_args()
    console = Console()
    console.print(f"{platform.machine()}, Python {platform.python_version()}, grpcio {grpc.__version__}")
    _allow_many_connections()
    interval_s = beat_interval_s(ClientOptions().session_grace_s)
    with contextlib.ExitStack() as running:
        idle, busy = (running.enter_context(server_process("256MiB")) for _ in range(2))
        running.enter_context(_sessions(busy, options.sessions, options.spread))
        time.sleep(2 * interval_s)
        console.print(_table(_measured([idle, busy], options.seconds), options.sessions, interval_s))
        if (alive := _alive(busy)) != options.sessions:
            console.print(f"{options.sessions - alive} sessions expired meanwhile")


def _allow_many_connections() -> None:
    """Raise the limit of descriptors, which servers inherit; each session takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# -- sessions ----------------------------------------------------------------------------------------------------------


@contextmanager
def _sessions(server: ServerProcess, count: int, spread: bool) -> Iterator[None]:
    """Open `count` sessions that send heartbeats."""
    opened = _SPAWN.Semaphore(0)
    share = [count // PROCESSES + (number < count % PROCESSES) for number in range(PROCESSES)]
    keepers: list[BaseProcess] = [
        _SPAWN.Process(target=_keep, args=(server.unix, part, spread, opened), daemon=True) for part in share
    ]
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


def _keep(address: str, count: int, spread: bool, opened: Semaphore) -> None:
    grace_s = ClientOptions().session_grace_s
    interval_s = beat_interval_s(grace_s)

    async def keep_one(number: int) -> None:
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            stub: Any = pb_grpc.DataPlaneServiceStub(channel)
            stream = stub.Session()
            await stream.write(pb.SessionRequest(open=pb.OpenSession(client_name=f"session {number}")))
            await stream.read()
            opened.release()
            await asyncio.sleep(interval_s * number / count)  # real clients do not all start at the same time
            while True:
                await stream.write(pb.SessionRequest())
                await asyncio.sleep(interval_s if spread else until_next_beat_s(grace_s, time.time()))

    async def keep_all() -> None:
        await asyncio.gather(*(keep_one(number) for number in range(count)))

    asyncio.run(keep_all())


def _alive(server: ServerProcess) -> int:
    with grpc.insecure_channel(server.unix) as channel:
        stub: Any = pb_grpc.DataPlaneServiceStub(channel)
        return int(stub.GetServerStatus(pb.GetServerStatusRequest()).sessions)


# -- measurement -------------------------------------------------------------------------------------------------------


def _measured(servers: list[ServerProcess], seconds: float) -> list[list[float]]:
    """Cores that each server used, slice by slice."""
    cores: list[list[float]] = [[] for _ in servers]
    for _ in range(SLICES):
        before, began = [_cpu_s(server.pid) for server in servers], time.monotonic()
        time.sleep(seconds / SLICES)
        after, lasted = [_cpu_s(server.pid) for server in servers], time.monotonic() - began
        for each, begin, end in zip(cores, before, after, strict=True):
            each.append((end - begin) / lasted)
    return cores


def _cpu_s(pid: int) -> float:
    """Seconds of user and system time of a process, over all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _table(cores: list[list[float]], sessions: int, interval_s: float) -> Table:
    table = Table(title="CPU time of a server, % of a core", box=None, title_justify="left")
    for heading in ("server", "mean", "lowest slice", "highest slice", f"below {GOAL_CORES:.0%}"):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    for name, slices in zip(("idle", f"{sessions:,} sessions"), cores, strict=True):
        shown = (f"{value * 100:.2f}" for value in (statistics.fmean(slices), min(slices), max(slices)))
        goal = "" if name == "idle" else "holds" if statistics.fmean(slices) < GOAL_CORES else "does not hold"
        table.add_row(name, *shown, goal)
    beats = sessions / interval_s
    extra_s = (statistics.fmean(cores[1]) - statistics.fmean(cores[0])) / beats
    table.caption = f"{beats:.0f} heartbeats a second, {extra_s * 1e6:.0f} microseconds each"
    return table


if __name__ == "__main__":
    main()
