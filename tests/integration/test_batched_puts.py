"""Puts that travel together: each is answered, refused and ended as if it were alone."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.waiting import soon

from dataplane_client import (
    ClosedError,
    DataPlaneClient,
    DeadlineError,
    FlowPolicy,
    InvalidArgumentError,
    NotFoundError,
    aio,
    observe,
)
from dataplane_client.observe import Call, Observer

FIELDS, TOKENS = ["tokens", "reward"], ["tokens"]


def row(value: int, length: int = 3) -> dict[str, object]:
    return {"tokens": [torch.full((length,), value)], "reward": [float(value)]}


class Puts(Observer):
    """The rows of each call that puts."""

    def __init__(self) -> None:
        self.rows: list[int | None] = []

    def ended(self, call: Call) -> None:
        if call.verb == "PutSamples":
            self.rows.append(call.rows)


@pytest.fixture
def puts() -> Iterator[Puts]:
    observer = Puts()
    observe.add(observer)
    yield observer
    observe.remove(observer)


@pytest.fixture
def partition(client: DataPlaneClient) -> str:
    client.register_partition("p", FIELDS, 0, ["train"], per_token_fields=TOKENS)
    return "p"


def test_puts_of_a_block_travel_together_and_each_has_its_own_meta(
    client: DataPlaneClient, partition: str, puts: Puts
) -> None:
    before = client.put_samples(["s1"], partition, row(0))
    with client.batching() as batching:
        given = [{"tags": [{"n": 2}], "sequence_lengths": [3]}, {"sequence_lengths": [3]}, {"sequence_lengths": [3]}]
        pending = [
            batching.put_later([f"s{value}"], partition, row(value), **given[value])  # type: ignore[arg-type]
            for value in range(3)
        ]
        other = batching.put_later(["t0", "t1"], partition, {"reward": [7.0, 8.0]})
        assert puts.rows == [1]
    assert sorted(puts.rows[1:], key=str) == [2, 3]
    metas = [one.meta() for one in pending]
    assert [meta.outcomes for meta in metas] == [["created"], ["replaced"], ["created"]]
    assert [(meta.tags, meta.sequence_lengths) for meta in metas] == [([{"n": 2}], [3]), (None, [3]), (None, [3])]
    assert metas[1].generations == before.generations
    assert other.meta().sample_ids == ["t0", "t1"]
    for value, meta in enumerate(metas):
        assert client.get_data(meta)["reward"].tolist() == [value]
        assert client.get_data(meta)["tokens"].unbind()[0].tolist() == [value] * 3
    assert client.list_samples(partition, where="n == 2").meta.sample_ids == ["s0"]


def test_an_invalid_put_is_refused_alone(client: DataPlaneClient, partition: str) -> None:
    with pytest.raises(InvalidArgumentError) as alone:
        client.put_samples(["bad"], partition, row(1), sequence_lengths=[4])
    with client.batching() as batching:
        pending = [
            batching.put_later([name], partition, row(1), sequence_lengths=[4 if name == "bad" else 3])
            for name in ("s0", "bad", "s1")
        ]
        assert pending[0].meta().sample_ids == ["s0"]
        with pytest.raises(InvalidArgumentError) as together:
            pending[1].meta()
        assert (together.value.reason, together.value.details) == (alone.value.reason, alone.value.details)
    assert client.list_samples(partition).meta.sample_ids == ["s0", "s1"]


def test_a_refusal_that_nobody_asked_for_is_raised_at_the_end(client: DataPlaneClient, partition: str) -> None:
    raised = pytest.raises(InvalidArgumentError, match=r"'tokens'.* \(2 more puts failed\)$")
    with raised, client.batching() as batching:  # the end raises
        for number in range(3):
            batching.put_later([f"bad{number}"], partition, row(1), sequence_lengths=[4])
        batching.put_later(["s0"], partition, row(1), sequence_lengths=[3])
    assert client.list_samples(partition).meta.sample_ids == ["s0"]


def test_what_is_held_when_a_block_raises_is_not_sent(client: DataPlaneClient, partition: str, puts: Puts) -> None:
    with pytest.raises(ZeroDivisionError), client.batching() as batching:  # noqa: PT012
        pending = batching.put_later(["s0"], partition, row(1))
        raise ZeroDivisionError
    with pytest.raises(ClosedError):
        pending.meta()
    assert puts.rows == []


def test_no_more_is_held_than_the_bound(client: DataPlaneClient, partition: str, puts: Puts) -> None:
    with client.batching(max_rows=4) as batching:
        for value in range(10):
            batching.put_later([f"s{value}"], partition, row(value))
        assert puts.rows == [4, 4]
    assert puts.rows == [4, 4, 2]


def test_puts_of_one_row_keep_their_order(client: DataPlaneClient, partition: str) -> None:
    with client.batching() as batching:
        metas = [batching.put_later(["s0"], partition, row(value)) for value in range(3)]
    assert [one.meta().outcomes for one in metas] == [["created"], ["replaced"], ["replaced"]]
    assert client.get_samples(["s0"], partition, ["reward"])["reward"].tolist() == [2.0]


def test_a_put_follows_held_puts_of_its_rows(client: DataPlaneClient, partition: str) -> None:
    with client.batching() as batching:
        held = batching.put_later(["s0", "s1"], partition, row(1) | {"tokens": [[1], [1]], "reward": [1.0, 1.0]})
        other = batching.put_later(["bad"], partition, row(1), sequence_lengths=[4])
        assert batching.put_samples(["s1", "s2"], partition, {"reward": [2.0, 2.0]}).outcomes == ["replaced", "created"]
        assert client.get_samples(["s0", "s1"], partition, ["reward"])["reward"].tolist() == [1.0, 2.0]
        with pytest.raises(InvalidArgumentError):
            other.meta()
    assert held.meta().outcomes == ["created", "created"]
    assert client.get_samples(["s0", "s1"], partition, ["reward"])["reward"].tolist() == [1.0, 2.0]


async def test_a_put_follows_puts_of_its_rows_that_a_flush_has_yet_to_send(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient, full_partition: str
) -> None:
    client.register_partition("q", ["reward"], 0, ["train"])
    async with async_client.batching() as batching:
        await batching.put_later(["first"], full_partition, row(1))
        await batching.put_later(["s0"], "q", {"reward": [1.0]})
        flush = asyncio.create_task(batching.flush())
        await until_a_call_waits(client, full_partition)
        put = asyncio.create_task(batching.put_samples(["s0"], "q", {"reward": [2.0]}))
        await batching.put_samples(["s1"], "q", {"reward": [3.0]})
        await async_client.clear_samples(["a", "b"], full_partition)
        await flush
        assert (await put).outcomes == ["replaced"]
    assert client.get_samples(["s0", "s1"], "q", ["reward"])["reward"].tolist() == [2.0, 3.0]
    client.drop_partition("q")


def test_threads_that_put_at_once_get_each_its_own_answer(client: DataPlaneClient, partition: str) -> None:
    with client.batching(max_rows=8) as batching, ThreadPoolExecutor(8) as threads:
        names = [f"s{value}" for value in range(64)]
        put = [threads.submit(batching.put_samples, [name], partition, row(value)) for value, name in enumerate(names)]
        metas = [one.result() for one in put]
    assert [meta.sample_ids for meta in metas] == [[name] for name in names]
    values = [client.get_data(meta)["reward"].tolist() for meta in metas]
    assert values == [[float(value)] for value in range(64)]


async def test_tasks_that_put_at_once_share_calls_and_one_that_is_cancelled_takes_none_with_it(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient, partition: str, puts: Puts
) -> None:
    async with async_client.batching() as batching:
        tasks = [asyncio.create_task(batching.put_samples([f"s{value}"], partition, row(value))) for value in range(50)]
        await asyncio.sleep(0)  # all are in line; the first sends
        tasks[0].cancel()
        tasks[9].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [place for place, one in enumerate(done) if isinstance(one, BaseException)] == [0, 9]
    assert puts.rows == [1, 48]
    held = client.list_samples(partition).meta.sample_ids
    assert sorted(held) == sorted(f"s{value}" for value in range(50) if value != 9)


async def test_a_sender_that_is_cancelled_while_its_batch_is_refused_leaves_each_put_its_own_answer(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient, partition: str
) -> None:
    tasks: list[asyncio.Task[object]] = []

    class Cancels(Observer):
        def began(self, call: Call) -> None:
            if call.verb == "PutSamples" and call.rows == 4:
                tasks[1].cancel()  # the first of the four, which sends them

    observe.add(observer := Cancels())
    try:
        async with async_client.batching() as batching:
            for value in range(5):
                length = 4 if value == 3 else 3
                put = batching.put_samples([f"s{value}"], partition, row(value), sequence_lengths=[length])
                tasks.append(asyncio.create_task(put))
            done = await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        observe.remove(observer)
    assert [type(done[1]), type(done[3])] == [asyncio.CancelledError, InvalidArgumentError]
    assert {"s0", "s2", "s4"} <= {*client.list_samples(partition).meta.sample_ids} <= {"s0", "s1", "s2", "s4"}


async def cancel_flush(batching: aio.AsyncBatching, client: DataPlaneClient, partition: str) -> None:
    """Cancel a flush whose call waits for room in the partition."""
    flush = asyncio.create_task(batching.flush())
    await until_a_call_waits(client, partition)
    flush.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flush


async def until_a_call_waits(client: DataPlaneClient, partition: str) -> None:
    await soon(lambda: client.partition(partition).waiting_calls)


@pytest.fixture
def full_partition(client: DataPlaneClient, partition: str) -> str:
    client.put_samples(["a", "b"], partition, row(1) | {"tokens": [[1], [2]], "reward": [1.0, 2.0]})
    client.set_policies(partition, flow=FlowPolicy(max_rows=2))
    return partition


async def hold_two(batching: aio.AsyncBatching, partition: str) -> aio.AsyncPendingPut:
    """Hold puts of rows "first" and "other", which one call cannot carry together. Returns the second."""
    await batching.put_later(["first"], partition, row(1))
    return await batching.put_later(["other"], partition, {"reward": [3.0]})


async def test_a_flush_that_is_cancelled_loses_no_put(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient, full_partition: str
) -> None:
    async with async_client.batching() as batching:
        await hold_two(batching, full_partition)
        for _ in range(2):  # the second finds a put under way, and one in line
            await cancel_flush(batching, client, full_partition)
        await async_client.clear_samples(["a", "b"], full_partition)
    assert sorted(client.list_samples(full_partition).meta.sample_ids) == ["first", "other"]


@pytest.mark.parametrize("cancelled", ["flush", "asks"])
async def test_a_put_is_sent_though_who_flushes_or_asked_for_its_meta_is_cancelled(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient, full_partition: str, cancelled: str
) -> None:
    async with async_client.batching() as batching:
        pending = await hold_two(batching, full_partition)
        tasks = {"flush": asyncio.create_task(batching.flush()), "asks": asyncio.create_task(pending.meta())}
        await until_a_call_waits(client, full_partition)
        tasks.pop(cancelled).cancel()
        await async_client.clear_samples(["a", "b"], full_partition)
        (other,) = tasks.values()
        await asyncio.wait_for(other, 100.0)
        assert sorted(client.list_samples(full_partition).meta.sample_ids) == ["first", "other"]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_flush_waits_for_puts_that_another_task_sends(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient, full_partition: str, cancelled: bool
) -> None:
    async with async_client.batching() as batching:
        await hold_two(batching, full_partition)
        one = asyncio.create_task(batching.flush())
        await until_a_call_waits(client, full_partition)
        two = asyncio.create_task(batching.flush())
        await asyncio.sleep(0.05)
        assert not two.done()
        if cancelled:
            one.cancel()
        await async_client.clear_samples(["a", "b"], full_partition)
        await asyncio.wait_for(two, 100.0)
        assert (await async_client.list_samples(full_partition)).meta.sample_ids == ["first", "other"]
        await asyncio.wait([one])


async def test_a_flush_raises_the_error_of_a_put_that_another_task_sends(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient, full_partition: str
) -> None:
    async with async_client.batching() as batching:
        await batching.put_later(["first"], full_partition, row(1))
        flushes = [asyncio.create_task(batching.flush()) for _ in range(2)]
        await until_a_call_waits(client, full_partition)
        await async_client.drop_partition(full_partition)
        ends = await asyncio.gather(*flushes, return_exceptions=True)
        assert [type(end) for end in ends] == [NotFoundError, NotFoundError]
        await batching.flush()  # it was told


def test_a_flush_waits_for_puts_that_another_thread_sends(client: DataPlaneClient, full_partition: str) -> None:
    with client.batching(max_rows=2) as batching, ThreadPoolExecutor(2) as threads:
        batching.put_later(["first"], full_partition, row(1))
        full = threads.submit(batching.put_later, ["other"], full_partition, {"reward": [3.0]})
        asyncio.run(until_a_call_waits(client, full_partition))
        flush = threads.submit(batching.flush)
        with pytest.raises(concurrent.futures.TimeoutError):
            flush.result(0.05)
        client.clear_samples(["a", "b"], full_partition)
        flush.result(100.0)
        assert client.list_samples(full_partition).meta.sample_ids == ["first", "other"]
        full.result(100.0)


def test_a_refused_put_holds_up_none_that_cannot_travel_with_it(client: DataPlaneClient, partition: str) -> None:
    with client.batching() as batching:
        bad = batching.put_later(["bad"], partition, row(1), sequence_lengths=[4], timeout_s=200.0)
        other = batching.put_later(["other"], partition, {"reward": [1.0]}, timeout_s=200.0)
        like = batching.put_later(["like"], partition, row(1), sequence_lengths=[3], timeout_s=200.0)
        with pytest.raises(InvalidArgumentError):
            bad.meta()
        assert (other.meta().sample_ids, like.meta().sample_ids) == (["other"], ["like"])


async def test_a_flush_that_waits_for_room_holds_up_no_puts_into_other_partitions(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient, full_partition: str
) -> None:
    client.register_partition("q", ["reward"], 0, ["train"])

    async with async_client.batching() as batching:
        await batching.put_later(["first"], full_partition, row(1))
        await batching.put_later(["second"], "q", {"reward": [1.0]})
        flush = asyncio.create_task(batching.flush())
        await until_a_call_waits(client, full_partition)
        await batching.put_samples(["third"], "q", {"reward": [2.0]})
        assert not flush.done()
        await async_client.clear_samples(["a", "b"], full_partition)
        await flush
    assert sorted(client.list_samples("q").meta.sample_ids) == ["second", "third"]
    client.drop_partition("q")


async def test_what_a_cancelled_flush_has_sent_fails_where_the_next_one_ends(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient, full_partition: str
) -> None:
    with pytest.raises(NotFoundError, match=full_partition):  # noqa: PT012  # the end raises
        async with async_client.batching() as batching:
            await batching.put_later(["first"], full_partition, row(1))
            await cancel_flush(batching, client, full_partition)
            client.drop_partition(full_partition)


async def test_a_put_under_way_whose_block_is_left_by_an_exception_is_closed_when_its_call_is_refused(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient, full_partition: str
) -> None:
    batching = async_client.batching()
    await batching.put_later(["first"], full_partition, row(1), timeout_s=60.0)
    pending = await batching.put_later(["second"], full_partition, row(2), timeout_s=60.0)

    async def block() -> None:
        async with batching:
            await batching.flush()

    left, asks = asyncio.create_task(block()), asyncio.create_task(pending.meta())
    await until_a_call_waits(client, full_partition)
    left.cancel()
    client.drop_partition(full_partition)
    with pytest.raises(ClosedError):
        await asks
    with pytest.raises(asyncio.CancelledError):
        await left


async def test_each_put_has_its_own_deadline(
    async_client: aio.AsyncDataPlaneClient, client: DataPlaneClient, full_partition: str
) -> None:
    async with async_client.batching() as batching:
        tasks = [
            asyncio.create_task(batching.put_samples([name], full_partition, row(1), timeout_s=timeout_s))
            for name, timeout_s in (("first", 0.05), ("short", 0.1), ("long", 60.0))
        ]
        for task in tasks[:2]:
            with pytest.raises(DeadlineError):  # it found no room, or waited behind one that did not
                await task
        await async_client.clear_samples(["a"], full_partition)
        assert (await tasks[2]).outcomes == ["created"]
    assert sorted(client.list_samples(full_partition).meta.sample_ids) == ["b", "long"]
