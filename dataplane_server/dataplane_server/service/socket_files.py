"""Socket files, and whose they are.

A path says nothing about who listens: if somebody deletes the file of a running server, another server may make its own
there. So a file is told by its inode, and a server that stops leaves files of others alone. gRPC removes whatever is at
its paths when it stops; a file of another server is kept by a second name until then, and is back within milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

_TICK_S = 0.001
_REMOVED_S = 1.0


class SocketFile:
    """A file that this server has made. Make this when it has; raises OSError if it has not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = _inode(path)

    @property
    def is_there(self) -> bool:
        """Whether it is still the file at its path."""
        with contextlib.suppress(OSError):
            return _inode(self.path) == self._inode
        return False

    def remove(self) -> None:
        """Remove it, if it is there."""
        if self.is_there:
            self.path.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def others_kept(files: Iterable[SocketFile]) -> AsyncIterator[None]:
    """A block in which gRPC removes what is at the paths of these files, perhaps a moment after its end."""
    tasks = [asyncio.create_task(_keep(file.path)) for file in files if file.path.exists() and not file.is_there]
    await asyncio.sleep(0)  # they have the second names now
    try:
        yield
    finally:
        await asyncio.gather(*(asyncio.wait_for(task, _REMOVED_S) for task in tasks), return_exceptions=True)


async def _keep(path: Path) -> None:
    """Put what is at a path back when it was removed."""
    kept = path.with_name(f"{path.name}.{os.getpid()}")
    os.link(path, kept)
    try:
        while os.access(path, os.F_OK):  # noqa: ASYNC110  # gRPC does not tell when it has removed it
            await asyncio.sleep(_TICK_S)
        os.rename(kept, path)  # noqa: PTH104  # one call of the system, which does not wait
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(kept)  # noqa: PTH108


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
