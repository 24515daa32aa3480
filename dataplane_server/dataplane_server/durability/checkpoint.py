"""Checkpoints: the state of a core in a file, so that a server begins with it and replays only the calls after it.

    magic     8 bytes
    header    MessagePack: format, version of the server, build (a hash of the core's sources), next_record, now, extra
    pieces    the objects of the core, see `durability.graph`
    arrays    contents of long arrays
    end       8 bytes

Header, pieces and arrays are chunks: length (8 bytes), CRC-32 of length and content (4 bytes), content; all numbers are
little-endian. A file is complete or does not exist under its name: it is written under another name, synced, and
renamed. A checkpoint is read by the build that wrote it, since another core may have other classes, and by later ones
that know how theirs differ: see `durability.earlier_cores`.

The history of samples knows ids by hashes, which differ from process to process. A checkpoint has the ids in their
place, of rows that are resident; the history of a sample that was cleared before ends with the process.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import numpy as np

from dataplane_server import core
from dataplane_server.core.calls.values import Int64Array
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.stats.history import History, _hash_of_all
from dataplane_server.durability.earlier_cores import EARLIER, THIS
from dataplane_server.durability.graph import content_of, decode, encode
from dataplane_server.durability.logged_plane import LoggedPlane
from dataplane_server.storage.folders import sync_path
from dataplane_server.storage.regular_files import open_regular
from dataplane_server.version import VERSION

FORMAT = 1
"""To be raised when attributes change their meaning and keep their names."""
_MAGIC, _END = b"RLDPCKP\n", b"RLDPEND\n"
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_NAME = re.compile(r"checkpoint-(\d{20})")
_UNFINISHED = ".unfinished"
_PARTS = ("state", "verbs", "answers", "history")
_CELLS = "_cells"
_KINDS: dict[str, Any] = {"next_record": int, "now": (int, float), "extra": dict}


class DamagedCheckpointError(Exception):
    """A file that is no complete checkpoint of this version. Its message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """next_record: of the log, the first one that the core has not seen. now: the time of the last call, in seconds."""

    plane: LoggedPlane
    next_record: int
    now: float
    extra: dict[str, Any]


def write_checkpoint(folder: Path, plane: DataPlane, next_record: int, now: float, extra: Mapping[str, object]) -> Path:
    """Write a checkpoint and sync it. extra: plain values. Returns its path. OSError leaves the earlier ones as they
    are.
    """
    parts = dict(zip(_PARTS, plane.parts, strict=True))
    graph = encode(parts, {_CELLS: _named_cells(plane)})
    header = {
        "format": FORMAT,
        "version": VERSION,
        "next_record": next_record,
        "now": now,
        "extra": dict(extra),
        "build": build(),
    }
    path = folder / f"checkpoint-{next_record:020}"
    with _renamed_when_complete(path) as file:
        file.write(_MAGIC)
        _write_chunk(file, msgpack.packb(header))
        for piece in graph.pieces:
            _write_chunk(file, piece)
        for array in graph.arrays:
            _write_chunk(file, content_of(array))
        file.write(_END)
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. OSError if the file cannot be read; DamagedCheckpointError if it was cut or changed, or is of
    another version.
    """
    with open_regular(path) as file:
        chunks = _Chunks(path, file)
        header = chunks.header()
        try:
            earlier = EARLIER.get(header["build"], THIS)
            parts = decode(chunks, chunks.size, earlier.differences)
            chunks.check_end()
            earlier.complete(parts)
            _restore_cells(parts["history"], parts["state"].limits.remembered_events)
            plane: Any = LoggedPlane.__new__(LoggedPlane)
            plane.parts = tuple(map(parts.__getitem__, _PARTS))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise chunks.damaged(str(error)) from error
    return Checkpoint(plane, header["next_record"], header["now"], header["extra"])


def read_extra(path: Path) -> Mapping[str, Any]:
    """What a checkpoint has beside the core. Errors as load_checkpoint."""
    with open_regular(path) as file:
        extra: Mapping[str, Any] = _Chunks(path, file).header()["extra"]
    return extra


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder with their next_record, the newest first."""
    found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted(((int(match[1]), path) for match, path in found), reverse=True)


def remove_checkpoints(folder: Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep`, the oldest first, and files that were not completed. Not while one is being
    written.
    """
    old = [path for _, path in reversed(checkpoints(folder)[keep:])]
    unfinished = [path for path in folder.glob(f"*{_UNFINISHED}") if _NAME.fullmatch(path.stem)]
    for path in (*old, *unfinished):
        path.unlink()
    return [*old, *unfinished]


@cache
def build() -> str:
    """A hash of the sources of the core."""
    sources = sorted(Path(core.__path__[0]).rglob("*.py"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in sources), digest_size=16).hexdigest()


# -- file --------------------------------------------------------------------------------------------------------------


@contextmanager
def _renamed_when_complete(path: Path) -> Iterator[BinaryIO]:
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def _write_chunk(file: BinaryIO, content: bytes | memoryview) -> None:
    length = _LENGTH.pack(len(content))
    file.write(length + _CRC.pack(zlib.crc32(content, zlib.crc32(length))))
    file.write(content)


class _Chunks:
    """The chunks of a file, one after the other."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    def header(self) -> dict[str, Any]:
        if self._file.read(len(_MAGIC)) != _MAGIC:
            raise self.damaged("it does not begin as a checkpoint")
        try:
            header: dict[str, Any] = msgpack.unpackb(self.next())
            wrote, reads = (header.get("version"), header.get("format")), (VERSION, FORMAT)
        except (ValueError, AttributeError, msgpack.UnpackException) as error:
            raise self.damaged(f"its header cannot be read: {error!r}") from error
        known = str(header.get("build")) in EARLIER
        if wrote != reads and not known:
            texts = " and this is ".join(f"version {version}, format {number}" for version, number in (wrote, reads))
            raise self.damaged(f"it was written by {texts}; start that version")
        if header.get("build") != build() and not known:
            raise self.damaged(f"it was written by another build of version {VERSION}; start that build")
        if not all(isinstance(header.get(name), kind) for name, kind in _KINDS.items()):
            raise self.damaged(f"its header cannot be read: {header!r}")
        return header

    def next(self) -> bytearray:
        head, length = self._head()
        content = bytearray(length)
        self._read(content, head)
        return content

    def fill(self, content: memoryview) -> None:
        head, length = self._head()
        if length != len(content):
            raise self.damaged(f"an array of {len(content)} bytes has {length}")
        self._read(content, head)

    def check_end(self) -> None:
        if self._file.read() != _END:
            raise self.damaged("it does not end where it should")

    def damaged(self, why: str) -> DamagedCheckpointError:
        return DamagedCheckpointError(f"{self._path} cannot be used: {why}")

    def _head(self) -> tuple[bytes, int]:
        head = self._file.read(_LENGTH.size + _CRC.size)
        length: int = _LENGTH.unpack_from(head)[0] if len(head) == _LENGTH.size + _CRC.size else self.size
        if length > self.size - self._file.tell():
            raise self.damaged(f"it is cut, or changed, before byte {self._file.tell()}")
        return head, length

    def _read(self, content: bytearray | memoryview, head: bytes) -> None:
        at = self._file.tell()
        length, crc = head[: _LENGTH.size], _CRC.unpack(head[_LENGTH.size :])[0]
        if self._file.readinto(content) != len(content) or zlib.crc32(content, zlib.crc32(length)) != crc:  # type: ignore[attr-defined]
            raise self.damaged(f"the {len(content)} bytes from byte {at} on are not those that were written")


# -- history -----------------------------------------------------------------------------------------------------------


def _named_cells(plane: DataPlane) -> tuple[int, Int64Array, tuple[str, ...]]:
    """In place of the cells of the history: how many there are, and which of them are of which resident samples."""
    cells: Int64Array = vars(plane.parts[-1])[_CELLS]
    tables = [partition.rows for partition in plane.partitions.values()]
    ids = [sample_id for rows in tables for sample_id in rows.ids(rows.all_slots())]
    hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
    order = hashes.argsort()
    places = np.searchsorted(hashes, cells, sorter=order)
    known = np.flatnonzero(places < len(ids))
    found = order[places[known]]
    same = hashes[found] == cells[known]
    return len(cells), known[same], tuple(map(ids.__getitem__, found[same].tolist()))


def _restore_cells(history: History, limit: int) -> None:
    """The hashes of this process. A fact about every row of a partition names the partition itself. limit: of the
    events that the history remembers. ValueError, LookupError and TypeError for others than `_named_cells`.
    """
    state = vars(history)
    size, known, ids = state[_CELLS]
    if size != limit:
        raise ValueError(f"a history of {size} events, where {limit} are remembered")
    cells = np.full(size, -1)  # no string has this hash
    cells[known] = np.fromiter(map(hash, ids), np.int64, len(ids))
    for record in state["_records"]:
        if not record.rows:
            cells[record.begin % size] = _hash_of_all(record.topic.partition_id)
    state[_CELLS] = cells
