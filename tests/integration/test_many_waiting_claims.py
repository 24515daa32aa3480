"""Dozens of claims that wait cost nobody anything: puts, reads and other claims go on, each row is claimed once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import torch
from tests.waiting import eventually

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.options import TransportChoice

CLAIMERS = 60


async def wait_for_rows(address: str, transport: TransportChoice, connected: list[int], claimed: list[str]) -> None:
    """Clients with a connection each, every one of which waits for one row and commits it."""

    async def claimer(number: int) -> None:
        async with await aio.connect(address, transport=transport, timeout_s=200.0) as client:
            connected.append(number)
            async with await client.claim("p", "train", ["x"], 1) as claim:
                claimed.extend(claim.meta.sample_ids)

    await asyncio.gather(*(claimer(number) for number in range(CLAIMERS)))


def test_many_waiting_clients_get_one_row_each_while_puts_reads_and_other_claims_go_on(
    address: str,
    transport: TransportChoice,
    client: DataPlaneClient,
    threads: ThreadPoolExecutor,
) -> None:
    client.register_partition("p", ["x", "y"], CLAIMERS, ["train", "eval"])
    connected: list[int] = []
    claimed: list[str] = []
    waiting = threads.submit(asyncio.run, wait_for_rows(address, transport, connected, claimed))

    def all_wait() -> bool:
        if waiting.done():
            waiting.result()  # of a claimer that failed, the error
        return client.server_status().waiting_claims == CLAIMERS

    eventually(all_wait)
    assert len(connected) == CLAIMERS

    ids = [f"s{row}" for row in range(CLAIMERS)]
    with connect(address, transport=transport) as producer:
        for begin in range(0, CLAIMERS, 20):
            producer.put_samples(ids[begin : begin + 20], "p", {"y": torch.zeros(20)})
            assert producer.get_samples(ids[begin : begin + 20], "p", ["y"])["y"].shape == (20,)
            assert producer.claim("p", "eval", ["y"], 20, timeout_s=100.0).commit() == 20
        assert client.server_status().waiting_claims == CLAIMERS
        for begin in range(0, CLAIMERS, 20):
            producer.put_samples(ids[begin : begin + 20], "p", {"x": torch.zeros(20)})

    waiting.result(60)
    assert sorted(claimed) == sorted(ids)
    assert client.check_consumption_status("p", ["train", "eval"])
    assert client.server_status().waiting_claims == 0
