"""Measure partitions that hold their producers up: `python benchmarks/backpressure.py`.

How long after a clear a put goes on that waited for room, alone and before 63 others; what a refusal costs; what a put
costs with a budget, in turn with puts of a partition without one; what a put costs for which rows are evicted; and
whether the server's memory stays bounded while producers offer ten times what is consumed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from statistics import median, quantiles

import torch

from dataplane_client import DataPlaneClient, FlowPolicy, NotFoundError, PartitionFullError, connect
from servers import ServerProcess, server_process
from timing import alternate

CALLS, ROUNDS = 300, 200
RESIDENT = (100_000, 1_000_000)
MEMORY_MIB, OFFER_S, PRODUCERS = 256, 20.0, 10

_number = count()


def main() -> None:
    with server_process("1GiB") as server, connect(server.unix) as client:
        for producers in (1, 64):
            tell(f"a clear until a waiting put returns, {producers} waiting", wakeups(server, client, producers))
        tell("a put that is rejected", rejections(client))
        for rows in (1, 256):
            cost(client, rows)
    with server_process("2GiB") as server, connect(server.unix) as client:
        for resident in RESIDENT:
            tell(f"a put of 256 rows that evicts 256, {resident:,} resident", evictions(client, resident))
    with server_process(f"{MEMORY_MIB}MiB") as server, connect(server.unix) as client:
        offer(server, client)


def partition(client: DataPlaneClient, flow: FlowPolicy | None = None) -> str:
    name = f"p{next(_number)}"
    client.register_partition(name, ["x"], 0, ["train"])
    client.set_policies(name, flow=flow or FlowPolicy())
    return name


def put(client: DataPlaneClient, name: str, rows: int = 1, size: int = 1) -> list[str]:
    ids = [f"s{next(_number)}" for _ in range(rows)]
    client.put_samples(ids, name, {"x": torch.ones(rows, size)})
    return ids


def wakeups(server: ServerProcess, client: DataPlaneClient, producers: int) -> list[float]:
    """Milliseconds from the start of each clear of one row to the return of the put that it lets in."""
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
        for _ in range(CALLS):
            while client.partition(name).waiting_calls < producers:
                time.sleep(0.001)
            began = time.perf_counter()
            client.clear_samples(here, name)
            at, here = came.get()
            found.append((at - began) * 1e3)
        client.drop_partition(name)
        for thread in threads:
            thread.join()
    return found


def rejections(client: DataPlaneClient) -> list[float]:
    name = partition(client, FlowPolicy(max_rows=1, when_full="reject"))
    put(client, name)

    def refused() -> None:
        with contextlib.suppress(PartitionFullError):
            put(client, name)

    return [milliseconds(refused) for _ in range(CALLS)]


def cost(client: DataPlaneClient, rows: int) -> None:
    """The ratio of puts of new rows with budgets that they stay within, to those without."""
    budgets = FlowPolicy(max_rows=1 << 30, max_bytes=1 << 50, max_versions=1000)

    def puts(flow: FlowPolicy | None) -> Callable[[], dict[str, float]]:
        name = partition(client, flow)

        def one() -> dict[str, float]:
            spent = milliseconds(lambda: put(client, name, rows))
            client.clear_samples(None, name)
            return {"put": spent}

        return one

    found = alternate({"with": puts(budgets), "without": puts(None)}, ROUNDS, warmups=10)
    own, bare = found["with"]["put"].median, found["without"]["put"].median
    print(f"a put of {rows} rows: {own:.2f} ms with budgets, {bare:.2f} ms without, ratio {own / bare:.2f}")


def evictions(client: DataPlaneClient, resident: int) -> list[float]:
    name = partition(client, FlowPolicy(max_rows=resident, when_full="evict"))
    for _ in range(0, resident, 10_000):
        put(client, name, 10_000)
    put(client, name, 256)
    found = [milliseconds(lambda: put(client, name, 256)) for _ in range(30)]
    client.drop_partition(name)
    return found


def offer(server: ServerProcess, client: DataPlaneClient) -> None:
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
                    ids = [f"r{next(_number)}" for _ in range(rows)]
                    offered[index] += rows
                    own.put_samples(ids, name, {"x": torch.ones(rows, row_bytes // 4)}, timeout_s=0.05)

    tell_memory(server, "before")
    threads = [threading.Thread(target=produce, args=(index,)) for index in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    consumed = 0
    for half_time in ticks(OFFER_S):
        if half_time:
            tell_memory(server, f"after {OFFER_S / 2:.0f} s")
        if consumed * PRODUCERS < sum(offered):
            with client.claim(name, "train", ["x"], rows) as claim:
                pass
            client.clear_samples(claim.meta.sample_ids, name)
            consumed += rows
    stop.set()
    for thread in threads:
        thread.join()
    moved = sum(offered) * row_bytes / 1e6
    print(f"{OFFER_S:.0f} s: {sum(offered):,} rows ({moved:,.0f} MB) offered, {consumed:,} consumed")
    tell_memory(server, f"after {OFFER_S:.0f} s")


def tell_memory(server: ServerProcess, when: str) -> None:
    status = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    own, values = (
        int(line.split()[1]) / 1024 for what in ("RssAnon", "RssShmem") for line in status if line.startswith(what)
    )
    print(f"resident {when}: {values:.0f} MiB of values of --memory {MEMORY_MIB}MiB, {own:.0f} MiB of its own")


def ticks(seconds: float) -> Iterator[bool]:
    """Every 5 ms; once True, when half of the time is over."""
    began, told = time.monotonic(), False
    while time.monotonic() < began + seconds:
        half = time.monotonic() > began + seconds / 2
        time.sleep(0.005)
        yield half and not told
        told = half


def milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def tell(what: str, found: list[float]) -> None:
    print(f"{what:<60} p50 {median(found):6.2f} ms, p99 {quantiles(found, n=100)[98]:6.2f} ms")


if __name__ == "__main__":
    main()
