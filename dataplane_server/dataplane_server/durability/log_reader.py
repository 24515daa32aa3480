"""Reads the log: records in order, over all its segments. `docs/format.md` describes the bytes.

A reader keeps a position, no open file, so it also follows a log that another process writes. A frame that is not
complete yet reads as no record, as long as no later segment exists: the writer begins a segment only after all records
of the one before are complete. Then any other byte than a record or a zero is damage, and so are segments whose numbers
leave a gap, or that another run of servers has written.

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

    next_record: number of the next record to read. path, header, segment: of the segment that is read; `segment` is
    its first record. position: in the file, of the next record.
    """

    path: Path
    segment: int
    next_record: int
    position: int
    header: Mapping[str, Any]

    def __init__(self, folder: Path, first: int, place: tuple[int, int] | None = None) -> None:
        """`first` is the next record to read: one that the log holds, or the one that is appended next. place: the
        segment and position of that record, if known; then what is before it in the segment is not read.
        RecordMissingError otherwise; LogFormatError and LogDamagedError as `read`.
        """
        self._folder = folder
        self.header = {}
        begun = [number for number, _ in segments(folder) if number <= first]
        missing = segment_path(folder, first if place is None else place[0])
        if not begun:
            where = "is missing" if first == 0 or place is not None else "or an earlier one is missing"
            raise RecordMissingError(f"no segment in {folder} holds record {first}: {missing} {where}")
        self._enter(begun[-1])
        if place is not None and place[0] == self.segment < first and place[1] <= self.path.stat().st_size:
            self.position, self.next_record = place[1], first
        while self.next_record < first:
            if not self.read(first - self.next_record):
                raise RecordMissingError(
                    f"the log in {folder} has no record {first}: it ends before {self.next_record}, at byte "
                    f"{self.position} of {self.path}"
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
        with self.path.open("rb") as file:
            os.fdatasync(file.fileno())

    def write_again(self, begin: int) -> None:
        """Write the records from a byte of this segment on once more, so that the next sync takes them: one that failed
        may have lost them, although they read as if they were written. To be called once no process appends. OSError;
        RecordMissingError if they are lost by now.
        """
        size, written = self.position - begin, 0
        with self.path.open("r+b") as file:
            file.seek(begin)
            data = file.read(size)
            if payloads_of(data, size)[1] < size:
                raise RecordMissingError(f"{self.path} no longer holds all records before {self.next_record}")
            while written < size:
                written += os.pwrite(file.fileno(), data[written:], begin + written)

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
            raise self._damage(f"no record, but a complete one follows at byte {self.position + found}")
        return len(rest.rstrip(b"\0"))

    def cut(self) -> None:
        """End the segment after its last record: a torn record goes, and so does unused space. Errors as `ending`."""
        self.ending()
        with self.path.open("r+b") as file:
            os.ftruncate(file.fileno(), self.position)
            os.fsync(file.fileno())  # were the torn record back after a loss of power, a later segment would follow it

    def abandon(self) -> int:
        """End the log after the last readable record, although it goes on. Later segments are renamed to `lost-...`.
        Returns how many bytes were given up.
        """
        size = self.path.stat().st_size - self.position
        os.truncate(self.path, self.position)
        for number, path in segments(self._folder):
            if number > self.segment:
                size += path.stat().st_size
                path.rename(path.with_name(f"lost-{path.name}"))
        return size

    def _next(self, most: int) -> list[bytes]:
        while not (records := self._complete(most)):
            later = [number for number, _ in segments(self._folder) if number > self.segment]
            if not later:
                break
            if records := self._complete(most):  # they were appended between the two looks
                break
            self._leave_for(later[0])
        return records

    def _enter(self, number: int) -> None:
        path = segment_path(self._folder, number)
        try:
            header, position = _read_header(path, number)
        except FileNotFoundError:
            raise RecordMissingError(f"record {number} was removed: there is no {path}") from None
        if self.header:
            _check_succession(path, number, self.header, header)
        self.path, self.segment, self.next_record, self.position = path, number, number, position
        self.header = header

    def _leave_for(self, number: int) -> None:
        if self._rest().strip(b"\0"):
            raise self._damage("no record, though a later segment exists")
        if number != self.next_record:
            missing = segment_path(self._folder, self.next_record).name
            raise self._damage(
                f"the next segment begins with record {number} instead of {self.next_record}: {missing} is missing"
            )
        self._enter(number)

    def _complete(self, most: int) -> list[bytes]:
        if self.next_record == self.segment:  # a writer that is started again replaces a segment without records
            self._enter(self.segment)
        records, length = _frames(self.path, self.position, most)
        self.position += length
        self.next_record += len(records)
        return records

    def _rest(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.position)
            return file.read()

    def _damage(self, what: str) -> LogDamagedError:
        return LogDamagedError(self.path, self.position, self.next_record, what)


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


def _frames(path: Path, position: int, most: int) -> tuple[list[bytes], int]:
    with path.open("rb") as file:
        file.seek(position)
        data = file.read(_CHUNK)
        needed = frame_bytes(data)
        if len(data) < needed <= os.fstat(file.fileno()).st_size - position:
            data += file.read(needed - len(data))
    return payloads_of(data, most)


def _read_header(path: Path, number: int) -> tuple[dict[str, Any], int]:
    """The header of a segment, and where it ends."""
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
    if magic != MAGIC:
        raise LogFormatError(path, f"no segment of a log, it begins with {magic!r}")
    frames, length = _frames(path, len(MAGIC), 1)
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
    return header, len(MAGIC) + length


def _check_succession(path: Path, number: int, before: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    """LogDamagedError if a segment does not belong behind one with another header."""
    if header.get("incarnation") != before.get("incarnation"):
        raise LogDamagedError(path, 0, number, "the segment is of another server than the one before it")
    if header.get("epoch", 0) < before.get("epoch", 0):
        raise LogDamagedError(path, 0, number, "the segment is older than the one before it")
