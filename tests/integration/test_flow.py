"""Backpressure through a client, over both transports: who waits for room, and what lets them go on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked import forking
from tests.integration.command.conftest import Command
from tests.integration.conftest import Eventually, Unchanged

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import (
    DataPlaneError,
    InvalidArgumentError,
    NotFoundError,
    OutOfSpaceError,
    PartitionFullError,
    PreconditionError,
    TooFewRowsError,
)
from dataplane_client.flow import DrawBand, FlowPolicy
from dataplane_client.options import TransportChoice
from dataplane_client.policies import TaskPolicy

TWO = FlowPolicy(max_rows=2)
PACE = TaskPolicy(max_staleness=1, rows_per_version=1)


@pytest.fixture
def client(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["x", "y"], 0, ["train"])
    return client


@pytest.fixture
def other(client: DataPlaneClient, transport: TransportChoice) -> Iterator[DataPlaneClient]:
    """Another client of the same server."""
    with connect(client.target, transport=transport) as other:
        yield other


@pytest.fixture
def full(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p has the rows a and b, and room for no more."""
    client.set_policies("p", flow=TWO)
    put(client, "a", "b")
    return client


def put(client: DataPlaneClient, *ids: str, version: int | None = None, timeout_s: float | None = None) -> None:
    tags = None if version is None else [{"weight_version": version}] * len(ids)
    client.put_samples(list(ids), "p", {"x": torch.arange(len(ids))}, tags, timeout_s=timeout_s)


def waiting(client: DataPlaneClient, count: int = 1) -> Callable[[], bool]:
    return lambda: client.partition("p").waiting_calls == count


def ids(client: DataPlaneClient) -> str:
    return "".join(client.list_samples("p").meta.sample_ids)


@pytest.mark.parametrize("size", [None, 0, 1, 300_000], ids=["tags alone", "empty", "small", "large"])
def test_a_put_waits_in_the_server_and_goes_on_when_another_client_clears_rows(
    full: DataPlaneClient, other: DataPlaneClient, threads: ThreadPoolExecutor, eventually: Eventually, size: int | None
) -> None:
    values = None if size is None else [torch.full((size,), 7)]
    columns = {} if values is None else {"y": values}
    waiter = threads.submit(full.put_samples, ["c"], "p", columns, [{"n": 1}])
    eventually(waiting(other))
    other.clear_samples(["a"], "p")
    assert waiter.result(20).sample_ids == ["c"]
    assert ids(other) == "bc"
    assert other.partition("p").waiting_calls == 0
    if values is not None:
        assert torch.equal(other.get_samples(["c"], "p", ["y"])["y"].unbind()[0], values[0])


def test_a_put_that_waits_in_vain_says_at_its_timeout_what_would_make_room(
    full: DataPlaneClient, other: DataPlaneClient, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    full.claim("p", "train", ["x"], 1).commit()
    began = time.monotonic()
    waiter = threads.submit(put, full, "c", timeout_s=5.0)
    eventually(waiting(other))
    why = other.partition("p").waits_because
    error = waiter.exception(20)
    assert time.monotonic() - began >= 5.0
    assert isinstance(error, PartitionFullError)
    assert isinstance(error, OutOfSpaceError)
    assert error.message == f"put_samples at {full.target}: {why}"
    assert "'p' has no room for 1 new rows" in why
    assert "2 of max_rows 2 rows are here" in why
    assert "1 rows are done with by every task: clear them, or register with clear_when_consumed" in why
    assert (error.reason, error.retry_after_s) == ("PARTITION_FULL", 1.0)
    assert (error.details["partition_id"], error.details["rows"]) == ("p", "2")
    assert (other.partition("p").waits_because, ids(other)) == ("", "ab")


def test_a_partition_that_rejects_does_so_at_once_and_changes_nothing(
    full: DataPlaneClient, unchanged: Unchanged
) -> None:
    full.set_policies("p", flow=FlowPolicy(max_rows=2, when_full="reject"))
    with unchanged(full):
        with pytest.raises(PartitionFullError, match="2 of max_rows 2"):
            put(full, "c", timeout_s=10_000.0)
        with pytest.raises(PartitionFullError, match="2 of max_rows 2"):
            full.reserve_group("p", "g", ["c"], timeout_s=10_000.0)
    put(full, "a", "b")  # rows that exist need no room


async def test_a_waiting_group_does_not_block_the_event_loop_and_leaves_nothing_when_it_is_cancelled(
    full: DataPlaneClient, async_client: aio.AsyncDataPlaneClient, eventually: Eventually
) -> None:
    first = asyncio.create_task(async_client.reserve_group("p", "g", ["c"]))
    await asyncio.to_thread(eventually, waiting(full))
    second = asyncio.create_task(async_client.reserve_group("p", "h", ["d"]))
    await asyncio.to_thread(eventually, waiting(full, 2))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.to_thread(eventually, waiting(full))
    full.clear_samples(None, "p")
    assert await (await second).abort() == 1
    await asyncio.to_thread(eventually, lambda: full.partition("p").open_groups == 0)
    assert full.partition("p").rows_put_total == 3
    assert full.partition("p").waiting_calls == 0


def _reserve(address: str, transport: TransportChoice, ready: Connection) -> None:
    with connect(address, transport=transport) as client:
        ready.send(None)
        client.reserve_group("p", "g", ["c"])


def test_a_client_that_is_killed_while_its_group_waits_leaves_nothing_behind(
    full: DataPlaneClient, transport: TransportChoice, eventually: Eventually
) -> None:
    context = forking()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_reserve, args=(full.target, transport, sender), daemon=True)
    process.start()
    assert receiver.poll(60)
    eventually(waiting(full))
    process.kill()
    process.join()
    eventually(waiting(full, 0))
    full.clear_samples(None, "p")
    assert (full.partition("p").open_groups, full.partition("p").rows_put_total) == (0, 2)


def _has_put(client: DataPlaneClient, rows: int) -> bool:
    return client.partition("p").rows_put_total == rows


def test_a_producer_is_paced_so_that_no_row_turns_stale(
    client: DataPlaneClient, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    client.set_policies("p", {"train": TaskPolicy(max_staleness=1, when_stale="drop", rows_per_version=2)})
    client.set_weight_version("p", 0)

    def produce() -> None:
        for number in range(24):
            with client.reserve_group("p", f"g{number}", [f"s{number}"]) as group:
                version = client.partition("p").weight_version  # with room, generation begins
                group.put(group.meta.sample_ids, {"x": [1.0]}, [{"weight_version": version}])

    producer = threads.submit(produce)
    staleness = []
    for version in range(1, 13):
        eventually(partial(_has_put, client, min(2 * version + 2, 24)))  # the rows of two versions
        with client.claim("p", "train", ["x"], 2) as claim:
            staleness += claim.staleness
        client.set_weight_version("p", version)
    producer.result(20)
    assert (len(staleness), max(staleness)) == (24, 1)
    assert client.partition("p").removed_rows["stale"] == 0


def test_draws_and_puts_wait_for_each_other_within_the_band(
    client: DataPlaneClient, other: DataPlaneClient, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    client.set_policies("p", flow=FlowPolicy(band=DrawBand(1.0, 0.0, 2.0)))
    draw = threads.submit(client.draw_samples, "p", ["x"], 2)
    eventually(waiting(other))
    assert "rows put are 0 ahead of draws" in other.partition("p").waits_because
    put(other, "a", "b")
    assert sorted(draw.result(20).meta.sample_ids) == ["a", "b"]
    with pytest.raises(TooFewRowsError, match="below the band's 0; new rows make room"):
        client.draw_samples("p", ["x"], 1, timeout_s=0.05)
    put(client, "c", "d")
    waiter = threads.submit(put, other, "e")
    eventually(waiting(client))
    client.draw_samples("p", ["x"], 1)
    waiter.result(20)
    with pytest.raises(PartitionFullError, match="beyond the band's 2; draws make room"):
        put(client, "f", timeout_s=0.05)


@pytest.mark.parametrize(
    "flow",
    [
        FlowPolicy(),
        FlowPolicy(max_rows=1, max_bytes=(1 << 62) - 1, max_versions=3, when_full="reject"),
        FlowPolicy(max_rows=9, when_full="evict", evict_first="oldest_version", evict_where="score < 3 and age_s > 60"),
        FlowPolicy(band=DrawBand(0.5, -8.0, 8.25)),
    ],
)
def test_a_description_tells_the_policy_that_was_set(client: DataPlaneClient, flow: FlowPolicy) -> None:
    assert client.set_policies("p", {"train": PACE}, flow=flow).flow == flow
    client.set_policies("p", {"train": TaskPolicy()})
    assert client.partition("p").flow == flow  # a call without flow keeps it
    assert client.set_policies("p", flow=FlowPolicy()).flow == FlowPolicy()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda client: client.set_policies("p", flow=FlowPolicy(max_rows=4)), None),
        (lambda client: client.set_policies("p", flow=FlowPolicy(max_rows=1)), InvalidArgumentError),
        (lambda client: client.close_partition("p"), PreconditionError),
        (lambda client: client.drop_partition("p"), NotFoundError),
    ],
    ids=["raised", "lowered", "closed", "dropped"],
)
def test_calls_that_wait_follow_what_becomes_of_the_partition(
    full: DataPlaneClient,
    other: DataPlaneClient,
    threads: ThreadPoolExecutor,
    eventually: Eventually,
    change: Callable[[DataPlaneClient], object],
    error: type[DataPlaneError] | None,
) -> None:
    new = threads.submit(put, full, "c", "d")
    group = threads.submit(full.reserve_group, "p", "g", ["e", "f"])
    eventually(waiting(other, 2))
    change(other)
    if error is not None:
        assert (type(new.exception(20)), type(group.exception(20))) == (error, error)
    else:
        new.result(20)
        other.clear_samples(None, "p")
        assert group.result(20).abort() == 2


@pytest.mark.parametrize(
    ("tasks", "flow", "words"),
    [
        ({}, {"max_rows": 0}, "set_policies of 'p': max_rows must be"),
        ({}, {"max_bytes": 1 << 62}, "max_bytes must be"),
        ({}, {"max_versions": -1}, "max_versions must be"),
        ({}, {"when_full": "wait"}, "when_full must be one of"),
        ({}, {"evict_first": "newest"}, "evict_first must be one of"),
        ({}, {"max_rows": 1, "when_full": "evict", "evict_where": "score <"}, "filter 'score <', column"),
        ({}, {"max_rows": 1, "evict_where": "score < 3"}, "evict_where needs when_full 'evict', got 'block'"),
        ({}, {"band": DrawBand("1", 0.0, 9.0)}, "a band has three numbers"),  # type: ignore[arg-type]
        ({}, {"band": DrawBand(0.0, 0.0, 9.0)}, "samples_per_insert above 0"),
        ({}, {"band": DrawBand(2.0, 0.0, 2.5)}, "at least 1 \\+ samples_per_insert = 3 wide"),
        ({"train": TaskPolicy(rows_per_version=4)}, {}, "rows_per_version paces producers by max_staleness"),
        ({"train": TaskPolicy(1, rows_per_version=-1)}, {}, "task 'train': rows_per_version must be"),
    ],
)
def test_what_is_wrong_in_a_policy_is_told_before_anything_changes(
    client: DataPlaneClient, tasks: dict[str, TaskPolicy], flow: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        client.set_policies("p", tasks, flow=FlowPolicy(**flow))
    described = client.partition("p")
    assert (described.flow, described.task("train").policy) == (FlowPolicy(), TaskPolicy())


@pytest.mark.parametrize(
    ("tasks", "flow", "words"),
    [
        ({}, TWO, "2 of max_rows 2 rows"),
        ({}, FlowPolicy(band=DrawBand(1.0, 0.0, 2.0)), "rows put are 2 ahead of draws"),
        ({"train": PACE}, None, "task 'train' has 2 rows before it or taken"),
    ],
    ids=["budget", "band", "pace"],
)
@pytest.mark.parametrize("transport", ["grpc", "shm"])
def test_what_holds_producers_up_does_so_after_the_server_was_killed_and_a_put_that_waited_goes_on_there(
    tmp_path: Path,
    threads: ThreadPoolExecutor,
    eventually: Eventually,
    transport: TransportChoice,
    tasks: dict[str, TaskPolicy],
    flow: FlowPolicy | None,
    words: str,
) -> None:
    address = f"unix://{tmp_path}/s"
    arguments = ["--listen", address, "--data-dir", str(tmp_path / "data"), "--memory", "1MiB", "--http", ""]
    with contextlib.ExitStack() as running:
        first = running.enter_context(contextlib.closing(Command(arguments, tmp_path / "first.log")))
        client = running.enter_context(connect(address, timeout_s=30.0, transport=transport))
        client.register_partition("p", ["x"], 0, ["train"])
        client.set_weight_version("p", 0)
        put(client, "past", version=0)
        client.claim("p", "train", ["x"], 1).commit()
        client.clear_samples(["past"], "p")
        client.set_weight_version("p", 1)
        client.set_policies("p", tasks, flow=flow)
        put(client, "a", version=1)
        client.claim("p", "train", ["x"], 1).commit()
        put(client, "b", version=1)
        waiter = threads.submit(put, client, "c")
        eventually(waiting(client))
        first.end(signal.SIGKILL)
        second = running.enter_context(contextlib.closing(Command(arguments, tmp_path / "second.log")))
        eventually(waiting(client))
        assert words in client.partition("p").waits_because
        with pytest.raises(PartitionFullError, match=words):
            put(client, "d", timeout_s=0.05)
        client.draw_samples("p", ["x"], 1)
        client.set_weight_version("p", 2)
        client.clear_samples(["b"], "p")
        waiter.result(20)
        assert ids(client) == "ac"
        second.check_books()
