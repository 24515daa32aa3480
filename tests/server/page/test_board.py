"""The board: what a snapshot says of the core, what is sent again, what is left out, and that it rests unwatched."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.core.caller import Caller, figures_of

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.stats.figures import PARTITION_FIGURES, TASK_FIGURES
from dataplane_server.observe.metrics import Metrics
from dataplane_server.page.board import _TURN_S, UNCHANGED, Board, Pieces
from dataplane_server.page.state import MOST_PARTITIONS, StateReader
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import Values
from dataplane_server.storage.arena import Arena

_FIGURES = {*PARTITION_FIGURES, *TASK_FIGURES} - {
    "oldest_row_age_s",
    "oldest_untaken_age_s",
    "longest_wait_s",
    "weight_version",  # told even if it is 0
}


def reader_of(caller: Caller) -> StateReader:
    metrics = Metrics(caller.plane, lambda: True)
    shell = Shell(caller.plane, metrics, lambda: caller.now)
    servicer = DataPlaneServicer(shell, Values(caller.plane, Arena(4096, shared=False)), metrics)
    return StateReader(caller.plane, servicer, metrics, lambda: True, lambda: caller.now)


async def told(reader: StateReader) -> dict[str, Any]:
    """What a snapshot says, by part; nothing of the parts that are as before."""
    return {
        name: json.loads(json.dumps(said))
        for name, said in await reader.pieces(not reader._keys)
        if said is not UNCHANGED
    }


def figures(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name in _FIGURES}


def from_core(plane: DataPlane, now: float) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """The figures of partitions and tasks that are not zero."""
    return tuple(  # type: ignore[return-value]
        [
            {name: value for name, value in zip(columns, row, strict=True) if value and name in _FIGURES}
            for row in zip(*columns.values(), strict=True)
        ]
        for columns in figures_of(plane, now)
    )


async def test_a_snapshot_has_the_figures_waits_and_holders_of_the_core() -> None:
    caller = Caller(Limits(memory_bytes=4096))
    caller.register(tasks=("train", "score"))
    caller.register(partition_id="q")
    caller.set_flow(max_rows=4)
    caller.now = 5.0
    caller.put(caller.put_call(["a", "b", "c"], {"a": [1, 2, 3]}, caller="rollout-1"))
    caller.take("a", batch_size=2)
    caller.apply(caller.claim_call("b", batch_size=3, task="score"))
    caller.now = 12.5
    parts = await told(reader_of(caller))

    expected, expected_tasks = from_core(caller.plane, 12.5)
    shown = [parts["partition p"], parts["partition q"]]
    assert [figures(part) for part in shown] == expected
    assert [figures(task) for part in shown for task in part["tasks"]] == expected_tasks
    assert [field[:1] + field[2:] for field in shown[0]["fields"]] == [["a", 3, 6], ["b", 0, 0]]
    assert (shown[0]["budgets"], shown[0]["oldest_row_since"]) == ({"max_rows": 4, "when_full": "block"}, 5.0)
    assert shown[0]["tasks"][1]["longest_since"] == 5.0
    (wait,) = caller.plane.explain_waits("", "", 12.5).waits
    (seen,) = parts["waits"]["waits"]
    assert (seen["summary"], seen["since"], seen["causes"][0]["cause"]) == (wait.summary, 5.0, wait.findings[0].cause)
    assert seen["causes"][0]["next"] == wait.next_step(wait.findings[0])
    assert [(claim["rows"], claim["since"]) for claim in parts["holders"]["claims"]] == [(2, 5.0)]
    assert [row[:4] + row[5:] for row in parts["clients"]["clients"] if row[1] == "put"] == [
        ["p", "put", "", "rollout-1", 3, ["a"]]
    ]
    assert parts["server"]["memory"] == [4096, caller.plane.totals().memory_used_bytes, 0]


async def test_a_partition_that_has_not_changed_says_nothing_new() -> None:
    caller = Caller(Limits(memory_bytes=4096))
    for name in ("p", "q"):
        caller.register(partition_id=name)
    reader = reader_of(caller)
    first = await told(reader)
    caller.now = 1.0
    caller.put(caller.put_call(["a"], {"a": [1]}, partition_id="q"))
    second = await told(reader)
    named = [{name for name in parts if name.startswith("partition ")} for parts in (first, second)]
    assert named == [{"partition p", "partition q"}, {"partition q"}]


async def test_of_many_partitions_those_with_most_rows_and_those_where_calls_wait_are_shown() -> None:
    caller = Caller(Limits(memory_bytes=1 << 20))
    for number in range(MOST_PARTITIONS + 10):
        caller.register(partition_id=f"p{number}")
        if number != 3:
            caller.put(caller.put_call(["x"], {"a": [1]}, partition_id=f"p{number}"))
    caller.apply(caller.claim_call("b", batch_size=1, partition_id="p3"))
    caller.put(caller.put_call(["y"], {"a": [1]}, partition_id=f"p{MOST_PARTITIONS + 9}"))
    shown = [name for name in await told(reader_of(caller)) if name.startswith("partition ")]
    assert len(shown) == MOST_PARTITIONS
    assert {"partition p3", f"partition p{MOST_PARTITIONS + 9}"} <= set(shown)


# -- the stream --------------------------------------------------------------------------------------------------------


class Said:
    """Parts that change when they are told to. begun: how many snapshots were."""

    def __init__(self, **parts: object) -> None:
        self.parts = parts
        self.begun = 0

    async def pieces(self, everything: bool) -> Pieces:
        self.begun += 1
        return iter(list(self.parts.items()))


@pytest.fixture
async def said() -> Said:
    return Said(a={"n": 1}, b={"n": 1})


async def events(stream: AsyncIterator[bytes], count: int) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    async for sent in stream:
        messages = messages_of(sent)
        found += [(message["part"], message["says"].get("n")) for message in messages]
        if len(found) >= count:
            break
    return found


def messages_of(sent: bytes) -> list[Any]:
    return [json.loads(event.removeprefix("data:")) for event in sent.decode().split("\n\n") if event]


async def test_viewers_get_all_parts_at_first_and_then_what_has_changed(said: Said) -> None:
    board = Board(said.pieces, 10_000, period_s=0.01)
    first, second = board.watch(20.0), board.watch(20.0)
    assert await events(first, 3) == [("a", 1), ("b", 1), ("shown", None)]
    said.parts["b"] = {"n": 2}
    assert await events(first, 1) == [("b", 2)]
    assert await events(second, 3) == [("a", 1), ("b", 2), ("shown", None)]
    del said.parts["a"]
    assert await events(first, 1) == await events(second, 1) == [("shown", None)]
    await board.close()


async def test_a_viewer_that_comes_while_a_snapshot_is_made_gets_its_changes(said: Said) -> None:
    late: list[asyncio.Task[list[tuple[str, object]]]] = []

    def slowly() -> Pieces:
        late.append(asyncio.create_task(events(board.watch(20.0), 4)))
        said.parts["b"] = {"n": 2}
        time.sleep(_TURN_S)  # so others have a turn after the first part
        yield from said.parts.items()

    async def pieces(everything: bool) -> Pieces:
        return await said.pieces(everything) if everything or late else slowly()

    board = Board(pieces, 10_000, period_s=0.01)
    assert (await events(board.watch(20.0), 4))[3:] == (await late[0])[3:] == [("b", 2)]
    await board.close()


async def test_nothing_is_computed_while_no_page_is_open(said: Said) -> None:
    board = Board(said.pieces, 10_000, period_s=0.01)
    assert said.begun == 0
    assert len(await events(board.watch(2.0), 100)) == 3
    await asyncio.sleep(0.5)  # the snapshot that was being made
    begun = said.begun
    await asyncio.sleep(0.05)
    assert (said.begun, begun > 3, board.viewers) == (begun, True, 0)


async def test_parts_beyond_the_bound_on_bytes_are_left_out_and_counted(said: Said) -> None:
    said.parts |= {f"p{number}": {"text": "x" * 100} for number in range(50)}
    board = Board(said.pieces, 2_000, period_s=0.01)
    sent = b""
    async for events_sent in board.watch(20.0):
        sent += events_sent
        if b'"shown"' in sent:
            break
    shown = messages_of(sent)[-1]["says"]
    assert len(sent) <= 2_000 + len(json.dumps(shown)) + 50
    assert len(shown["parts"]) + shown["left_out"] == 52
    await board.close()


async def test_a_snapshot_that_takes_long_is_made_less_often() -> None:
    begun = 0

    def work() -> Pieces:
        for number in range(3):
            sum(range(200_000))
            yield f"a{number}", {"n": 1}

    async def pieces(everything: bool) -> Pieces:
        nonlocal begun
        begun += 1
        return work()

    board = Board(pieces, 10_000, period_s=0.001)
    async for _ in board.watch(0.3):
        pass
    assert begun <= 1 + 0.3 / (140 * board.worked_s / begun)
    await board.close()
