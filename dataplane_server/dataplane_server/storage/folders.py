"""Folders: names of files that are on stable storage, and a folder that must stay at its path."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Wait until the names of files in a folder are on stable storage."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
