"""Reads the log: records in order, over all its segments. `docs/format.md` describes the bytes.

A reader keeps a position, no open file, so it also follows a log that another process writes. A frame that is not
complete yet reads as no record, as long as no later segment exists: the writer begins a segment only after all records
of the one before are complete. Then any other byte than a record or a zero is damage, and so are segments whose numbers
leave a gap.

Whether the log ends with a torn record is asked once no process writes. A torn record is what a killed process leaves
at the very end, before it acknowledged the record. If a valid frame follows, the record was complete: that too is
damage.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack

from dataplane_server.durability.frames import find_frame, frame_bytes, payloads_of

FORMAT = 1
MAGIC = b"RLDPLOG\n"

_CHUNK = 256 << 10
_NAME = re.compile(r"log-([0-9]{20})")


class RecordMissingError(LookupError):
    """The log does not hold, or no longer holds, the record that is asked for."""


class LogFormatError(Exception):
    """A file is no segment that this version reads."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}. This version reads segments of format {FORMAT}, which begin with {MAGIC!r}")


class LogDamagedError(Exception):
    """A record that was complete is not readable. byte: of the file `path`. record: the first one that is lost."""

    def __init__(self, path: Path, byte: int, record: int, what: str) -> None:
        self.path, self.byte, self.record = path, byte, record
        super().__init__(
            f"{path}: the log is damaged at byte {byte}: {what}. Records below {record} are readable; record {record} "
            "is lost, and what follows it cannot be trusted"
        )


class LogReader:
    """Reads records in order, also those that another process appends just now.

    next_record: number of the next record to read. header: of the segment that is read.
    """

    next_record: int
    header: Mapping[str, Any]

    def __init__(self, folder: Path, first: int) -> None:
        """`first` is the next record to read: one that the log holds, or the one that is appended next.
        RecordMissingError otherwise; LogFormatError and LogDamagedError as `read`.
        """
        self._folder = folder
        begun = [number for number, _ in segments(folder) if number <= first]
        if not begun:
            raise RecordMissingError(f"no segment in {folder} holds record {first}")
        self._enter(begun[-1])
        while self.next_record < first:
            if not self.read(first - self.next_record):
                raise RecordMissingError(
                    f"the log in {folder} has no record {first}: it ends before {self.next_record}"
                )

    def read(self, most: int = 1024) -> list[bytes]:
        """The next records that are complete, at most `most`; none only if there is none now. Does not wait.

        LogDamagedError and LogFormatError for what cannot be read; the records before it were returned by then.
        RecordMissingError if the next record was removed.
        """
        try:
            return self._next(most)
        except FileNotFoundError:  # the segment was removed, but the next record may be in another one
            self._enter(self.next_record)
            return self.read(most)

    def sync(self) -> None:
        """Wait until the records that were read are on stable storage."""
        with self._path.open("rb") as file:
            os.fdatasync(file.fileno())

    def ending(self) -> int:
        """How many bytes from the last record on are a torn record; 0 if the log ends in order.

        To be called once `read` has returned nothing and no process appends. Takes up to a second for a segment of 16
        MiB. LogDamagedError if a complete record follows; ValueError if records are left to read.
        """
        rest = self._rest()
        found = find_frame(rest)
        if found == 0:
            raise ValueError(f"record {self.next_record} is complete: read to the end first")
        if found is not None:
            raise self._damage(f"no record, but a complete one follows at byte {self._position + found}")
        return len(rest.rstrip(b"\0"))

    def cut(self) -> None:
        """End the segment after its last record: a torn record goes, and so does unused space. Errors as `ending`."""
        self.ending()
        with self._path.open("r+b") as file:
            file.truncate(self._position)
            os.fsync(file.fileno())  # were the torn record back after a loss of power, a later segment would follow it

    def abandon(self) -> int:
        """End the log after the last readable record, although it goes on. Later segments are renamed to `lost-...`.
        Returns how many bytes were given up.
        """
        size = self._path.stat().st_size - self._position
        os.truncate(self._path, self._position)
        for number, path in segments(self._folder):
            if number > self._number:
                size += path.stat().st_size
                path.rename(path.with_name(f"lost-{path.name}"))
        return size

    def _next(self, most: int) -> list[bytes]:
        while not (records := self._complete(most)):
            later = [number for number, _ in segments(self._folder) if number > self._number]
            if not later:
                break
            if records := self._complete(most):  # they were appended between the two looks
                break
            self._leave_for(later[0])
        return records

    def _enter(self, number: int) -> None:
        self._path, self._number, self.next_record = segment_path(self._folder, number), number, number
        try:
            self._read_header()
        except FileNotFoundError:
            raise RecordMissingError(f"record {number} was removed: there is no {self._path}") from None

    def _read_header(self) -> None:
        with self._path.open("rb") as file:
            magic = file.read(len(MAGIC))
        if magic != MAGIC:
            raise LogFormatError(self._path, f"no segment of a log, it begins with {magic!r}")
        self._position = len(MAGIC)
        frames, length = self._frames(1)
        self.header = _header_of(self._path, self._number, frames)
        self._position += length

    def _leave_for(self, number: int) -> None:
        if self._rest().strip(b"\0"):
            raise self._damage("no record, though a later segment exists")
        if number != self.next_record:
            raise self._damage(f"the next segment begins with record {number} instead of {self.next_record}")
        self._enter(number)

    def _complete(self, most: int) -> list[bytes]:
        if self.next_record == self._number:  # a writer that is started again replaces a segment without records
            self._enter(self._number)
        records, length = self._frames(most)
        self._position += length
        self.next_record += len(records)
        return records

    def _frames(self, most: int) -> tuple[list[bytes], int]:
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read(_CHUNK)
            needed = frame_bytes(data)
            if len(data) < needed <= os.fstat(file.fileno()).st_size - self._position:
                data += file.read(needed - len(data))
        return payloads_of(data, most)

    def _rest(self) -> bytes:
        with self._path.open("rb") as file:
            file.seek(self._position)
            return file.read()

    def _damage(self, what: str) -> LogDamagedError:
        return LogDamagedError(self._path, self._position, self.next_record, what)


def segment_path(folder: Path, first: int) -> Path:
    """The file of the segment that begins with record `first`."""
    return folder / f"log-{first:020}"


def segments(folder: Path) -> list[tuple[int, Path]]:
    """The first record and the file of each segment, in order."""
    matches = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in matches if match)


def forget_cached(folder: Path) -> None:
    """Make the next look at the segments read from the disk. What is not there yet is written first."""
    for _, path in segments(folder):
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remove_before(folder: Path, record: int) -> list[Path]:
    """Delete the segments whose records are all below `record`, but not the newest. Returns their files."""
    found = segments(folder)
    removed = [path for (_, path), (after, _) in itertools.pairwise(found) if after <= record]
    for path in removed:  # from the oldest on: those that are left have no gap
        path.unlink()
    return removed


def _header_of(path: Path, number: int, frames: list[bytes]) -> dict[str, Any]:
    if not frames:
        raise LogFormatError(path, "a segment whose header is damaged")
    try:
        header: dict[str, Any] = msgpack.unpackb(frames[0])
        form, first = header["format"], header["first"]
    except (KeyError, TypeError, ValueError):
        raise LogFormatError(path, "a segment whose header has no format and first record") from None
    if form != FORMAT:
        raise LogFormatError(path, f"a segment of format {form!r}")
    if first != number:
        raise LogFormatError(path, f"a segment that begins with record {first} by its header")
    return header
