"""A call of `batching()` that gets no answer, while some of its puts are held again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.integration.faults.proxy import BOTH, FaultProxy

from dataplane_client import aio, observe
from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import DeadlineError, NotFoundError, UnavailableError
from dataplane_client.observe import Call, Observer
from dataplane_client.records.meta import KVBatchMeta

LOST = (DeadlineError, UnavailableError)


class LosesBatch(Observer):
    """When a call with several puts begins, takes the server away, and cancels the flush that has some of them."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.flush: asyncio.Task[None] | None = None
        self._proxy = proxy

    def began(self, call: Call) -> None:
        if call.verb == "PutSamples" and (call.rows or 0) > 1 and self.flush is not None:
            self._proxy.swallow = {*BOTH}
            self.flush.cancel()
            self.flush = None  # once

    async def flushes(self, batching: aio.AsyncBatching) -> None:
        flush = self.flush = asyncio.create_task(batching.flush())
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(flush, 200.0)


@pytest.fixture
def loses(proxy: FaultProxy) -> Iterator[LosesBatch]:
    observer = LosesBatch(proxy)
    observe.add(observer)
    yield observer
    observe.remove(observer)


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["a"], 0, ["train"])
    return client


async def lose_three(batching: aio.AsyncBatching, loses: LosesBatch) -> list[asyncio.Task[KVBatchMeta]]:
    """Have one call carry puts of rows "short" and "long", whose tasks are returned, and a put of row "held", which is
    held again while the call has no answer.
    """
    tasks = [
        asyncio.create_task(batching.put_samples([name], "p", {"a": [1]}, timeout_s=timeout_s))
        for name, timeout_s in (("first", 200.0), ("short", 2.0), ("long", 200.0))  # the first is sent alone
    ]
    await batching.put_later(["held"], "p", {"a": [1]}, timeout_s=200.0)
    await loses.flushes(batching)
    await tasks[0]
    return tasks[1:]


async def test_a_put_follows_a_call_without_an_answer_that_has_its_rows(
    flow: DataPlaneClient, async_shaky: aio.AsyncDataPlaneClient, loses: LosesBatch, proxy: FaultProxy
) -> None:
    async with async_shaky.batching() as batching:
        short, long = await lose_three(batching, loses)
        long.cancel()
        with pytest.raises(LOST):
            await short
        proxy.reset_connections()
        await batching.put_samples(["short"], "p", {"a": [2]}, timeout_s=200.0)
    assert flow.get_samples(["short", "held"], "p", ["a"])["a"].tolist() == [2, 1]


async def test_a_put_whose_call_is_refused_while_it_is_held_is_sent_alone(
    flow: DataPlaneClient, async_shaky: aio.AsyncDataPlaneClient, loses: LosesBatch, proxy: FaultProxy
) -> None:
    async with async_shaky.batching() as batching:
        short, long = await lose_three(batching, loses)
        with pytest.raises(LOST):
            await short
        flow.drop_partition("p")
        proxy.reset_connections()
        with pytest.raises(NotFoundError):
            await long
        flow.register_partition("p", ["a"], 0, ["train"])
    assert flow.list_samples("p").meta.sample_ids == ["held"]


async def test_a_call_without_an_answer_is_not_repeated_after_the_deadlines_of_its_puts(
    flow: DataPlaneClient, async_shaky: aio.AsyncDataPlaneClient, loses: LosesBatch, proxy: FaultProxy
) -> None:
    async with async_shaky.batching() as batching:
        for name, timeout_s in (("short", 0.5), ("long", 4.0)):
            await batching.put_later([name], "p", {"a": [1]}, timeout_s=timeout_s)
        await loses.flushes(batching)
        await asyncio.sleep(4.1)
        proxy.reset_connections()
        with pytest.raises(LOST, match=r"\(1 more puts failed\)$"):
            await batching.flush()
    assert flow.list_samples("p").meta.sample_ids == []
