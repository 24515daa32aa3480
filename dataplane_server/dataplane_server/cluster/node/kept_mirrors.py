"""The mirrors that a node keeps of other nodes: each is a file like an arena's, with the same bytes at equal offsets.

The coordinator decides which there are, and finishes a write on a mirrored node only when its bytes are here. So a
mirror that was filled once has the bytes of all rows. It outlives the node's actor like the arena.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from dataplane_server.cluster.messages import BytePlace, Mirrored
from dataplane_server.cluster.node.byte_lines import ByteLines
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.values import Run, Runs
from dataplane_server.storage.arena import Arena
from dataplane_server.storage.arena_file import arena_bytes

_PREFIX = "mirror-"
_CHUNK_BYTES = 8 << 20


@dataclass(eq=False)
class _KeptMirror:
    """node: whose bytes it has. filling: held by a fill and by writes meanwhile, so that no write is overwritten by
    what a fill has read before it.
    """

    node: int
    arena: Arena
    filling: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_filling: bool = False


class KeptMirrors:
    """Takes those that a former life of the actor left in the folder. lines: by which it fetches from now on."""

    def __init__(self, folder: Path, lines: ByteLines) -> None:
        self._folder = folder
        self.lines = lines
        self._kept: dict[str, _KeptMirror] = {}
        self._making: set[str] = set()
        for path in folder.glob(f"{_PREFIX}*"):
            self._take(path)

    def _take(self, path: Path) -> None:
        """OSError if it cannot be opened now. It stays then: nothing else may have its bytes."""
        try:
            if path.suffix == ".new":
                raise ValueError(f"{path} was being made")
            _, node, name = path.name.split("-")
            self._kept[name] = _KeptMirror(int(node), Arena(arena_bytes(path), file=path))
        except ValueError:  # or it is of another size
            path.unlink()

    @property
    def names(self) -> tuple[str, ...]:
        """Also of those that are being made, which the next coordinator does not know."""
        return tuple({*self._kept, *self._making})

    def arena_of(self, node: int) -> Arena | None:
        """The newest mirror of a node."""
        return next((kept.arena for kept in reversed(self._kept.values()) if kept.node == node), None)

    async def make(self, name: str, node: int, size_bytes: int) -> None:
        """A mirror without bytes. Takes about a second for 10 GiB. OSError if there is no space."""
        self._making.add(name)
        try:
            arena = await asyncio.to_thread(Arena, size_bytes, file=self._path(name, node))
            self._kept[name] = _KeptMirror(node, arena)
            if name not in self._making:
                self.drop(name)
        finally:
            self._making.discard(name)

    async def fill(self, name: str, source: BytePlace, end: int) -> Mirrored:
        """Fetch all bytes of a node up to an offset."""
        kept = self._kept.get(name)
        if kept is None:
            return Mirrored.UNKNOWN
        kept.is_filling = True
        for start in range(0, end, _CHUNK_BYTES):
            chunk = Runs.of([Run(start, min(_CHUNK_BYTES, end - start))])
            async with kept.filling:
                outcome = await self._fetch(name, kept, source, chunk)
            if outcome != Mirrored.DONE:
                return outcome
        kept.is_filling = False
        return Mirrored.DONE

    async def follow(self, name: str, source: BytePlace, runs: Runs) -> Mirrored:
        """Fetch the bytes of a write."""
        kept = self._kept.get(name)
        if kept is None:
            return Mirrored.UNKNOWN
        async with kept.filling if kept.is_filling else contextlib.nullcontext():
            return await self._fetch(name, kept, source, runs)

    async def _fetch(self, name: str, kept: _KeptMirror, source: BytePlace, runs: Runs) -> Mirrored:
        if self._kept.get(name) is not kept:
            return Mirrored.UNKNOWN
        into = [kept.arena.view(run) for run in runs]
        try:
            await self.lines.read(source, kept.node, runs, into)
        except Refusal:
            return Mirrored.NO_SOURCE
        return Mirrored.DONE

    def drop(self, name: str) -> None:
        """Remove a mirror, if there is one of this name, or is to be. Reads of it that are under way go on."""
        self._making.discard(name)
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._path(name, kept.node).unlink(missing_ok=True)
            kept.arena.close()

    def close(self) -> None:
        """Let another actor take the files. No fetch may be under way."""
        for kept in self._kept.values():
            kept.arena.close()
        self._kept.clear()

    def _path(self, name: str, node: int) -> Path:
        return self._folder / f"{_PREFIX}{node}-{name}"
