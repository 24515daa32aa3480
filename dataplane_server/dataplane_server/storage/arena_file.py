"""A file for the arena that outlives the server's process: the next server finds the values of the former one.

The file has the bytes that clients map, and a page behind them. There servers count the lives of the file: a life
begins when a server opens it. The rest of the page is for `durability.mark`. The file gets its whole space before it
gets its name, so a file of that name is complete unless another process changed it.

Who uses the file is told by locks on open file descriptions (OFD locks). Such a lock lasts as long as a descriptor or a
mapping that was made from the locked one, in any process; the kernel drops it when the last of them is gone, by
whatever cause. What is locked are numbers, not the bytes at these places:

- The server excludes other servers by a lock that begins at byte 2**62 and is as long as its process id.
- All clients of life n have the same two open files, to read and to write. Both lock byte `size_bytes + n`.

A process that has a descriptor can change the descriptor's lock, and so hide all clients of its life, or keep the next
server from starting. These locks tell of clients that live on, not of clients that mean harm; `untruncatable` says what
else those can do.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from dataplane_server.storage.folders import sync_path
from dataplane_server.storage.untruncatable import can_guard, open_untruncatable

_SERVER_LOCK = 1 << 62
_LIVES = struct.Struct("<Q")
_MOST_LIVES = 1 << 40
"""More than a file will ever see, and small enough for the numbers that are locked."""
_LOCK = struct.Struct("hhqqi4x")  # struct flock: kind, whence, start, length, process (not told of OFD locks)
_BLOCK_BYTES = 512  # the unit of st_blocks, on every file system


class ArenaFile:
    """The file at path, open, locked against other servers, with space for size_bytes.

    descriptor: the server's own. for_clients: to send to them, one to read and one to write; none unless shared.
    fresh: no former life left values. guarded: clients' descriptors cannot truncate.
    Blocks until the space of a new file is allocated; on tmpfs that takes about a second for 10 GiB. Raises OSError if
    another server uses the file or there is no space for it, ValueError if the file has another size or is damaged.
    """

    def __init__(self, path: Path, size_bytes: int, *, shared: bool = False) -> None:
        self.path = path
        self._size = size_bytes
        self.guarded = can_guard()
        self.descriptor, self.fresh = _open(path, size_bytes + mmap.PAGESIZE)
        with closed_on_error(self.descriptor):
            self._life = self._begin_life()
            self.for_clients: tuple[int, ...] = self._open_for_clients() if shared else ()

    def _begin_life(self) -> int:
        """Count one life more, and return its number."""
        (lives,) = _LIVES.unpack(os.pread(self.descriptor, _LIVES.size, self._size))
        if lives > _MOST_LIVES:
            raise ValueError(f"{self.path} is damaged: it counts {lives} servers that have used it")
        os.pwrite(self.descriptor, _LIVES.pack(lives + 1), self._size)
        return int(lives) + 1

    def _open_for_clients(self) -> tuple[int, ...]:
        with contextlib.ExitStack() as closing:
            opened = [self._open_for_client(access, closing) for access in (os.O_RDONLY, os.O_RDWR)]
            closing.pop_all()
        return tuple(opened)

    def _open_for_client(self, access: int, closing: contextlib.ExitStack) -> int:
        file = open_untruncatable(f"/proc/self/fd/{self.descriptor}", access)
        closing.callback(os.close, file)
        _lock(file, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, self._size + self._life, 1)
        return file

    def read_page(self) -> bytes:
        """The page behind the values. OSError."""
        return os.pread(self.descriptor, mmap.PAGESIZE, self._size)

    def write_page(self, data: bytes, place: int) -> None:
        """Write bytes to a place in that page. OSError."""
        written = 0
        while written < len(data):
            written += os.pwrite(self.descriptor, data[written:], self._size + place + written)

    def sync(self) -> None:
        """Wait until all values are on stable storage. OSError if that fails."""
        os.fdatasync(self.descriptor)

    def holders(self) -> list[int]:
        """The former lives of which a client still has a descriptor or a mapping, ascending. At most two system calls
        for each, and one.
        """
        found = []
        unknown = [(self._size, self._size + self._life)]
        while unknown:
            start, end = unknown.pop()
            kind, locked, length = _lock(self.descriptor, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, end - start)
            if kind != fcntl.F_UNLCK:
                first = max(start, locked)  # a client may have locked more than its byte; length 0 is to the end
                found.append(first - self._size)
                rest = [(start, first), (locked + length if length else end, end)]
                unknown += [(start, end) for start, end in rest if start < end]
        return sorted(found)

    def close(self) -> None:
        """Let another server open the file, although a mapping of this one may be left."""
        _lock(self.descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _SERVER_LOCK, 0)
        for descriptor in (self.descriptor, *self.for_clients):
            os.close(descriptor)


def arena_bytes(path: Path) -> int:
    """How many bytes the arena has whose file is at path. OSError."""
    return path.stat().st_size - mmap.PAGESIZE


def is_used(path: Path) -> bool:
    """Whether a server or a client has the arena at path. OSError if it cannot be opened."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _lock(file, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, 0, 0)[0] != fcntl.F_UNLCK
    finally:
        os.close(file)


@contextlib.contextmanager
def closed_on_error(file: int) -> Iterator[None]:
    """Close a descriptor if the block raises."""
    try:
        yield
    except BaseException:
        os.close(file)
        raise


def _open(path: Path, size: int) -> tuple[int, bool]:
    """The file, locked, and whether it was made now."""
    try:
        return _open_complete(path, size), False
    except FileNotFoundError:
        return _make(path, size), True


def _open_complete(path: Path, size: int) -> int:
    file = _open_locked(path, os.O_RDWR)
    with closed_on_error(file):
        found = os.fstat(file)
        if found.st_size != size:
            raise ValueError(
                f"{path} has {found.st_size} bytes, but this server's memory needs {size}: start with the --memory "
                f"that the file was made with, or empty the folder {path.parent}, which loses the values in it"
            )
        if found.st_blocks * _BLOCK_BYTES < size:  # it was copied, or a client freed pages
            _allocate(file, path, size)
    return file


def _make(path: Path, size: int) -> int:
    unfinished = path.with_name(f"{path.name}.new")
    file = _open_locked(unfinished, os.O_RDWR | os.O_CREAT)
    with closed_on_error(file):
        try:
            if path.exists():
                raise OSError(errno.EBUSY, "another server made this file just now", str(path))
            _allocate(file, path, size)
            os.fsync(file)  # a loss of power leaves no file of this name that lacks space
            unfinished.rename(path)
            sync_path(path.parent)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    return file


def _open_locked(path: Path, flags: int) -> int:
    """Open a file for the only server that uses it."""
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    with closed_on_error(file):
        with contextlib.suppress(PermissionError):  # the file is another user's
            os.fchmod(file, 0o600)  # a volume's owner may have opened it to a group
        try:
            _lock(file, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, _SERVER_LOCK, os.getpid())
        except BlockingIOError:
            _, _, process = _lock(file, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, _SERVER_LOCK, 0)
            raise OSError(errno.EBUSY, f"another server, process {process}, uses this file", str(path)) from None
        if not _is_at(path, file):
            raise OSError(errno.EBUSY, "another process renamed or removed this file just now", str(path))
    return file


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _allocate(file: int, path: Path, size: int) -> None:
    """Give the file its size and all its space, so that no write to its mapping can fail for want of it."""
    volume = os.statvfs(file)
    missing = size - os.fstat(file).st_blocks * _BLOCK_BYTES - volume.f_bavail * volume.f_frsize
    try:
        if missing > 0 and volume.f_blocks:  # 0: a tmpfs without a limit; else ask before the volume is full for all
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(file, size)
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        lack = f": {missing} bytes are missing in {path.parent}" if missing > 0 else ""
        raise OSError(error.errno, f"cannot allocate {size} bytes: {error.strerror}{lack}", str(path)) from error


def _lock(file: int, command: int, kind: int, start: int, length: int) -> tuple[int, int, int]:
    """Set or query an OFD lock (length 0: to the end of all numbers). Of a query, the kind, start and length of a lock
    in the way; the kind F_UNLCK if there is none.
    """
    answer = fcntl.fcntl(file, command, _LOCK.pack(kind, os.SEEK_SET, start, length, 0))
    kind, _, start, length, _ = _LOCK.unpack(answer)
    return kind, start, length
