"""Bytes of one arena for another node, over real sockets: whole or not at all, and only for those with the secret."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from tests.integration.wire.local_peer import HEAD, Peer
from tests.waiting import soon

from dataplane_server.cluster.messages import BytePlace
from dataplane_server.cluster.node.byte_lines import _STALL_S, ByteLines
from dataplane_server.cluster.node.port import NodePort
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Run, Runs
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import local_pb2 as pb

MIB = 1 << 20
SIZE = 48 * MIB
NODE = 7
DRAW = np.random.default_rng(0)


class Other:
    """Another node and the lines to it. number: what it is known by."""

    number = NODE

    def __init__(self, arena: Arena, lines: ByteLines) -> None:
        self.arena = arena
        self.lines = lines
        self.begin()

    def begin(self) -> None:
        """Its actor listens, at a new place."""
        self.port = NodePort(lambda number: self.arena if number == self.number else None)
        self.place = self.port.open("127.0.0.1")

    async def read(self, runs: Runs, *sizes: int) -> bytes:
        """sizes: of the buffers; by default one takes all."""
        into = [bytearray(size) for size in sizes or (int(runs.sizes.sum()),)]
        await self.lines.read(self.place, NODE, runs, [memoryview(buffer) for buffer in into])
        return b"".join(into)

    def expected(self, runs: Runs) -> bytes:
        return b"".join(map(self.arena.view, runs))


@pytest.fixture
async def other() -> AsyncIterator[Other]:
    arena, lines = Arena(SIZE), ByteLines()
    arena.view(Run(0, SIZE))[:] = DRAW.bytes(SIZE)
    other = Other(arena, lines)
    yield other
    await lines.close()
    await other.port.close()
    arena.close()  # a view that anything has kept raises here


@pytest.mark.parametrize(
    ("count", "most_bytes"), [(1, 1), (3, 100), (5000, 8), (5000, 3000), (2, 20 * MIB), (1, 0)], ids=str
)
async def test_the_bytes_of_runs_come_in_their_order(other: Other, count: int, most_bytes: int) -> None:
    runs = Runs(DRAW.integers(0, SIZE - most_bytes, count), DRAW.integers(most_bytes // 2, most_bytes + 1, count))
    assert await other.read(runs) == other.expected(runs)
    assert await other.read(runs, *runs.sizes.tolist()) == other.expected(runs)


async def test_reads_at_the_same_time_do_not_mix(other: Other) -> None:
    reads = [Runs(DRAW.integers(0, MIB, 40), DRAW.integers(1, 9000, 40)) for _ in range(64)]
    found = await asyncio.gather(*map(other.read, reads))
    assert list(found) == list(map(other.expected, reads))


@pytest.mark.parametrize(
    "run", [Run(SIZE - 1, 2), Run(-1, 1), Run(0, SIZE + 1), Run(1 << 62, 1), Run(1 << 62, 1 << 62)]
)
async def test_a_run_outside_the_arena_is_refused(other: Other, run: Run) -> None:
    with pytest.raises(Refusal, match="outside of the arena"):
        await other.lines.read(other.place, NODE, Runs.of([run]), [memoryview(bytearray(1))])


async def test_an_arena_that_is_another_node_now_gives_nothing(other: Other) -> None:
    runs = Runs.of([Run(0, 8)])
    await other.read(runs)
    other.number = 0
    with pytest.raises(Refusal, match="node 7") as caught:
        await other.read(runs)
    assert caught.value.reason is Reason.NODE_LOST
    other.number = NODE
    assert await other.read(runs) == other.expected(runs)


async def test_who_does_not_know_the_secret_gets_nothing(other: Other) -> None:
    stranger = replace(other.place, secret=bytes(16))
    with pytest.raises(Refusal, match="another actor is there"):
        await other.lines.read(stranger, NODE, Runs.of([Run(0, 8)]), [memoryview(bytearray(8))])


async def test_a_line_that_ended_is_replaced(other: Other) -> None:
    runs, place = Runs.of([Run(5, 3 * MIB)]), other.place
    await other.read(runs)
    await other.port.close()
    with pytest.raises(Refusal, match="does not answer"):
        await other.read(runs)
    other.begin()
    assert other.place != place
    assert await other.read(runs) == other.expected(runs)


async def test_a_read_waits_for_a_node_that_hangs_no_longer_than_once(other: Other) -> None:
    runs = Runs.of([Run(0, 8)])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = replace(other.place, port=listener.getsockname()[1])
        serving = asyncio.create_task(asyncio.to_thread(_answer_once, listener, 3))
        await asyncio.gather(*(other.lines.read(place, NODE, runs, [memoryview(bytearray(8))]) for _ in range(3)))
        lines = await serving
        for _, idle in other.lines._idle:
            assert idle.gettimeout() == _STALL_S
            idle.settimeout(0.5)
        with pytest.raises(Refusal, match="does not answer"):
            await other.lines.read(place, NODE, runs, [memoryview(bytearray(8))])
        assert sum(_was_asked(line) for line in lines) == 1, "by the other lines it would wait as long again"
        for line in lines:
            line.close()


def _answer_once(listener: socket.socket, count: int) -> list[Peer]:
    """As a node that answers one fetch on each of so many lines, all at once, and then hangs."""
    lines = [Peer(listener.accept()[0]) for _ in range(count)]
    for line in lines:
        line.receive()
        line.send(pb.LOCAL_OUTCOME_UNSPECIFIED, pb.DirectResponse())
    for line in lines:
        line.receive()
    for line in lines:
        line.send(pb.LOCAL_OUTCOME_UNSPECIFIED, pb.FetchResponse(values=bytes(8)))
    return lines


def _was_asked(line: Peer) -> bool:
    line.socket.setblocking(False)
    try:
        return bool(line.socket.recv(1))
    except BlockingIOError:
        return False


async def test_what_is_no_request_ends_its_line_alone(other: Other) -> None:
    too_large = HEAD.pack((20 << 20) + 1, pb.LOCAL_METHOD_FETCH)
    for sent in (b"\xff" * 100, too_large, b""):
        with closing(await _greeted(other)) as peer:
            peer.socket.sendall(sent)
            peer.socket.shutdown(socket.SHUT_WR)
            assert await asyncio.to_thread(lambda: peer.ended)
    runs = Runs.of([Run(0, 8)])
    assert await other.read(runs) == other.expected(runs)


@pytest.mark.parametrize(
    "runs",
    [pb.ArenaRuns(offsets=bytes(8)), pb.ArenaRuns(offsets=bytes(7), sizes=bytes(7))],
    ids=["an offset without a size", "part of a number"],
)
async def test_runs_that_do_not_belong_together_are_refused(other: Other, runs: pb.ArenaRuns) -> None:
    with closing(await _greeted(other)) as peer:
        request = pb.FetchRequest(node=NODE, runs=runs)
        reason, said = await asyncio.to_thread(peer.refused, pb.LOCAL_METHOD_FETCH, request)
    assert reason == "INVALID_REQUEST"
    assert "one size, of 8 bytes" in said


async def _greeted(other: Other) -> Peer:
    peer = Peer(await asyncio.to_thread(socket.create_connection, (other.place.host, other.place.port)))
    request = pb.DirectRequest(nonce=other.place.secret)
    await asyncio.to_thread(peer.call, pb.LOCAL_METHOD_DIRECT, request, pb.DirectResponse)
    return peer


async def test_a_read_that_is_cancelled_writes_nothing_afterwards(other: Other) -> None:
    into = bytearray(SIZE)
    read = asyncio.create_task(other.lines.read(other.place, NODE, Runs.of([Run(0, SIZE)]), [memoryview(into)]))
    await asyncio.sleep(0)
    read.cancel()
    with pytest.raises(asyncio.CancelledError):
        await read
    into[:] = bytes(SIZE)
    await other.read(Runs.of([Run(0, 8)]))
    assert not any(into)


async def test_reads_of_a_node_that_hangs_hold_up_no_others_and_end_when_the_lines_close(other: Other) -> None:
    runs, lines = Runs.of([Run(0, 8)]), other.lines
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = BytePlace("127.0.0.1", silent.getsockname()[1], bytes(16))
        reads = [asyncio.create_task(lines.read(place, 8, runs, [memoryview(bytearray(8))])) for _ in range(300)]
        await soon(lambda: lines._used)
        assert await asyncio.wait_for(other.read(runs), 100.0) == other.expected(runs)
        await asyncio.wait_for(lines.close(), 200.0)
        ended = await asyncio.gather(*reads, return_exceptions=True)
        assert {type(error) for error in ended} == {Refusal}
