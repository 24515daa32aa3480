"""Measure how soon blocked claims wake, and what they cost other calls.

    python benchmarks/claim_wakeups.py [--claimers N] [--rows N] [--rounds N]

Runs a server process and N clients, each with its own connection, in two processes. All clients are blocked in a claim.
A second server process has no claims.

Wake-up: rows are put one at a time. Measured from the start of the put that completes the row, and from its end, until
a claim with the row has returned in its process (on the machine's clock). A negative value means that the claim
returned before the put. Throughput: puts and reads of 64 rows of 4,096 float32 (1 MiB) in the partition of the claims,
in rounds that alternate between the two servers.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import TypeAlias

import grpc
import torch
from rich.console import Console
from rich.table import Table

from dataplane_client import DataPlaneClient, aio, connect
from dataplane_server.testing import running_server

PROCESSES = 2
BATCH = 64
_SPAWN = multiprocessing.get_context("spawn")

Wakeups: TypeAlias = "Queue[tuple[str, float]]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claimers", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1000, help="wake-ups to measure")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of throughput with and without claims")
    parser.add_argument("--seconds", type=float, default=0.25, help="length of one measurement in a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    console.print(f"{platform.machine()}, Python {platform.python_version()}, grpcio {grpc.__version__}")
    with _server() as idle, _server() as client, _blocked_claims(client, options.claimers) as wakeups:
        console.print(_wakeup_table(client, wakeups, options.rows, options.claimers))
        console.print(_throughput_table(idle, client, options.rounds, options.seconds, options.claimers))


# -- processes ---------------------------------------------------------------------------------------------------------


@contextmanager
def _server() -> Iterator[DataPlaneClient]:
    """A client of a server in a separate process."""
    addresses: Queue[str] = _SPAWN.Queue()
    stop = _SPAWN.Event()
    process = _SPAWN.Process(target=_serve, args=(addresses, stop))
    process.start()
    try:
        with connect(addresses.get(timeout=60)) as client:
            client.register_partition("p", ["x", "y"], 0, ["train"])
            yield client
    finally:
        stop.set()
        process.join(30)


def _serve(addresses: Queue[str], stop: Event) -> None:
    with running_server(memory_bytes=1 << 30) as address:
        addresses.put(address)
        stop.wait()


@contextmanager
def _blocked_claims(client: DataPlaneClient, count: int) -> Iterator[Wakeups]:
    """Run `count` clients, each blocked in a claim. The queue receives the samples that they get, with the times."""
    wakeups: Wakeups = _SPAWN.Queue()
    share = [count // PROCESSES + (number < count % PROCESSES) for number in range(PROCESSES)]
    arguments = [(client.target, clients, wakeups) for clients in share]
    workers: list[BaseProcess] = [_SPAWN.Process(target=_claim, args=each) for each in arguments]
    for worker in workers:
        worker.start()
    try:
        _wait_for_claims(client, count)
        yield wakeups
    finally:
        for worker in workers:
            worker.terminate()
            worker.join(30)


def _wait_for_claims(client: DataPlaneClient, count: int) -> None:
    while client.server_status().waiting_claims != count:
        time.sleep(0.005)


def _claim(address: str, clients: int, wakeups: Wakeups) -> None:
    async def claim_for_ever() -> None:
        async with await aio.connect(address) as client:
            while True:
                claim = await client.claim("p", "train", ["x"], 1, timeout_s=3600.0)
                wakeups.put((claim.meta.sample_ids[0], time.monotonic()))
                await claim.commit()

    async def all_of_them() -> None:
        await asyncio.gather(*(claim_for_ever() for _ in range(clients)))

    asyncio.run(all_of_them())


# -- measurements ------------------------------------------------------------------------------------------------------


def _wakeup_table(client: DataPlaneClient, wakeups: Wakeups, rows: int, claimers: int) -> Table:
    begins: list[float] = []
    ends: list[float] = []
    value = {"x": torch.zeros(1)}
    for row in range(rows + 20):
        _wait_for_claims(client, claimers)
        begin = time.monotonic()
        client.put_samples([f"s{row}"], "p", value)
        end = time.monotonic()
        sample, woken = wakeups.get(timeout=60)
        if sample != f"s{row}":
            raise RuntimeError(f"sample s{row} was put, {sample} was claimed")
        begins.append((woken - begin) * 1e3)
        ends.append((woken - end) * 1e3)
    client.clear_samples(None, "p")
    table = Table(title=f"wake-up of one of {claimers} blocked claims, {rows} rows, ms", box=None, title_justify="left")
    for heading in ("until the claim has returned, from", "p50", "p99", "max"):
        table.add_column(heading, justify="left" if heading.startswith("until") else "right")
    for name, values in (("the put's start", begins[20:]), ("the put's end", ends[20:])):
        table.add_row(name, *(f"{value:.2f}" for value in _percentiles(values)))
    return table


def _percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    cuts = statistics.quantiles(values, n=100)
    return cuts[49], cuts[98], max(values)


def _throughput_table(
    idle: DataPlaneClient, client: DataPlaneClient, rounds: int, seconds: float, claimers: int
) -> Table:
    alone: list[tuple[float, float]] = []
    beside: list[tuple[float, float]] = []
    for _ in range(rounds):
        alone.append(_puts_and_reads(idle, seconds))
        beside.append(_puts_and_reads(client, seconds))
    title = f"calls of 1 MiB a second, median of {rounds} rounds (minimum..maximum), median of the rounds' ratios"
    table = Table(title=title, box=None, title_justify="left")
    for heading in ("verb", "no claims", f"{claimers} blocked claims", "ratio"):
        table.add_column(heading, justify="left" if heading == "verb" else "right")
    for index, verb in enumerate(("put", "read")):
        columns = [[rates[index] for rates in measured] for measured in (alone, beside)]
        shown = [f"{statistics.median(c):.0f} ({min(c):.0f}..{max(c):.0f})" for c in columns]
        ratio = statistics.median(b / a for a, b in zip(*columns, strict=True))
        table.add_row(verb, *shown, f"{ratio:.2f}")
    return table


def _puts_and_reads(client: DataPlaneClient, seconds: float) -> tuple[float, float]:
    """Puts and reads a second, each measured for `seconds`."""
    ids = [f"y{row}" for row in range(BATCH)]
    values = {"y": torch.zeros(BATCH, 4096)}
    client.put_samples(ids, "p", values)
    puts = reads = 0
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        client.put_samples(ids, "p", values)
        puts += 1
    middle = time.monotonic()
    while time.monotonic() - middle < seconds:
        client.get_samples(ids, "p", ["y"])
        reads += 1
    end = time.monotonic()
    client.clear_samples(None, "p")
    return puts / (middle - began), reads / (end - middle)


if __name__ == "__main__":
    main()
