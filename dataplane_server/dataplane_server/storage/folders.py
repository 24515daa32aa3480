"""Folders: what is on stable storage, locks between processes, and a folder that must stay at its path."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync_path(path: Path) -> None:
    """Wait until a file, or the names of the files in a folder, are on stable storage."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    """A block with a lock of flock on a file, which is made for that. how: as of flock. OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, how)
        yield
    finally:
        os.close(file)


class FolderInUse:
    """A folder that a process uses by its path. Keeps it open until `close`.

    identity: what no other folder of the host has; another process gives it to find the same one.
    """

    def __init__(self, path: Path, identity: str | None = None) -> None:
        """Raises OSError if there is no such folder, or if the path leads to one with another identity."""
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        found = os.fstat(self._descriptor)
        self.identity = f"{found.st_dev}:{found.st_ino}"
        if identity not in (None, self.identity):
            self.close()
            raise self._moved()

    @property
    def anchor(self) -> Path:
        """A path of this process to the folder, wherever it is."""
        return Path(f"/proc/self/fd/{self._descriptor}")

    def check(self) -> None:
        """OSError if the path is not that of the folder any more: files made there would be in another one."""
        try:
            in_place = os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            in_place = False
        if not in_place:
            raise self._moved()

    def _moved(self) -> OSError:
        return OSError(errno.ESTALE, f"{self._path} was moved or replaced while this process used it")

    def close(self) -> None:
        os.close(self._descriptor)
