"""Offer up to twenty times what a server can do, in an open loop, on each of the three ways that calls take: gRPC, the
local socket, the direct port. `python benchmarks/overload.py [grpc] [shm] [direct]`, on Linux as root.

The server has a fixed share of a core (a control group's quota), so that the other cores can offer that much. What it
can do is found first: how many calls a second succeed with as many callers as keep it busy. Then calls begin at a
fixed rate, whether or not others have ended, as those of producers that do not know of each other: first with our
client, then with calls that are not repeated, and not held back when the server refuses others. Beside them, clients
hold claims, and health is asked. An admitted call's time begins when it leaves the client for the last time; a
refusal's when the refused attempt leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextvars import ContextVar
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dataplane_client import Claim, DataPlaneError, connect
from dataplane_client._verbs._async.frame_calls import AsyncFrameCalls
from dataplane_client._verbs._async.grpc_calls import AsyncGrpcCalls
from dataplane_client.aio import AsyncDataPlaneClient
from dataplane_client.aio import connect as connect_async
from dataplane_client.errors import UnavailableError
from dataplane_client.options import TransportChoice
from report import arguments, begin
from rl_dataplane.v1 import data_plane_pb2 as pb
from servers import ServerProcess, memory, server_process
from timing import Series

SHARE = 0.15
"""Of a core, for the server."""
PERIOD_US = 10_000
"""In which it has that share. With the usual 100 ms, each call would wait for the rest of a period."""
SECONDS, DEADLINE_S, CLIENTS, HOLDERS, GENERATORS, CALLERS = 6.0, 4.0, 8, 10, 2, 16
GROUPS = Path("/sys/fs/cgroup")
WAYS: tuple[TransportChoice, ...] = ("grpc", "shm", "direct")
COLUMNS = (
    "offered",
    "calls/s",
    "good/s",
    "of peak",
    "p50 / p99 ms",
    "refused in p50 / p99 ms",
    "health p50 / p99 ms",
    "claims kept",
    "MiB",
)


class Call(NamedTuple):
    began: float
    sent: float
    """When its last attempt left."""
    ended: float
    succeeded: bool
    refusals: tuple[float, ...]
    """Seconds that each refusal took."""


Ask = Callable[[AsyncDataPlaneClient], Awaitable[Any]]
connected: Callable[[], object]
attempts: ContextVar[list[float]] = ContextVar("attempts")
"""Of the call that this task makes: when the last attempt left, then the seconds of each refusal."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("ways", nargs="*", choices=(*WAYS, []), help="all unless you name some")
    ways, health = parser.parse_args().ways or WAYS, free_address()
    begin()
    with server_process("64MiB", "--health", health) as server, limited(server):
        with connect(server.tcp, transport="grpc") as client:
            client.register_partition("p", ["x"], 0, ["train"])
        for way in ways:
            print(f"\n| {way} | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (len(COLUMNS) + 1), flush=True)
            peak = report(server, health, way, "16 callers", 0.0, 0.0)
            for name in ("ours", "not slowing down"):
                for times in (10.0, 20.0):
                    report(server, health, way, name, times, peak)


def report(server: ServerProcess, health: str, way: TransportChoice, name: str, times: float, peak: float) -> float:
    """Print a row of the table. Returns how many calls a second succeeded."""
    context = multiprocessing.get_context("spawn")
    together = (context.Barrier(GENERATORS),)
    with holders(server, way) as held, probes(health) as probed:
        with ProcessPoolExecutor(GENERATORS, context, begin_with, together) as generators:
            rate = times * peak / GENERATORS
            parts = [generators.submit(generate, server.tcp, way, name, rate) for _ in range(GENERATORS)]
            calls = [call for part in parts for call in part.result()]  # processes of one machine have one clock
        first, last = min(call.began for call in calls), max(call.began for call in calls)
        alive = sum(claim.commit() == 1 for claim in held)
    good = [call for call in calls if call.succeeded]
    admitted = [call.ended - call.sent for call in good]
    refusals = [seconds for call in calls for seconds in call.refusals]
    healths = [end - began for began, end in probed if first <= began <= last]
    rate = len(good) / SECONDS
    cells = (
        f"{times:g} x" if times else "-",
        f"{len(calls) / SECONDS:.0f}",
        f"{rate:.0f}",
        f"{rate / (peak or rate or 1):.0%}",
        quantiles_ms(admitted),
        quantiles_ms(refusals),
        quantiles_ms(healths),
        f"{alive} of {HOLDERS}",
        f"{memory('VmHWM', server.pid) >> 20}",
    )
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return rate


def quantiles_ms(seconds: Sequence[float]) -> str:
    return f"{Series(tuple(seconds)).median * 1e3:.0f} / {Series(tuple(seconds)).p99 * 1e3:.0f}" if seconds else "-"


def begin_with(others: Barrier) -> None:
    """Have the calls of this process begin when the clients of all processes are connected."""
    global connected
    connected = others.wait


def generate(address: str, way: TransportChoice, name: str, rate: float) -> list[Call]:
    """Calls of one process: at a rate, or of callers that wait for each answer. Runs in a process of its own."""
    for calls in (AsyncGrpcCalls, AsyncFrameCalls):
        calls.unary = _noting(calls.unary)  # type: ignore[method-assign]
    return asyncio.run(_generate(address, way, plain if name == "not slowing down" else ours, rate))


async def _generate(address: str, way: TransportChoice, ask: Ask, rate: float) -> list[Call]:
    done: list[Call] = []
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect_async(address, transport=way)) for _ in range(CLIENTS)]
        for client in clients:
            await client.partition("p")
        connected()
        if not rate:
            until = time.perf_counter() + SECONDS
            await asyncio.gather(*(_in_turn(clients[n % CLIENTS], until, done) for n in range(CALLERS // GENERATORS)))
            return done
        tasks: list[asyncio.Task[None]] = []
        for due in arrivals(rate):
            while len(tasks) < due:
                tasks.append(asyncio.create_task(_call(clients[len(tasks) % CLIENTS], ask, done)))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
    return done


async def _in_turn(client: AsyncDataPlaneClient, until: float, done: list[Call]) -> None:
    while time.perf_counter() < until:
        await _call(client, plain, done)


async def _call(client: AsyncDataPlaneClient, ask: Ask, done: list[Call]) -> None:
    began = time.perf_counter()
    noted = [began]
    attempts.set(noted)
    succeeded = True
    try:
        await ask(client)
    except (DataPlaneError, grpc.RpcError):
        succeeded = False
    done.append(Call(began, noted[0], time.perf_counter(), succeeded, tuple(noted[1:])))


async def ours(client: AsyncDataPlaneClient) -> None:
    await client.partition("p", timeout_s=DEADLINE_S)


async def plain(client: AsyncDataPlaneClient) -> None:
    transport = client._transport  # noqa: SLF001  # what it does about refusals is left out here
    calls = transport._local or transport._grpc  # noqa: SLF001
    await calls.unary("GetPartition", pb.GetPartitionRequest(partition_id="p"), DEADLINE_S)


def _noting(unary: Callable[..., Awaitable[Any]]) -> Any:
    """The same, which notes when it begins, and how long it takes if it is refused."""

    async def noting(*args: Any) -> Any:
        noted = attempts.get([0.0])
        noted[0] = time.perf_counter()
        try:
            return await unary(*args)
        except (UnavailableError, grpc.RpcError) as error:
            if not isinstance(error, grpc.RpcError) or error.code() is grpc.StatusCode.CANCELLED:
                noted.append(time.perf_counter() - noted[0])
            raise

    return noting


def arrivals(rate: float) -> Iterator[int]:
    """How many calls should have begun by now, for SECONDS seconds."""
    first = time.perf_counter()
    while (at_s := time.perf_counter() - first) < SECONDS:
        yield int(at_s * rate)


@contextlib.contextmanager
def probes(health: str) -> Iterator[list[tuple[float, float]]]:
    """Ask for health every tenth of a second: when each probe began and ended. No answer counts as ten seconds."""
    stopping, times = threading.Event(), list[tuple[float, float]]()

    def probe() -> None:
        with grpc.insecure_channel(health) as channel:
            while not stopping.wait(0.1):
                began = time.perf_counter()
                with contextlib.suppress(grpc.RpcError):
                    health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
                times.append((began, time.perf_counter()))

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield times
    finally:
        stopping.set()
        thread.join()


@contextlib.contextmanager
def holders(server: ServerProcess, way: TransportChoice) -> Iterator[list[Claim]]:
    """Claims of clients whose sessions have a grace of ten seconds."""
    with contextlib.ExitStack() as clients:
        held = [clients.enter_context(connect(server.tcp, transport=way)) for _ in range(HOLDERS)]
        held[0].register_partition("held", ["x"], 0, ["train"])
        held[0].put_samples([f"{time.time_ns()}-{n}" for n in range(HOLDERS)], "held", {"x": [1] * HOLDERS})
        yield [client.claim("held", "train", ["x"], 1) for client in held]


@contextlib.contextmanager
def limited(server: ServerProcess) -> Iterator[None]:
    """Give the server its share of a core, by a control group of version 2 or 1."""
    quota_us, unified = int(SHARE * PERIOD_US), (GROUPS / "cgroup.controllers").exists()
    group = (GROUPS if unified else GROUPS / "cpu") / f"overload-{server.pid}"
    limits = {"cpu.max": f"{quota_us} {PERIOD_US}"} if unified else {}
    limits = limits or {"cpu.cfs_period_us": f"{PERIOD_US}", "cpu.cfs_quota_us": f"{quota_us}"}
    try:
        group.mkdir()
        for name, text in {**limits, "cgroup.procs": f"{server.pid}"}.items():
            (group / name).write_text(text)
    except OSError as error:
        sys.exit(f"no control group can be made ({error}): run this as root on Linux")
    try:
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(server.pid))
        group.rmdir()


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"


if __name__ == "__main__":
    main()
