"""An append whose node copies what its row has: where it copies to is the append's until the node has answered. And
reads for which the coordinator fetches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from tests.cluster.test_mirrors import Nodes
from tests.waiting import soon

from dataplane_server.cluster import asking
from dataplane_server.cluster.coordinator.home_arena import HomeArena
from dataplane_server.cluster.coordinator.remote_values import ClusterValues
from dataplane_server.core.calls.answers import Reservation
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import FinishWrite, PutSamples, RegisterPartition
from dataplane_server.core.calls.values import Definition, Run, Runs
from dataplane_server.core.rows.regions import NODE_SHIFT
from dataplane_server.service.messages.frames import MAX_MESSAGE_BYTES
from rl_dataplane.v1 import data_plane_pb2 as pb

ActorUnavailableError = pytest.importorskip("ray.exceptions").ActorUnavailableError

ROW_BYTES = 8


def begin(nodes: Nodes, *, append: bool) -> Reservation:
    column = ColumnSpec("x", Shape("jagged", "uint8", ()), np.array([ROW_BYTES], np.int64))
    begun = nodes.shell.apply(PutSamples(f"append: {append}", "p", ["s"], [column], node=1, append=append))
    assert isinstance(begun, Reservation)
    assert bool(begun.copies) is append
    return begun


class Appending:
    """A row, and an append to it whose copy the node answers when `copied` is there. ended: raises what it raised."""

    def __init__(self) -> None:
        self.nodes = nodes = Nodes()
        self.values = ClusterValues(nodes.shell, nodes.members, nodes.mirrors, HomeArena())
        definition = Definition("p", ("x",), ("train",), per_token_fields=frozenset({"x"}))
        nodes.shell.apply(RegisterPartition("register", definition))
        nodes.shell.apply(FinishWrite(begin(nodes, append=False).ticket))
        self.copied = asyncio.Future[None]()
        nodes.actor(1).will("copy", self.copied)
        self.ended = asyncio.create_task(self._serve(begin(nodes, append=True)))

    async def _serve(self, append: Reservation) -> None:
        with self.nodes.shell.aborted_on_error(append.ticket):
            await self.values.digests(append)  # type: ignore[misc]  # it has copies

    @property
    def used(self) -> int:
        return self.nodes.plane.totals().memory_used_bytes


@pytest.fixture
async def appending(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Appending]:
    monkeypatch.setattr(asking, "_LOOK_S", 0.02)
    appending = Appending()
    await soon(lambda: appending.nodes.asked("copy"))
    yield appending
    await appending.values.close()


async def test_a_repeated_append_leaves_the_target_of_a_copy_alone_until_the_node_has_answered(
    appending: Appending,
) -> None:
    appending.ended.cancel()
    begin(appending.nodes, append=True)
    assert appending.used == 5 * ROW_BYTES, "the row, and each attempt's two of them"
    appending.copied.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await appending.ended
    assert appending.used == 3 * ROW_BYTES


async def test_a_node_copies_nothing_for_an_append_whose_place_was_taken(appending: Appending) -> None:
    late = begin(appending.nodes, append=True)
    assert begin(appending.nodes, append=True).copies == late.copies
    with pytest.raises(Refusal, match="took over"):
        await appending.values.digests(late)  # type: ignore[misc]  # it has copies
    assert len(appending.nodes.asked("copy")) == 1
    appending.copied.set_result(None)
    await appending.ended


@pytest.mark.parametrize("is_lost", [False, True], ids=["the answer comes after minutes", "its connection broke"])
async def test_the_target_of_a_copy_without_an_answer_is_free_only_when_the_node_has_registered_again(
    appending: Appending, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    loop, time = asyncio.get_running_loop(), asyncio.get_running_loop().time
    monkeypatch.setattr(loop, "time", lambda: time() + 600)
    if is_lost:
        appending.copied.set_exception(ActorUnavailableError("the connection broke", None))
    await asyncio.sleep(0.1)
    assert not appending.ended.done()
    assert appending.used == 3 * ROW_BYTES
    assert appending.nodes.members.get(1).is_doubted is is_lost, "then it has to register again"
    appending.nodes.register(1)
    with pytest.raises(Refusal, match="node 1 does not answer"):
        await appending.ended
    assert appending.used == ROW_BYTES


async def test_a_read_has_the_bytes_of_its_own_node_although_that_gets_another_arena_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, home = Nodes(), HomeArena()
    values = ClusterValues(nodes.shell, nodes.members, nodes.mirrors, home)
    for number in (1, 3):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 64)
    home.map(tmp_path / "1", 1 << NODE_SHIFT, 64)

    async def read(*_: object) -> None:
        home.map(tmp_path / "3", 3 << NODE_SHIFT, 64)

    monkeypatch.setattr(values._lines, "read", read)
    found = await values._bytes_of(Runs.of([Run(8 + (node << NODE_SHIFT), 2) for node in (1, 2)]))
    assert bytes(found[0]) == b"\1\1"
    with pytest.raises(Refusal, match="node 1 is not there"):
        values.places([Run(8 + (1 << NODE_SHIFT), 2)])
    await values.close()


@pytest.mark.parametrize("size_bytes", [0, 64])
async def test_a_read_over_grpc_whose_lengths_exceed_a_message_is_refused(tmp_path: Path, size_bytes: int) -> None:
    nodes, home = Nodes(), HomeArena()
    values = ClusterValues(nodes.shell, nodes.members, nodes.mirrors, home)
    (tmp_path / "1").write_bytes(bytes(64))
    home.map(tmp_path / "1", 1 << NODE_SHIFT, 64)
    runs = Runs.of([Run(1 << NODE_SHIFT, size_bytes)] if size_bytes else [])
    header = pb.ReadColumnsHeader(sequence_lengths=bytes(MAX_MESSAGE_BYTES))
    with pytest.raises(Refusal, match="read fewer rows") as refused:
        await anext(values.frames(header, runs))
    assert refused.value.reason is Reason.LIMIT_REACHED
    await values.close()
