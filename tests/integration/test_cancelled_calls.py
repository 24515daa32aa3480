"""Asynchronous calls that are cancelled at any moment: what was acknowledged is there, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import torch
from tests.waiting import soon

from dataplane_client import DataPlaneClient, FlowPolicy, aio
from dataplane_client.aio import AsyncBatching, AsyncClaim, AsyncGroup, AsyncPendingPut
from dataplane_client.errors import DataPlaneError, DeadlineError, UnavailableError

CALLS, AT_ONCE = 1500, 12
UNKNOWN = (DeadlineError, UnavailableError)
"""Errors after which a put may have taken effect."""

pytestmark = pytest.mark.long


async def cancel_some(dice: random.Random, begin: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Begin calls, some at a time, and cancel many of them. Their errors are ignored, but for those that are bugs."""
    tasks: set[asyncio.Task[object]] = set()
    for _ in range(CALLS):
        tasks.add(asyncio.create_task(begin()))
        await asyncio.sleep(dice.choice([0, 0, 0.0005, 0.002]))
        if dice.random() < 0.4:
            dice.choice(list(tasks)).cancel()
        while len(tasks) > AT_ONCE:
            ended, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            check(ended)
    if tasks:
        check((await asyncio.wait(tasks))[0])


def check(ended: set[asyncio.Task[object]]) -> None:
    for task in ended:
        if not task.cancelled() and not isinstance(task.exception(), (DataPlaneError, type(None))):
            task.result()


class Verbs:
    """A client that puts, claims, reads, commits and reserves, and is cancelled while it does."""

    def __init__(self, client: aio.AsyncDataPlaneClient, dice: random.Random) -> None:
        self.client, self.dice, self.made = client, dice, 0
        self.claims: list[AsyncClaim] = []
        self.groups: list[AsyncGroup] = []

    def call(self) -> Coroutine[Any, Any, object]:
        self.made += 1
        name = f"s{self.made}"
        begins: list[Callable[[str], Coroutine[Any, Any, object]]] = [self.put, self.claim, self.reserve]
        goes_on: list[Callable[[str], Coroutine[Any, Any, object]]] = [self.read, self.end_claim, self.end_group]
        return self.dice.choice([*begins, *goes_on, self.put, self.end_claim])(name)

    async def put(self, name: str) -> None:
        rows, size = self.dice.choice([(1, 1), (200, 1), (4, 20_000)])
        columns = {"x": torch.zeros(rows, size)}
        await self.client.put_samples([f"{name}/{row}" for row in range(rows)], "p", columns, timeout_s=3.0)

    async def claim(self, _: str) -> None:
        size, timeout_s = self.dice.choice([1, 10]), self.dice.choice([0.02, 0.3])
        self.claims.append(await self.client.claim("p", "train", ["x"], size, min_size=1, timeout_s=timeout_s))

    async def read(self, _: str) -> None:
        if self.claims:
            meta = self.dice.choice(self.claims).meta
            await self.client.read_columns(meta, ["x"], layout="jagged")

    async def end_claim(self, _: str) -> None:
        if self.claims:
            claim = self.claims.pop(self.dice.randrange(len(self.claims)))
            await self.end(claim, claim.commit if self.dice.random() < 0.7 else claim.release, self.claims)

    async def reserve(self, name: str) -> None:
        self.groups.append(await self.client.reserve_group("p", name, [f"{name}/0", f"{name}/1"], timeout_s=1.0))

    async def end_group(self, _: str) -> None:
        if self.groups:
            group, size = self.groups.pop(self.dice.randrange(len(self.groups))), self.dice.choice([1, 20_000])

            async def fill() -> object:
                await group.put(group.meta.sample_ids, {"x": torch.zeros(2, size)})
                return await (group.commit() if self.dice.random() < 0.7 else group.abort())

            await self.end(group, fill, self.groups)

    async def end(self, held: Any, how: Callable[[], Awaitable[object]], others: list[Any]) -> None:
        try:
            await how()
        finally:
            if held.state == "open":
                others.append(held)


async def test_nothing_is_left_of_calls_that_were_cancelled(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient
) -> None:
    client.register_partition("p", ["x"], 0, ["train"])
    verbs = Verbs(async_client, random.Random(1))
    await cancel_some(verbs.dice, verbs.call)
    ends: list[AsyncClaim | AsyncGroup] = [*verbs.claims, *verbs.groups]
    for held in ends:
        with contextlib.suppress(DataPlaneError):  # a cancelled call has ended it
            await (held.release() if isinstance(held, AsyncClaim) else held.abort())

    def is_idle() -> bool:
        described = client.partition("p")
        return not (described.task("train").claimed_rows or described.open_groups or described.waiting_calls)

    await soon(is_idle)
    client.clear_samples(None, "p")
    await soon(lambda: client.server_status().memory_used_bytes == 0)


class Puts:
    """Puts of `batching()` whose callers are cancelled, and what became of them. seen: whether one must be there."""

    def __init__(self, batching: AsyncBatching, dice: random.Random) -> None:
        self.batching, self.dice, self.made = batching, dice, 0
        self.seen: dict[tuple[str, str], bool] = {}
        self.pending: dict[tuple[str, str], AsyncPendingPut] = {}

    async def call(self) -> None:
        chance, self.made = self.dice.random(), self.made + 1
        if chance < 0.4:
            await self.put(*self.new())
        elif chance < 0.8:
            await self.put_later(*self.new())
        elif chance < 0.9 or not self.pending:
            await self.batching.flush()
        else:
            await self.dice.choice(list(self.pending.values())).meta()

    def new(self) -> tuple[str, str, dict[str, torch.Tensor]]:
        """The partition, id and columns of a put; some are refused, and not all can travel together."""
        dtype = torch.int64 if self.dice.random() < 0.05 else torch.float32
        columns = self.dice.choice([{"x": torch.zeros(1, 2, dtype=dtype)}, {"y": torch.zeros(1)}])
        return self.dice.choice("ppq"), f"s{self.made}", columns

    async def put(self, partition: str, name: str, columns: dict[str, torch.Tensor]) -> None:
        timeout_s = self.dice.choice([0.05, 20.0])
        await self.note(partition, name, self.batching.put_samples([name], partition, columns, timeout_s=timeout_s))

    async def note(self, partition: str, name: str, answer: Awaitable[object]) -> None:
        try:
            await answer
        except UNKNOWN:
            raise
        except DataPlaneError:
            self.seen[partition, name] = False
            raise
        self.seen[partition, name] = True

    async def put_later(self, partition: str, name: str, columns: dict[str, torch.Tensor]) -> None:
        timeout_s = self.dice.choice([0.5, 20.0])
        self.pending[partition, name] = await self.batching.put_later([name], partition, columns, timeout_s=timeout_s)


async def test_a_batched_put_is_there_as_its_answer_says_whoever_was_cancelled(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient
) -> None:
    for partition in "pq":
        client.register_partition(partition, ["x", "y"], 0, ["train"], dtypes={"x": "float32", "y": "float32"})

    async def make_room() -> None:
        """Puts into p wait now and then."""
        for rows in range(20, 1 << 20, 20):
            await async_client.set_policies("p", flow=FlowPolicy(max_rows=rows))
            await asyncio.sleep(0.05)

    batching = async_client.batching(max_rows=16)
    puts = Puts(batching, random.Random(1))
    pacing = asyncio.create_task(make_room())
    await cancel_some(puts.dice, puts.call)
    pacing.cancel()
    await async_client.set_policies("p", flow=FlowPolicy())
    with contextlib.suppress(DataPlaneError):  # of a put that was held
        await batching.__aexit__(None, None, None)
    for (partition, name), pending in puts.pending.items():
        with contextlib.suppress(DataPlaneError):
            await puts.note(partition, name, pending.meta())
    there = {
        (partition, name)
        for partition in "pq"
        for name in client.list_samples(partition, page_size=4096).meta.sample_ids
    }
    assert {key for key, seen in puts.seen.items() if seen} <= there
    assert not {key for key, seen in puts.seen.items() if not seen} & there
    client.drop_partition("q")
