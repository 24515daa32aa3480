"""Offer ten times what a server can do, in an open loop: `python benchmarks/overload.py`, on Linux as root.

The server has a fixed share of a core (a control group's quota), so that the other cores can offer that much. What it
can do is found first: how many calls a second succeed with as many callers as keep it busy. Then calls begin at a
fixed rate, whether or not others have ended, as those of producers that do not know of each other: first with our
client, then with plain gRPC, which does not slow down when it is refused. Beside them clients hold claims, others claim
and commit, and health is asked. An admitted call's time begins when it leaves the client for the last time; a whole
call's time begins when its caller makes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dataplane_client import Claim, DataPlaneError, connect
from dataplane_client._async.grpc_calls import AsyncGrpcCalls
from dataplane_client.aio import AsyncDataPlaneClient
from dataplane_client.aio import connect as connect_async
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.data_plane_pb2_grpc import DataPlaneServiceStub
from servers import ServerProcess, server_process

SHARE = 0.15
"""Of a core, for the server."""
PERIOD_US = 10_000
"""In which it has that share. With the usual 100 ms, each call would wait for the rest of a period."""
SECONDS, DEADLINE_S, CONNECTIONS, HOLDERS, GENERATORS = 10.0, 4.0, 8, 10, 2
sent: ContextVar[float] = ContextVar("sent")
GROUPS = Path("/sys/fs/cgroup")


def main() -> None:
    health = free_address()
    with server_process("64MiB", "--health", health, "--no-share-memory") as server, limited(server):
        with connect(server.tcp, transport="grpc") as client:
            client.register_partition("p", ["x"], 0, ["train"])
        peak = nominal(server, health)
        for name, offers in (("our clients", clients_calls), ("clients that do not slow down", plain_calls)):
            print(f"{name}:")
            for times in (0.5, 1.0, 2.5, 10.0):
                with holders(server) as held:
                    report(server, health, offers, times, peak, held)


def report(server: ServerProcess, health: str, offers: Offers, times: float, peak: float, held: list[Claim]) -> None:
    beside = Beside(server, health)
    with ProcessPoolExecutor(GENERATORS, multiprocessing.get_context("spawn")) as generators:
        parts = generators.map(offers, [server.tcp] * GENERATORS, [times * peak / GENERATORS] * GENERATORS)
        calls = [call for part in parts for call in part]  # times of processes of one machine have one clock
    commits, healths = beside.stop(min(call.began for call in calls), max(call.began for call in calls))
    good = [call for call in calls if call.succeeded]
    whole = sorted(call.ended - call.began for call in good)
    admitted = sorted(call.ended - call.sent for call in good)
    alive = sum(claim.commit() == 1 for claim in held)
    print(
        f"{times:4g} x: good {len(good) / SECONDS:4.0f}/s ({len(good) / SECONDS / peak:4.0%} of the peak), admitted "
        f"p50 {at(admitted, 0.5):5.0f} p99 {at(admitted, 0.99):5.0f} ms, whole p99 {at(whole, 0.99):5.0f} ms; "
        f"not served {(len(calls) - len(good)) / SECONDS:5.0f}/s; {len(commits)} claims with commit, p99 "
        f"{at(commits, 0.99):5.0f} ms; health p99 {at(healths, 0.99):4.0f} ms; {alive} of {HOLDERS} claims kept; "
        f"{memory_mib(server):.0f} MiB",
        flush=True,
    )


def nominal(server: ServerProcess, health: str, callers: int = 16) -> float:
    """Calls a second that succeed while `callers` always have one under way, beside the same work as later."""
    times: list[float] = []

    def work() -> None:
        with grpc.insecure_channel(server.tcp, (("grpc.use_local_subchannel_pool", 1),)) as channel:
            stub = DataPlaneServiceStub(channel)
            while (began := time.perf_counter()) < until:
                stub.GetPartition(pb.GetPartitionRequest(partition_id="p"), timeout=DEADLINE_S)
                times.append(time.perf_counter() - began)

    beside = Beside(server, health)
    until = time.perf_counter() + SECONDS
    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    commits, healths = beside.stop(0, until)
    peak = len(times) / SECONDS
    times.sort()
    print(
        f"peak: {peak:.0f} calls/s with {callers} callers, at {SHARE:g} of a core; "
        f"p50 {at(times, 0.5):.0f} p99 {at(times, 0.99):.0f} ms; {len(commits)} claims with commit, "
        f"p99 {at(commits, 0.99):.0f} ms; health p99 {at(healths, 0.99):.0f} ms",
        flush=True,
    )
    return peak


class Call(NamedTuple):
    began: float
    sent: float
    """When its last attempt left."""
    ended: float
    succeeded: bool


Offers = Callable[[str, float], list[Call]]


def plain_calls(address: str, rate: float) -> list[Call]:
    """Calls that begin at `rate` a second, and are not repeated. Runs in a process of its own."""
    calls: list[Call] = []

    def note(began: float, call: Any) -> None:
        calls.append(Call(began, began, time.perf_counter(), call.code() is grpc.StatusCode.OK))

    with contextlib.ExitStack() as channels:
        options = (("grpc.use_local_subchannel_pool", 1),)
        opened = [channels.enter_context(grpc.insecure_channel(address, options)) for _ in range(CONNECTIONS)]
        stubs = [DataPlaneServiceStub(channel) for channel in opened]
        for channel in opened:
            grpc.channel_ready_future(channel).result(10)
        begun = 0
        for due in arrivals(rate):
            while begun < due:
                stub = stubs[begun % CONNECTIONS]
                call: Any = stub.GetPartition.future(pb.GetPartitionRequest(partition_id="p"), timeout=DEADLINE_S)
                call.add_done_callback(partial(note, time.perf_counter()))
                begun += 1
            time.sleep(0.001)
        while len(calls) < begun:
            time.sleep(0.01)
    return calls


def clients_calls(address: str, rate: float) -> list[Call]:
    """The same, by clients of ours."""
    return asyncio.run(_clients_calls(address, rate))


async def _clients_calls(address: str, rate: float) -> list[Call]:
    calls: list[Call] = []

    async def call(client: AsyncDataPlaneClient) -> None:
        began = time.perf_counter()
        sent.set(began)
        try:
            await client.partition("p", timeout_s=DEADLINE_S)
        except DataPlaneError:
            calls.append(Call(began, sent.get(), time.perf_counter(), False))
        else:
            calls.append(Call(began, sent.get(), time.perf_counter(), True))

    AsyncGrpcCalls.unary = _noting_when(AsyncGrpcCalls.unary)  # type: ignore[method-assign]
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connect_async(address, transport="grpc")) for _ in range(CONNECTIONS)
        ]
        tasks: list[asyncio.Task[None]] = []
        for due in arrivals(rate):
            while len(tasks) < due:
                tasks.append(asyncio.create_task(call(clients[len(tasks) % CONNECTIONS])))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
    return calls


def _noting_when(unary: Callable[..., Any]) -> Any:
    def noting(*args: Any) -> Any:
        sent.set(time.perf_counter())
        return unary(*args)

    return noting


def arrivals(rate: float) -> Iterator[int]:
    """How many calls should have begun by now, for SECONDS seconds."""
    first = time.perf_counter()
    while (at_s := time.perf_counter() - first) < SECONDS:
        yield int(at_s * rate)


class Beside:
    """What goes on beside the load, until `stop`: a client that puts, claims and commits, and probes of health."""

    def __init__(self, server: ServerProcess, health: str) -> None:
        self._server = server
        self._health = health
        self._stopping = threading.Event()
        self._commits: list[tuple[float, float]] = []  # begin, and end
        self._healths: list[tuple[float, float]] = []
        self._threads = [threading.Thread(target=run) for run in (self._commit, self._probe)]
        for thread in self._threads:
            thread.start()

    def stop(self, first: float, last: float) -> tuple[list[float], list[float]]:
        """Seconds of claims with their commits, and of probes, that began between two times; in order of size."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        found = [
            [end - begin for begin, end in part if first <= begin <= last] for part in (self._commits, self._healths)
        ]
        return sorted(found[0]), sorted(found[1])

    def _commit(self) -> None:
        with connect(self._server.tcp, transport="grpc") as client:
            client.register_partition("beside", ["x"], 0, ["train"])
            while not self._stopping.wait(0.05):
                client.put_samples([f"{time.time_ns()}"], "beside", {"x": [1]})
                with timed(self._commits):
                    client.claim("beside", "train", ["x"], 1).commit()

    def _probe(self) -> None:
        with grpc.insecure_channel(self._health) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while not self._stopping.wait(0.1):
                with timed(self._healths):
                    stub.Check(health_pb2.HealthCheckRequest(), timeout=10)


@contextlib.contextmanager
def timed(times: list[tuple[float, float]]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    times.append((began, time.perf_counter()))


@contextlib.contextmanager
def holders(server: ServerProcess) -> Iterator[list[Claim]]:
    """Claims of clients whose sessions have a grace of ten seconds."""
    with contextlib.ExitStack() as clients:
        held = [clients.enter_context(connect(server.tcp, transport="grpc")) for _ in range(HOLDERS)]
        held[0].register_partition("held", ["x"], 0, ["train"])
        held[0].put_samples([f"{time.time_ns()}-{n}" for n in range(HOLDERS)], "held", {"x": [1] * HOLDERS})
        yield [client.claim("held", "train", ["x"], 1) for client in held]


@contextlib.contextmanager
def limited(server: ServerProcess) -> Iterator[None]:
    """Give the server its share of a core, by a control group of version 2 or 1."""
    unified = (GROUPS / "cgroup.controllers").exists()
    group = (GROUPS if unified else GROUPS / "cpu") / f"overload-{server.pid}"
    try:
        group.mkdir()
        if unified:
            (group / "cpu.max").write_text(f"{int(SHARE * PERIOD_US)} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(int(SHARE * PERIOD_US)))
        (group / "cgroup.procs").write_text(str(server.pid))
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


def at(ordered: list[float], share: float) -> float:
    """A quantile, in milliseconds."""
    return 1e3 * quantiles(ordered, n=100)[int(share * 100) - 1] if len(ordered) > 1 else float("nan")


def memory_mib(server: ServerProcess) -> float:
    """The most memory that the server has had."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    main()
