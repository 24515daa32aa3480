"""How soon blocked claims wake, and what they cost other calls.

200 clients, each with its own connection, in two processes, are blocked in a claim. A second server has no claims.

Wake-up: rows are put one at a time. Measured from the start of the put that completes the row, and from its end, until
a claim with the row has returned in its process (on the machine's clock); negative if that was before the put did.
Calls: puts and reads of 64 rows of 4,096 float32 (1 MiB) in the partition of the claims, in turn with the other server.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.queues import Queue
from typing import TypeAlias

import torch

from dataplane_client import DataPlaneClient, aio, connect
from report import Session, compare
from servers import server_process
from timing import Series, Steps, alternate, timed

PROCESSES, BATCH, CALLS, WARM = 2, 64, 50, 20
IDS, VALUES = [f"y{row}" for row in range(BATCH)], {"y": torch.zeros(BATCH, 4096)}
_SPAWN = multiprocessing.get_context("spawn")

Wakeups: TypeAlias = "Queue[tuple[str, float]]"


def measure(session: Session) -> None:
    claimers, rows, console = session.pick(200, 20), session.pick(1000, 20), session.console
    with client_of_server() as idle, client_of_server() as client, blocked_claims(client, claimers) as wakeups:
        found = {"": woken(client, wakeups, rows, claimers)}
        compare(console, f"wake-up of one of {claimers} blocked claims, {rows} rows", found)
        turns = {"no claims": partial(calls, idle), f"{claimers} blocked claims": partial(calls, client)}
        compare(console, "calls of 1 MiB", alternate(turns, session.rounds(40), 1))


@contextmanager
def client_of_server() -> Iterator[DataPlaneClient]:
    with server_process("1GiB") as server, connect(server.unix) as client:
        client.register_partition("p", ["x", "y"], 0, ["train"])
        yield client


@contextmanager
def blocked_claims(client: DataPlaneClient, count: int) -> Iterator[Wakeups]:
    """Run `count` clients, each blocked in a claim. The queue receives the samples that they get, with the times."""
    wakeups: Wakeups = _SPAWN.Queue()
    shares = [count // PROCESSES + (number < count % PROCESSES) for number in range(PROCESSES)]
    claimers = [_SPAWN.Process(target=claim, args=(client.target, share, wakeups), daemon=True) for share in shares]
    for each in claimers:
        each.start()
    try:
        wait_for_claims(client, count)
        yield wakeups
    finally:
        for each in claimers:
            each.terminate()
            each.join(30)


def wait_for_claims(client: DataPlaneClient, count: int) -> None:
    while client.server_status().waiting_claims != count:
        time.sleep(0.005)


def claim(address: str, clients: int, wakeups: Wakeups) -> None:
    async def claim_for_ever() -> None:
        async with await aio.connect(address) as client:
            while True:
                claim = await client.claim("p", "train", ["x"], 1, timeout_s=3600.0)
                wakeups.put((claim.meta.sample_ids[0], time.monotonic()))
                await claim.commit()

    async def all_of_them() -> None:
        await asyncio.gather(*(claim_for_ever() for _ in range(clients)))

    asyncio.run(all_of_them())


def woken(client: DataPlaneClient, wakeups: Wakeups, rows: int, claimers: int) -> Steps:
    """Seconds until the claim has returned."""
    begins, ends = [], []
    for row in range(rows + WARM):
        wait_for_claims(client, claimers)
        begin = time.monotonic()
        client.put_samples([f"s{row}"], "p", {"x": torch.zeros(1)})
        end = time.monotonic()
        sample, returned = wakeups.get(timeout=60)
        if sample != f"s{row}":
            raise RuntimeError(f"sample s{row} was put, {sample} was claimed")
        begins.append(returned - begin)
        ends.append(returned - end)
    client.clear_samples(None, "p")
    return {"from the put's start": Series(tuple(begins[WARM:])), "from the put's end": Series(tuple(ends[WARM:]))}


def calls(client: DataPlaneClient) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"put": [], "read": []}
    for _ in range(CALLS):
        times = timed(
            put=lambda: client.put_samples(IDS, "p", VALUES), read=lambda: client.get_samples(IDS, "p", ["y"])
        )
        for step, took in times.items():
            found[step].append(took)
    client.clear_samples(None, "p")
    return found
