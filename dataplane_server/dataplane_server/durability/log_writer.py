"""Appends records to the log. `docs/format.md` describes the bytes.

A record is in the kernel when `append` returns, so it survives the end of the process by whatever cause. It survives
that of the machine after `sync`. The space of a segment is allocated before its first record, so only a new segment can
find the disk full.

A segment gets its name when its header is complete, so readers never meet half a header. If the folder was moved or
replaced, no segment begins: it would be in another folder than the others.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path

import msgpack

from dataplane_server.durability.frames import frame_of
from dataplane_server.durability.log_reader import FORMAT, MAGIC, LogReader, segment_path, segments
from dataplane_server.durability.mark import Marks
from dataplane_server.storage.arena_file import closed_on_error
from dataplane_server.storage.folders import FolderInUse, sync_path

_UNNAMED = "log.new"


class LogWriter:
    """Appends records, as the only writer of a folder. next_record: number of the next record."""

    next_record: int

    def __init__(
        self,
        folder: Path,
        first: int,
        header: Mapping[str, object],
        *,
        segment_bytes: int = 16 << 20,
        synced: bool = False,
        marks: Marks | None = None,
    ) -> None:
        """Begins a segment at record `first`, where a reader has found the end of the log and has cut it. Replaces a
        segment without records. FileExistsError if the log has records from `first` on; OSError if there is no room.

        header: more for the header of every segment, of values that MessagePack knows. synced: segments are written
        with zeros and synced before they are used, so that `sync` only has to write the records. marks: where to note
        the segment, and how far it is acknowledged: with `synced` by `sync`, else by `append`.
        """
        _refuse_to_replace(folder, first)
        self.next_record = first
        self._folder = folder
        self._in_use = FolderInUse(folder)
        self._header = header
        self._segment_bytes = segment_bytes
        self._synced = synced
        self._marks = marks
        self._file: int | None = None
        self._position = self._size = 0
        self._refusal = ""
        self._begin_segment(0)

    def append(self, payload: bytes) -> None:
        """Append a record of 1 byte to 1 GiB; ValueError for others. Blocks while the kernel copies it, and while it
        allocates the next segment.

        OSError if that fails, and from every further call. The record is not in the log then, unless what failed is the
        mark that counts it.
        """
        frame = frame_of(payload)
        if self._file is None or self._refusal:
            raise OSError(errno.EBADF, f"the log in {self._folder} takes no more records: {self._refusal}")
        try:
            if self._position + len(frame) > self._size:
                self._begin_segment(len(frame))
            _write(self._file, frame, self._position)
            self._position += len(frame)
            if self._marks is not None and not self._synced:
                self._marks.acknowledge(self._position)
        except OSError as error:
            self._refusal = f"record {self.next_record} failed with {error}"
            raise
        self.next_record += 1

    def sync(self) -> None:
        """Wait until all records are on stable storage. OSError as `append`."""
        if self._file is None or self._refusal:
            raise OSError(errno.EBADF, f"the log in {self._folder} takes no more records: {self._refusal}")
        try:
            os.fdatasync(self._file)
            if self._marks is not None:
                self._marks.acknowledge(self._position)
        except OSError as error:
            self._refusal = f"the sync before record {self.next_record} failed with {error}"
            raise

    def close(self) -> None:
        """Cut the unused space off the last segment, unless a record failed. Later appends are refused."""
        file, self._file = self._file, None
        failed, self._refusal = self._refusal, self._refusal or "it is closed"
        if file is None:
            return
        self._in_use.close()
        with closed_on_error(file):
            if self._marks is not None and not failed:
                self._marks.shorten(self._position, self._position)
                self._sync_mark()
        _end(file, os.fstat(file).st_size if failed else self._position)

    def check_folder(self) -> None:
        """OSError if the folder was moved or replaced since the log began. Not after `close`."""
        self._in_use.check()

    def _begin_segment(self, room: int) -> None:
        """A segment with space for at least `room` bytes of records."""
        self.check_folder()
        first = self.next_record
        head = MAGIC + frame_of(msgpack.packb({**self._header, "format": FORMAT, "first": first}))
        size = max(self._segment_bytes, len(head) + room)
        last, end = self._file, self._position
        if last is not None and self._synced:
            os.fdatasync(last)
        file = _new_segment(self._folder, first, head, size, synced=self._synced)
        self._file, self._position, self._size = file, len(head), size
        if self._marks is not None:
            self._marks.begin(self._header, first, size, len(head))
            self._sync_mark()
        if last is not None:
            _end(last, end)

    def _sync_mark(self) -> None:
        if self._marks is not None and self._synced:
            self._marks.sync()


def _refuse_to_replace(folder: Path, first: int) -> None:
    for number, path in segments(folder):
        if number > first:
            raise FileExistsError(f"the log goes on after record {first}, with {path}")
        if number == first:
            reader = LogReader(folder, first)
            if reader.read(1) or reader.ending():
                raise FileExistsError(f"{path} has records or a torn one")


def _new_segment(folder: Path, first: int, head: bytes, size: int, *, synced: bool) -> int:
    """The open file of a segment with its header and allocated space."""
    unnamed = folder / _UNNAMED
    file = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            raise OSError(error.errno, f"cannot allocate {size} bytes: {error.strerror}") from error
        _write(file, head.ljust(size, b"\0") if synced else head, 0)
        if synced:
            os.fsync(file)
        unnamed.rename(segment_path(folder, first))
        if synced:
            sync_path(folder)
    except BaseException as error:
        os.close(file)
        unnamed.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(unnamed)  # calls with a descriptor do not name it
        raise
    return file


def _write(file: int, data: bytes, position: int) -> None:
    """Write all of it, or leave zeros. OSError."""
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(file, data[written:], position + written)
    except OSError:
        with contextlib.suppress(OSError):  # what stays is a torn record: it does not count either
            os.pwrite(file, bytes(written), position)
        raise


def _end(file: int, length: int) -> None:
    try:
        os.ftruncate(file, length)
    finally:
        os.close(file)
