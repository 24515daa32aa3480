"""The mirrors that a node keeps: what is filled and what follows is there, also in the next life of the actor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from tests.waiting import soon

from dataplane_server.cluster.messages import BytePlace, Mirrored
from dataplane_server.cluster.node.byte_lines import ByteLines
from dataplane_server.cluster.node.kept_mirrors import KeptMirrors
from dataplane_server.cluster.node.port import NodePort
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Run, Runs
from dataplane_server.storage.arena import Arena

SIZE = 20 << 20
"""Three chunks of a fill."""
PLACE = BytePlace("127.0.0.1", 1, b"")


class Source:
    """A node's arena, and lines to it: bytes are on their way until `go` is set, those that were asked for first for
    some turns of the loop longer.
    """

    def __init__(self) -> None:
        self.arena = Arena(SIZE)
        self.go = asyncio.Event()
        self.go.set()
        self.asked: list[Runs] = []
        self.gone = False

    def write(self, offset: int, data: bytes) -> Runs:
        self.arena.view(Run(offset, len(data)))[:] = data
        return Runs.of([Run(offset, len(data))])

    async def read(self, place: BytePlace, node: int, runs: Runs, into: Sequence[memoryview]) -> None:
        assert (place, node) == (PLACE, 3)
        self.asked.append(runs)
        taken = [bytes(self.arena.view(run)) for run in runs]
        turns = 20 if len(self.asked) == 1 else 0
        await self.go.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        if self.gone:
            raise Refusal(Reason.NODE_LOST, "it is gone")
        for view, data in zip(into, taken, strict=True):
            view[:] = data


@pytest.fixture
def source() -> Source:
    return Source()


def begin(folder: Path, source: Source) -> KeptMirrors:
    return KeptMirrors(folder, cast("ByteLines", source))


@pytest.fixture
async def mirrors(tmp_path: Path, source: Source) -> AsyncIterator[KeptMirrors]:
    """With a mirror of node 3, still empty."""
    mirrors = begin(tmp_path, source)
    await mirrors.make("m", 3, SIZE)
    yield mirrors
    mirrors.close()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bytes_at(mirrors: KeptMirrors, offset: int, size: int) -> bytes:
    arena = mirrors.arena_of(3)
    assert arena is not None
    return bytes(arena.view(Run(offset, size)))


async def test_a_fill_takes_all_bytes_up_to_an_offset(mirrors: KeptMirrors, source: Source) -> None:
    for offset in (0, (8 << 20) - 3, (16 << 20) + 8):
        source.write(offset, b"abcdef")
    assert await mirrors.fill("m", PLACE, (16 << 20) + 11) == Mirrored.DONE
    assert [bytes_at(mirrors, offset, 6) for offset in (0, (8 << 20) - 3)] == [b"abcdef"] * 2
    assert bytes_at(mirrors, (16 << 20) + 8, 6) == b"abc\0\0\0"


async def test_a_write_is_there_once_it_was_followed(mirrors: KeptMirrors, source: Source) -> None:
    source.write(8, b"no")
    runs = [source.write(16, b"one"), source.write(64, b"two")]
    assert await mirrors.follow("m", PLACE, Runs.of([run for of in runs for run in of])) == Mirrored.DONE
    assert [bytes_at(mirrors, offset, 3) for offset in (8, 16, 64)] == [b"\0\0\0", b"one", b"two"]


async def test_a_fill_overwrites_no_write_with_what_it_read_before(mirrors: KeptMirrors, source: Source) -> None:
    source.write(16, b"old")
    source.go.clear()
    filling = asyncio.create_task(mirrors.fill("m", PLACE, SIZE))
    await soon(lambda: source.asked)
    following = asyncio.create_task(mirrors.follow("m", PLACE, source.write(16, b"new")))
    await asyncio.sleep(0.01)
    source.go.set()
    assert [await following, await filling] == [Mirrored.DONE] * 2
    assert bytes_at(mirrors, 16, 3) == b"new"


async def test_a_node_that_gives_no_bytes_is_told_of(mirrors: KeptMirrors, source: Source) -> None:
    source.gone = True
    assert await mirrors.follow("m", PLACE, source.write(16, b"x")) == Mirrored.NO_SOURCE
    assert await mirrors.fill("m", PLACE, 8) == Mirrored.NO_SOURCE


async def test_a_mirror_that_was_removed_follows_and_fills_no_more(mirrors: KeptMirrors, source: Source) -> None:
    source.go.clear()
    filling = asyncio.create_task(mirrors.fill("m", PLACE, SIZE))
    await soon(lambda: source.asked)
    mirrors.drop("m")
    source.go.set()
    assert await filling == Mirrored.UNKNOWN
    assert await mirrors.follow("m", PLACE, source.write(16, b"x")) == Mirrored.UNKNOWN
    assert len(source.asked) == 1
    assert mirrors.arena_of(3) is None


async def test_a_mirror_that_is_removed_while_it_is_made_leaves_nothing(mirrors: KeptMirrors, tmp_path: Path) -> None:
    making = asyncio.create_task(mirrors.make("late", 4, SIZE))
    await asyncio.sleep(0)
    assert set(mirrors.names) == {"m", "late"}
    mirrors.drop("late")
    await making
    assert (mirrors.names, names_in(tmp_path)) == (("m",), ["mirror-3-m"])


async def test_the_next_life_of_the_actor_has_the_mirrors(mirrors: KeptMirrors, source: Source, tmp_path: Path) -> None:
    await mirrors.follow("m", PLACE, source.write(16, b"one"))
    mirrors.close()
    (tmp_path / "mirror-4-small").write_bytes(b"of another size")
    (tmp_path / "mirror-4-late.new").write_bytes(b"was being made")
    (tmp_path / "arena").write_bytes(b"no mirror")
    again = begin(tmp_path, source)
    assert again.names == ("m",)
    assert bytes_at(again, 16, 3) == b"one"
    assert names_in(tmp_path) == ["arena", "mirror-3-m"]
    again.close()


async def test_a_mirror_that_cannot_be_opened_now_stays(mirrors: KeptMirrors, source: Source, tmp_path: Path) -> None:
    """It may have the only copy of the rows of a node that has ended."""
    with pytest.raises(OSError, match="another server"):
        begin(tmp_path, source)
    assert names_in(tmp_path) == ["mirror-3-m"]


async def test_other_nodes_read_the_newest_mirror_of_a_node(mirrors: KeptMirrors, source: Source) -> None:
    await mirrors.make("newer", 3, SIZE)
    await mirrors.follow("newer", PLACE, source.write(16, b"one"))
    port, lines, read = NodePort(mirrors.arena_of), ByteLines(), bytearray(3)
    place = port.open("127.0.0.1")
    await lines.read(place, 3, Runs.of([Run(16, 3)]), [memoryview(read)])
    assert read == b"one"
    with pytest.raises(Refusal, match="node 4"):
        await lines.read(place, 4, Runs.of([Run(16, 3)]), [memoryview(read)])
    await asyncio.gather(lines.close(), port.close())
