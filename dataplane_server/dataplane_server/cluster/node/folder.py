"""The folder of a node in shared memory: the arena's file, its id, and the socket of the node's clients.

Other users may write beside it, so a folder that is there already must be this user's, and no other's to write.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from dataplane_server.storage.arena import Arena
from dataplane_server.storage.arena_file import arena_bytes, is_used

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder in it is made safely
_OTHERS_WRITE = 0o022
_ID_DIGITS = 8


class NodeFolder:
    """Makes the folder, if it is not there. OSError if it is not safe to use."""

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o711, exist_ok=True)
        if not _is_safe(path):
            raise PermissionError(f"{path} is not a folder that only this user may write to; remove it")
        self.path = path
        self.arena = path / "arena"
        self.socket = path / "socket"
        self._id = path / "arena-id"
        self._incarnation = path / "incarnation"

    def arena_id(self, arena: Arena) -> str:
        """Names the values in the arena: another id once they are lost."""
        if arena.fresh or not self._id.exists():
            self._incarnation.unlink(missing_ok=True)
            _write(self._id, secrets.token_hex(16))
        return self._id.read_text()

    def cache_bytes(self, cache_at: int, wanted: int) -> int:
        """Of the cache that is behind the values, from byte cache_at of the arena. An arena that is there keeps its."""
        return max(0, arena_bytes(self.arena) - cache_at) if self.arena.exists() else wanted

    @property
    def incarnation(self) -> str:
        """Of the coordinator whose values the arena has; empty if there was none."""
        return self._incarnation.read_text() if self._incarnation.exists() else ""

    @incarnation.setter
    def incarnation(self, name: str) -> None:
        if name != self.incarnation:
            _write(self._incarnation, name)

    def remove(self) -> None:
        """Remove the folder with the arena's file, which has all values."""
        shutil.rmtree(self.path, ignore_errors=True)


def _is_safe(path: Path) -> bool:
    """Whether it is a folder, not a link to one, that this user owns and no other may write to. OSError."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.rename(path)


def sweep(name: str, alive: Iterable[str]) -> None:
    """Remove folders that nodes of former Ray clusters of this machine have left, unless a process uses the arena.
    alive: ids of the nodes of Ray, whose folders stay.
    """
    kept = {default_folder(name, ray_node) for ray_node in alive}
    for folder in set(_SHARED_MEMORY.glob(f"rl-dataplane-{name}-{'[0-9a-f]' * _ID_DIGITS}")) - kept:
        with contextlib.suppress(OSError):  # just removed
            if _is_safe(folder) and not is_used(folder / "arena"):
                for file in folder.iterdir():
                    file.unlink()
                folder.rmdir()


def default_folder(name: str, ray_node: str) -> Path:
    """Of a node of the data plane of this name."""
    return _SHARED_MEMORY / f"rl-dataplane-{name}-{ray_node[:_ID_DIGITS]}"
