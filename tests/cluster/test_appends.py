"""An append whose node copies what its row has: where it copies to is the append's until the node has answered."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tests.cluster.test_mirrors import Nodes, until

from dataplane_server.cluster.coordinator.home_arena import HomeArena
from dataplane_server.cluster.coordinator.remote_values import ClusterValues
from dataplane_server.core.calls.answers import Reservation
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.requests import FinishWrite, PutSamples, RegisterPartition
from dataplane_server.core.calls.values import Definition

ROW_BYTES = 8


def begin(nodes: Nodes, *, append: bool) -> Reservation:
    column = ColumnSpec("x", Shape("jagged", "uint8", ()), np.array([ROW_BYTES], np.int64))
    begun = nodes.shell.apply(PutSamples(f"append: {append}", "p", ["s"], [column], node=1, append=append))
    assert isinstance(begun, Reservation)
    assert bool(begun.copies) is append
    return begun


def used(nodes: Nodes) -> int:
    return nodes.plane.totals().memory_used_bytes


async def test_a_repeated_append_leaves_the_target_of_a_copy_alone_until_the_node_has_answered() -> None:
    nodes = Nodes()
    values = ClusterValues(nodes.shell, nodes.members, nodes.mirrors, HomeArena())
    definition = Definition("p", ("x",), ("train",), per_token_fields=frozenset({"x"}))
    nodes.shell.apply(RegisterPartition("register", definition))
    nodes.shell.apply(FinishWrite(begin(nodes, append=False).ticket))
    copied = asyncio.Future[None]()
    nodes.actor(1).will("copy", copied)

    async def serve(append: Reservation) -> None:
        with nodes.shell.aborted_on_error(append.ticket):
            await values.digests(append)  # type: ignore[misc]  # it has copies

    first = asyncio.create_task(serve(begin(nodes, append=True)))
    await until(lambda: nodes.asked("copy"))
    first.cancel()
    begin(nodes, append=True)
    assert used(nodes) == 5 * ROW_BYTES, "the row, and each attempt's two of them"
    copied.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await first
    assert used(nodes) == 3 * ROW_BYTES
    await values.close()
