"""Partitions that hold their producers up.

How long after a clear a put goes on that waited for room, alone and before 63 others; what a refusal costs; what a put
costs with a budget, in turn with puts of a partition without one; what a put costs for which rows are evicted; and
whether the server's memory stays bounded while producers offer ten times what is consumed.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Mapping
from functools import partial
from queue import SimpleQueue

import torch
from rich.console import Console

from dataplane_client import DataPlaneClient, FlowPolicy, NotFoundError, PartitionFullError, connect
from report import Session, compare, in_ms
from servers import ServerProcess, memory, server_process
from timing import Series, alternate, repeated, timed

MEMORY_MIB, PRODUCERS = 256, 10
FLOWS = {
    "without budgets": FlowPolicy(),
    "with budgets": FlowPolicy(max_rows=1 << 30, max_bytes=1 << 50, max_versions=1000),
}

_number = itertools.count()


def measure(session: Session) -> None:
    calls, resident, offer_s = session.pick((300, [100_000, 1_000_000], 20.0), (30, [10_000], 2.0))
    console = session.console
    with server_process("1GiB") as server, connect(server.unix) as client:
        found = {f"a clear until a waiting put returns, {n} wait": wakeups(server, client, n, calls) for n in (1, 64)}
        found["a put that is rejected"] = rejections(client, calls)
        compare(console, "waits and refusals", {"": found})
        for (what, took), goal_s in zip(found.items(), (0.050, 0.050, 0.005), strict=True):
            session.goal(f"{what}: under {goal_s * 1e3:.0f} ms", f"{in_ms(took)} ms", took.median < goal_s, took.median)
        for rows in (1, 256):
            turns = {name: partial(one_put, client, partition(client, flow), rows) for name, flow in FLOWS.items()}
            compare(console, f"a put of {rows} rows", alternate(turns, calls, warmups=10))
    with server_process("2GiB") as server, connect(server.unix) as client:
        steps = {f"{rows:,} resident": evictions(client, rows) for rows in resident}
        compare(console, "a put of 256 rows that evicts 256", {"": steps})
    with server_process(f"{MEMORY_MIB}MiB") as server, connect(server.unix) as client:
        offer(console, server, client, offer_s)


def partition(client: DataPlaneClient, flow: FlowPolicy) -> str:
    name = f"p{next(_number)}"
    client.register_partition(name, ["x"], 0, ["train"])
    client.set_policies(name, flow=flow)
    return name


def put(client: DataPlaneClient, name: str, rows: int = 1, size: int = 1, timeout_s: float | None = None) -> list[str]:
    ids = [f"s{next(_number)}" for _ in range(rows)]
    client.put_samples(ids, name, {"x": torch.ones(rows, size)}, timeout_s=timeout_s)
    return ids


def wakeups(server: ServerProcess, client: DataPlaneClient, producers: int, calls: int) -> Series:
    """Seconds from the start of each clear of one row to the return of the put that it lets in."""
    name = partition(client, FlowPolicy(max_rows=1))
    came: SimpleQueue[tuple[float, list[str]]] = SimpleQueue()
    here, found = put(client, name), []

    def produce(own: DataPlaneClient) -> None:
        with contextlib.suppress(NotFoundError):  # the partition is dropped at the end
            while True:
                ids = put(own, name)
                came.put((time.perf_counter(), ids))

    with contextlib.ExitStack() as clients:
        own = [clients.enter_context(connect(server.unix)) for _ in range(producers)]
        threads = [threading.Thread(target=produce, args=(each,)) for each in own]
        for thread in threads:
            thread.start()
        for _ in range(calls):
            while client.partition(name).waiting_calls < producers:
                time.sleep(0.001)
            began = time.perf_counter()
            client.clear_samples(here, name)
            at, here = came.get()
            found.append(at - began)
        client.drop_partition(name)
        for thread in threads:
            thread.join()
    return Series(tuple(found))


def rejections(client: DataPlaneClient, calls: int) -> Series:
    name = partition(client, FlowPolicy(max_rows=1, when_full="reject"))
    put(client, name)

    def refused() -> None:
        with contextlib.suppress(PartitionFullError):
            put(client, name)

    return repeated(refused, calls)


def one_put(client: DataPlaneClient, name: str, rows: int) -> Mapping[str, float]:
    """A put of new rows, within the budgets if there are any."""
    times = timed(put=lambda: put(client, name, rows))
    client.clear_samples(None, name)
    return times


def evictions(client: DataPlaneClient, resident: int) -> Series:
    name = partition(client, FlowPolicy(max_rows=resident, when_full="evict"))
    for _ in range(0, resident, 10_000):
        put(client, name, 10_000)
    put(client, name, 256)
    found = repeated(lambda: put(client, name, 256), 30)
    client.drop_partition(name)
    return found


def offer(console: Console, server: ServerProcess, client: DataPlaneClient, seconds: float) -> None:
    """Producers offer ten times what one consumer takes and clears, over gRPC, so that the server holds every byte that
    arrives. The budget of the partition is half of the memory.
    """
    row_bytes, rows = 64 << 10, 64
    name = partition(client, FlowPolicy(max_rows=(MEMORY_MIB << 20) // (2 * row_bytes)))
    stop = threading.Event()
    offered = [0] * PRODUCERS

    def produce(index: int) -> None:
        with connect(server.unix, transport="grpc") as own:
            while not stop.is_set():
                with contextlib.suppress(PartitionFullError):
                    offered[index] += rows
                    put(own, name, rows, row_bytes // 4, timeout_s=0.05)

    def tell(when: str) -> None:
        own, values = (memory(field, server.pid) >> 20 for field in ("RssAnon", "RssShmem"))
        console.print(f"resident {when}: {values} MiB of values of --memory {MEMORY_MIB}MiB, {own} MiB of its own")

    tell("before")
    threads = [threading.Thread(target=produce, args=(index,)) for index in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    consumed = 0
    for half in (1, 2):
        until = time.monotonic() + seconds / 2
        while time.monotonic() < until:
            time.sleep(0.005)
            if consumed * PRODUCERS < sum(offered):
                with client.claim(name, "train", ["x"], rows) as claim:
                    pass
                client.clear_samples(claim.meta.sample_ids, name)
                consumed += rows
        tell(f"after {half * seconds / 2:.0f} s")
    stop.set()
    for thread in threads:
        thread.join()
    moved = sum(offered) * row_bytes / 1e6
    console.print(f"{seconds:.0f} s: {sum(offered):,} rows ({moved:,.0f} MB) offered, {consumed:,} consumed")
