"""A disk that keeps what was synced, and of the rest whatever the dice leave.

Files are real ones in a folder. While `simulated`, the calls of `os` and `Path` that sync, write, rename and remove
are points at which a fuse may burn out: then the process is dead, and each later call says so, or the call fails with
EIO or ENOSPC. A process that is killed leaves files as they are. A loss of power leaves the names and sectors that were
synced; each later change of a name and each later write to a sector stays or is undone, and a sector may be torn.

A sync that fails loses writes: they look right until they are read from the disk, and no later sync writes them, unless
they are made again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from dataplane_server.durability.frames import HEAD

SECTOR = 512
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder of its own in it


def in_memory() -> Path | None:
    """Where files are quick: a folder in memory if the machine has one, None for where temporary files go."""
    return _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None


class Died(SystemExit):  # asyncio ends its loop for this one
    """The process has ended."""


class Disk:
    """fuse: how many points are left until something happens. dead: the process has ended. quiet: a process that dies
    while it writes a record learns so later, from `dead`. between: called at each point, for what others do meanwhile.
    note: called with the name of each point. spared: files whose syncs do not fail begin with it.
    """

    def __init__(self, folder: Path, dice: Random, note: Callable[[str], object]) -> None:
        self.folder = folder
        self.fuse: int | None = None
        self.dead = self.quiet = self.erred = False
        self.between: Callable[[], object] | None = None
        self.spared = "-"
        self._dice = dice
        self._note = note
        self._names: dict[str, int] = {}  # synced, with the number of the file
        self._content: dict[int, bytes] = {}  # synced, by number of the file
        self._clean: dict[int, bytes] = {}  # of files whose sync failed: what looks as if it were synced
        self._dirty: dict[int, set[int]] = {}  # sectors that were written since a sync, by number of the file
        self._removed: list[int] = []  # descriptors, so that no other file gets the number

    @contextmanager
    def simulated(self) -> Iterator[None]:
        points: list[tuple[Any, str, Callable[..., object]]] = [
            (os, "fsync", self._sync),
            (os, "fdatasync", self._sync),
            (os, "pwrite", self._pwrite(os.pwrite)),
            (os, "posix_fallocate", self._allocate(os.posix_fallocate)),
            (os, "posix_fadvise", lambda file, *_: self._forget_cached(file)),
            (os, "ftruncate", self._around("truncate", os.ftruncate)),
            (Path, "rename", self._around("rename", Path.rename)),
            (Path, "replace", self._around("replace", Path.replace)),
            (Path, "unlink", self._around("remove", Path.unlink)),
        ]
        with ExitStack() as stack:
            for owner, name, point in points:
                stack.enter_context(mock.patch.object(owner, name, point))
            yield
        self._let_go()

    def restart(self) -> None:
        """Another process begins, on the files as they are."""
        self.dead = self.erred = False
        self.fuse = None

    def die(self) -> None:
        self.dead = True
        raise Died

    def has_lost_writes(self, name: str) -> bool:
        """Whether a sync of a file has failed, and the file was not read from the disk since."""
        return self._numbers().get(name) in self._clean

    # -- points --------------------------------------------------------------------------------------------------------

    def _burns_out(self, point: str) -> bool:
        if self.dead:
            raise Died
        self._note(point)
        if self.between is not None:
            self.between()
            if self.dead:
                raise Died
        if self.fuse is None:
            return False
        self.fuse -= 1
        if self.fuse:
            return False
        self.fuse = None
        return True

    def _point(self, point: str) -> None:
        if self._burns_out(point):
            self.die()

    def _fail(self, number: int) -> None:
        self.erred = True
        raise OSError(number, os.strerror(number))

    def _around(self, what: str, real: Callable[..., object]) -> Callable[..., object]:
        def called(of: Path | int, *rest: Any, **options: Any) -> object:
            self._point(what)
            lost = None if isinstance(of, int) else rest[0] if rest else of
            if lost is not None and lost.exists():
                self._removed.append(os.open(lost, os.O_RDONLY))
            answer = real(of, *rest, **options)
            self._point(f"{what} done")
            return answer

        return called

    def _pwrite(self, real: Callable[[int, bytes, int], int]) -> Callable[[int, bytes, int], int]:
        def pwrite(file: int, data: bytes, position: int) -> int:
            if self.dead and self.quiet:
                return len(data)
            sectors = range(position // SECTOR * SECTOR, position + len(data), SECTOR)
            self._dirty.setdefault(os.fstat(file).st_ino, set()).update(sectors)
            if not self._burns_out("write"):
                return real(file, data, position)
            fails = not self._dice.randrange(4)
            real(file, data[: self._dice.randrange(HEAD.size if fails else len(data) + 1)], position)
            if fails:
                self._fail(errno.EIO)
            self.dead = True
            if not self.quiet:
                raise Died
            return len(data)

        return pwrite

    def _allocate(self, real: Callable[[int, int, int], None]) -> Callable[[int, int, int], None]:
        def allocate(file: int, offset: int, size: int) -> None:
            if self._burns_out("allocate"):
                if self._dice.randrange(2):
                    self.die()
                self._fail(errno.ENOSPC)
            real(file, offset, size)

        return allocate

    def _sync(self, file: int) -> None:
        if self._burns_out("sync"):
            if self._dice.randrange(4) or Path(os.readlink(_path(file))).name.startswith(self.spared):  # noqa: PTH115  # a link of the kernel
                self.die()
            self._lose_writes(file)
            self._fail(errno.EIO)
        info = os.fstat(file)
        if stat.S_ISDIR(info.st_mode):
            self._names = self._numbers()
            self._let_go()
        else:
            content = _path(file).read_bytes()
            self._content[info.st_ino] = self._written(info.st_ino, content)
            if info.st_ino in self._clean:
                self._clean[info.st_ino] = content
            self._dirty.pop(info.st_ino, None)
        self._point("synced")

    def _lose_writes(self, file: int) -> None:
        info = os.fstat(file)
        if not stat.S_ISDIR(info.st_mode):
            content = _path(file).read_bytes()
            self._content[info.st_ino] = self._mixed(self._content.get(info.st_ino, b""), content, 0.5)
            self._clean[info.st_ino] = content
            self._dirty.pop(info.st_ino, None)

    def _forget_cached(self, file: int) -> None:
        self._point("forget cached")
        number = os.fstat(file).st_ino
        if self._clean.pop(number, None) is not None:
            _path(file).write_bytes(self._content[number])

    # -- what is on the disk -------------------------------------------------------------------------------------------

    def lose_power(self) -> None:
        """The machine stops. What the folder has then is synced."""
        stays, numbers = self._dice.choice([0.0, 0.5, 0.5, 1.0]), self._numbers()
        names: dict[str, int] = {}
        for name in sorted(numbers.keys() | self._names.keys()):
            number = (numbers if self._dice.random() < stays else self._names).get(name)
            if number is not None:
                names[name] = number
        for name, number in numbers.items():  # a file that was renamed has one of its names
            if number in self._names.values() and number not in names.values():
                names[name] = number
        found = {number: (self.folder / name).read_bytes() for name, number in numbers.items()}
        contents = {name: self._after_loss(number, found.get(number), stays) for name, number in names.items()}
        for path in [self.folder / name for name in numbers]:
            os.unlink(path)  # noqa: PTH108  # Path.unlink is a point
        for name, content in contents.items():
            (self.folder / name).write_bytes(content)
        self._let_go()
        self._names = self._numbers()
        self._content = {number: (self.folder / name).read_bytes() for name, number in self._names.items()}
        self._clean.clear()
        self._dirty.clear()

    def _after_loss(self, number: int, found: bytes | None, stays: float) -> bytes:
        synced = self._content.get(number, b"")
        return synced if found is None else self._mixed(synced, self._written(number, found), stays)

    def _written(self, number: int, content: bytes) -> bytes:
        """What the disk has once this content is synced."""
        clean, on_disk, end = self._clean.get(number), self._content.get(number, b""), len(content)
        if clean is None:
            return content
        places = [slice(at, min(at + SECTOR, end)) for at in range(0, end, SECTOR)]
        whole = end if end == len(clean) else end - 1  # the end of a file that was cut is written
        again, most = self._dirty.get(number, ()), min(whole, len(on_disk))
        stays = [place.start not in again and place.stop <= most and clean[place] == content[place] for place in places]
        return b"".join([(on_disk if same else content)[place] for place, same in zip(places, stays, strict=True)])

    def _mixed(self, old: bytes, new: bytes, stays: float) -> bytes:
        """Each sector is the old one, the new one, or torn."""
        size = len(new if self._dice.random() < stays else old)
        result = bytearray(old[:size].ljust(size, b"\0"))
        for at in range(0, min(size, len(new)), SECTOR):
            sector = new[at : min(at + SECTOR, size)]
            if sector != result[at : at + SECTOR] and self._dice.random() < stays:
                whole = stays == 1 or self._dice.randrange(8)
                end = len(sector) if whole else self._dice.randrange(len(sector))
                result[at : at + end] = sector[:end]
        return bytes(result)

    def _numbers(self) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in self.folder.iterdir()}

    def _let_go(self) -> None:
        while self._removed:
            os.close(self._removed.pop())


def _path(file: int) -> Path:
    """Through which an open file can be opened again, with other access."""
    return Path(f"/proc/self/fd/{file}")
