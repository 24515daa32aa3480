"""The mark in the last page of an arena: which log belongs to the values, and how far that log was acknowledged.

A start compares the mark with the log, so an arena or a segment that is missing, of another run, older or cut is
refused, and so is a log that ends before a call that was acknowledged. A mark is a lower bound. It never says more than
the log has, because of the order of writes:

1. A segment is complete under its name (with `disk`: synced, and so is the folder) before a mark names it.
2. The mark names a segment (with `disk`: synced) before the segment gets its first record.
3. A record is in the log (with `disk`: synced) before a mark counts it. With `disk` that mark reaches the disk with the
   values of the next batch, at the latest.
4. A mark says that a segment is shorter (with `disk`: synced) before the segment is cut.

So a log that nobody has changed is in one of two states after any death or loss of power. Its last segment is the one
that the mark names, at least as long as the mark says, and its records reach at least as far. Or, after a death between
1 and 2, its last segment is a later one without records; at the very first start there is no mark then.

Two places take turns, each in a sector of its own. At most one of them is not on the disk yet, so a write that is torn
leaves the mark before it. A mark that is one too old is a lower bound all the same, also after 2: the mark is synced
there, and the segment has no record before.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from dataplane_server.durability.frames import frame_of, payloads_of
from dataplane_server.durability.log_reader import LogDamagedError, LogReader, segment_path
from dataplane_server.storage.arena import Arena

_PLACES = (512, 1024)
_NUMBERS = struct.Struct("<QQ")


class Mark(NamedTuple):
    """run: a hash of the incarnation in the headers of the log. epoch, first: of the newest segment, as in its header.
    size: how many bytes that file has at least. acknowledged: the byte behind its last record that is known to be
    acknowledged.
    """

    run: bytes
    epoch: int
    first: int
    size: int
    acknowledged: int


class Marks:
    """Reads and writes the mark of an arena that has a file. newest: as it was read or begun; None if there is none."""

    newest: Mark | None

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._rest = b""
        self.read()

    def read(self) -> None:
        """Look again."""
        page = self._arena.file.read_page()
        self._serial, self.newest = max((_mark_at(page, place) for place in _PLACES), key=lambda found: found[0])

    def begin(self, header: Mapping[str, Any], first: int, size: int, position: int) -> None:
        """A segment exists, whose header ends at `position`. OSError."""
        self._write(Mark(_run_of(header), header["epoch"], first, size, position))

    def acknowledge(self, position: int) -> None:
        """The records before `position` of the newest segment may be acknowledged. OSError."""
        self._serial += 1
        frame = frame_of(_NUMBERS.pack(self._serial, position) + self._rest)
        self._arena.file.write_page(frame, _PLACES[self._serial % len(_PLACES)])

    def shorten(self, size: int, acknowledged: int) -> None:
        """The newest segment is about to be cut. OSError."""
        if self.newest is not None:
            self._write(self.newest._replace(size=size, acknowledged=acknowledged))

    def sync(self) -> None:
        """Wait until the mark is on stable storage. OSError."""
        self._arena.sync()

    def _write(self, mark: Mark) -> None:
        self.newest, self._rest = mark, msgpack.packb(mark[:-1])
        self.acknowledge(mark.acknowledged)


def compare(mark: Mark | None, reader: LogReader, folder: Path) -> None:
    """Compare the mark of the arena in a folder with a log that was read to its end. LogDamagedError names a segment
    that is missing, cut or changed; ValueError an arena that is not that of the log.
    """
    if mark is None:
        if reader.next_record:
            raise ValueError(f"{folder}/arena is not the one of the log beside it: it has no mark of any log")
        return
    compare_run(mark, reader, folder)
    last, noted = (reader.header["epoch"], reader.segment), (mark.epoch, mark.first)
    if last > noted and reader.next_record > reader.segment:
        raise ValueError(f"{folder}/arena is older than the log: it does not know the records in {reader.path}")
    if last < noted:
        missing = segment_path(folder, mark.first)
        raise LogDamagedError(missing, 0, reader.next_record, "the last segment is missing")
    if last == noted:
        size = reader.path.stat().st_size
        if reader.position < mark.acknowledged:
            what = f"calls were acknowledged up to byte {mark.acknowledged}"
        elif size < mark.size:
            what = f"the file ends there, and it had {mark.size} bytes"
        else:
            return
        raise LogDamagedError(reader.path, min(size, reader.position), reader.next_record, what)


def compare_run(mark: Mark | None, reader: LogReader, folder: Path) -> None:
    """ValueError if the segment that is read is of another run than the arena in the folder."""
    if mark is not None and mark.run != _run_of(reader.header):
        raise ValueError(f"{folder}/arena and {reader.path} are of different servers: one of them was exchanged")


def carry(source: Arena, target: Path) -> None:
    """Give another file for an arena of the same size the mark of this one, and sync it. OSError."""
    page = source.file.read_page()
    with target.open("r+b") as file:
        file.seek(-len(page), os.SEEK_END)
        file.write(page)
        file.flush()
        os.fsync(file.fileno())


def _run_of(header: Mapping[str, Any]) -> bytes:
    """Clients can read the page and must not learn the incarnation, which the ids of others begin with."""
    return hashlib.blake2b(header["incarnation"].encode(), digest_size=16).digest()


def _mark_at(page: bytes, place: int) -> tuple[int, Mark | None]:
    """A mark with its number; 0 and None if none is complete there."""
    payloads, _ = payloads_of(page[place : place + _PLACES[0]], 1)
    if not payloads:
        return 0, None
    serial, acknowledged = _NUMBERS.unpack_from(payloads[0])
    run, epoch, first, size = msgpack.unpackb(payloads[0][_NUMBERS.size :])
    return serial, Mark(run, epoch, first, size, acknowledged)
