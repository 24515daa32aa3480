"""Snapshots: one consistent cut of rows, cursors and claims in a folder, from which a server can go on.

    NAME/manifest.json           what it is, the sizes and checksums of the others, and its own checksum (XXH3-64)
    NAME/state                   the core, as a checkpoint
    NAME/ranges                  what `values` has of the arena: pairs of offset and length, int64
    NAME/values                  the arena's file, with holes where nothing was stored

The server pins all rows at the cut and goes on; the checkpointer's replica, which stops at the same call, has the state
and copies the values out of the arena. A file system that can share blocks between files does so. A folder of that name
is complete: it is written under another name, synced, and renamed.

Others may have written what is read here. So each file must be a regular one of the size that the manifest has, before
anything of it is read, and is read in pieces. Only the state is read whole, see `durability.restore`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from xxhash import xxh3_64, xxh3_64_hexdigest

from dataplane_server.core.calls.values import Int64Array
from dataplane_server.core.plane import DataPlane
from dataplane_server.durability.checkpoint import write_checkpoint
from dataplane_server.durability.replica import Replica
from dataplane_server.storage.folders import locked, sync_path
from dataplane_server.storage.regular_files import open_regular
from dataplane_server.version import VERSION

FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_LOCK = ".lock"
_PIECE = 8 << 20
_MOST_LISTED = 1000
_MOST_MANIFEST_BYTES = 2 << 20
"""The most partitions with the longest names have 1.6 MB in it."""
_KINDS: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "dict[str, Any]": dict,
    "dict[str, int]": dict,
}
"""What an entry of a manifest is, by the annotation of its field."""


class SnapshotError(Exception):
    """A snapshot that cannot be written or used. Its message says why, and what to do."""


@dataclass(frozen=True)
class Manifest:
    """request_id: of the call that it was taken for. at: when, in seconds since 1970. rows: of each partition. ranges,
    state, values: checksums. values_bytes: of the arena that are in use. sizes: of the files, in bytes. manifest: the
    checksum of all other entries.
    """

    name: str
    request_id: str
    at: float
    version: str
    limits: dict[str, Any]
    rows: dict[str, int]
    values_bytes: int
    state: str
    ranges: str
    values: str
    sizes: dict[str, int]
    format: int = FORMAT
    manifest: str = ""

    @property
    def checksum(self) -> str:
        """Of all entries but `manifest`."""
        entries = {**vars(self), "manifest": ""}
        return xxh3_64_hexdigest(json.dumps(entries, sort_keys=True).encode())


def write_snapshot(
    folder: Path,
    name: str,
    request_id: str,
    replica: Replica,
    arena: Path,
    check: Callable[[], object] = lambda: None,
) -> Manifest:
    """Write what a replica has, whose values are in the arena's file and stay there until this returns. Blocks, and
    leaves nothing if it fails: SnapshotError or OSError. check: called while values are copied, and right before the
    snapshot gets its name; it raises if values may be others by then.
    """
    if (folder / name).exists():
        raise SnapshotError(f"there is a snapshot {name!r} in {folder} already")
    discard_unfinished(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / _LOCK, fcntl.LOCK_SH):
        written = Path(tempfile.mkdtemp(".unfinished", f".{name}.", folder))
        try:
            manifest = _write(written, name, request_id, replica, arena, check)
            check()
            written = written.rename(folder / name)
            sync_path(folder)
        except BaseException:
            shutil.rmtree(written, ignore_errors=True)
            raise
    return manifest


def discard_unfinished(folder: Path) -> None:
    """Remove what is left of snapshots whose server ended meanwhile. Not while another server writes one there."""
    with contextlib.suppress(OSError), locked(folder / _LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB):
        for path in folder.glob(".*.unfinished"):
            shutil.rmtree(path, ignore_errors=True)


def read_manifest(folder: Path) -> Manifest:
    """SnapshotError if the folder is no snapshot of this format. OSError. Its state tells which build can read it."""
    try:
        with open_regular(folder / "manifest.json") as file:
            text = file.read(_MOST_MANIFEST_BYTES + 1)
        if len(text) > _MOST_MANIFEST_BYTES:
            raise ValueError(f"it has more than {_MOST_MANIFEST_BYTES} bytes")
        manifest = Manifest(**_with_sizes(folder, json.loads(text.decode())))
        _check_kinds(manifest)
        checksum = manifest.checksum
    except FileNotFoundError:
        raise SnapshotError(f"there is no snapshot {folder.name!r} in {folder.parent}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise SnapshotError(f"{folder}/manifest.json cannot be read: {error}") from error
    if manifest.format != FORMAT:
        wrote = f"version {manifest.version}, format {manifest.format}"
        raise SnapshotError(
            f"{folder} was written by {wrote}, and this is {VERSION}, format {FORMAT}; start that version"
        )
    _check(folder / "manifest.json", checksum, manifest.manifest)
    return manifest


def list_snapshots(folder: Path) -> list[Manifest]:
    """The last of them, the oldest first. Leaves out what is no snapshot of this version. Blocks."""
    found = []
    for path in folder.glob("*") if folder.is_dir() else ():
        with contextlib.suppress(OSError, SnapshotError):
            found.append(read_manifest(path))
    return sorted(found, key=lambda manifest: (manifest.at, manifest.name))[-_MOST_LISTED:]


def verify_snapshot(folder: Path, progress: Callable[[int], object] = lambda size: None) -> Manifest:
    """Compare a snapshot with its checksums. Reads all of it; progress: gets the bytes of each piece. SnapshotError for
    what differs.
    """
    manifest, found = read_manifest(folder), xxh3_64()
    with open_part(folder, "state", manifest) as state:
        for data in iter(partial(state.read, _PIECE), b""):
            found.update(data)
    _check(folder / "state", found.hexdigest(), manifest.state)
    found = xxh3_64()
    with open_part(folder, "values", manifest) as values:
        for offset, size in _pieces(folder, manifest, manifest.sizes["values"]):
            found.update(os.pread(values.fileno(), size, offset))
            progress(size)
    _check(folder / "values", found.hexdigest(), manifest.values)
    return manifest


def copy_values(folder: Path, manifest: Manifest, arena: int) -> None:
    """Copy the values of a snapshot to an arena's file, and compare them with the checksum. SnapshotError, OSError."""
    with open_part(folder, "values", manifest) as values:
        most = min(manifest.sizes["values"], os.fstat(arena).st_size)
        found = _copy(values.fileno(), arena, _pieces(folder, manifest, most))
    _check(folder / "values", found, manifest.values)


def open_part(folder: Path, name: str, manifest: Manifest) -> BinaryIO:
    """Open a file of a snapshot. SnapshotError if its size is not that of the manifest. OSError."""
    file = open_regular(folder / name)
    found, size = os.fstat(file.fileno()).st_size, manifest.sizes.get(name)
    if found != size:
        file.close()
        raise SnapshotError(f"{folder / name} was changed: it has {found} bytes, and the manifest has {size}")
    return file


def _write(
    folder: Path, name: str, request_id: str, replica: Replica, arena: Path, check: Callable[[], object]
) -> Manifest:
    extra = {"checksums": replica.checksums.keep(replica.plane)}
    state = write_checkpoint(folder, replica.plane, 0, replica.at, extra).rename(folder / "state")
    ranges = _used_ranges(replica.plane)
    (folder / "ranges").write_bytes(ranges.tobytes())
    with arena.open("rb") as source, (folder / "values").open("w+b") as target:
        target.truncate(os.fstat(source.fileno()).st_size)
        values = _copy(source.fileno(), target.fileno(), _with_checks(_in_pieces(ranges), check))
        os.fsync(target.fileno())
    header = replica.header
    manifest = Manifest(
        name,
        request_id,
        round(header["wall"] + replica.at - header["at"], 3),
        VERSION,
        dataclasses.asdict(replica.plane.limits),
        {partition_id: len(partition.rows) for partition_id, partition in replica.plane.partitions.items()},
        int(ranges[:, 1].sum()),
        xxh3_64_hexdigest(state.read_bytes()),
        xxh3_64_hexdigest(ranges.tobytes()),
        values,
        {name: (folder / name).stat().st_size for name in ("state", "ranges", "values")},
    )
    manifest = dataclasses.replace(manifest, manifest=manifest.checksum)
    (folder / "manifest.json").write_text(json.dumps(dataclasses.asdict(manifest), indent=2))
    for path in (folder / "ranges", folder / "manifest.json", folder):
        sync_path(path)
    return manifest


def _used_ranges(plane: DataPlane) -> Int64Array:
    """Offset and length of what is not free."""
    begin, used = 0, []
    for start, end in sorted(plane.free_ranges()):
        used.append((begin, start - begin))
        begin = end
    used.append((begin, plane.limits.memory_bytes - begin))
    return np.array([piece for piece in used if piece[1]], np.int64).reshape(-1, 2)


def _with_sizes(folder: Path, entries: dict[str, Any]) -> dict[str, Any]:
    """Entries of a manifest. The first ones had neither sizes nor a checksum of their own: they get those of what is
    there. TypeError if they are none.
    """
    if "sizes" in entries or "manifest" in entries:
        return entries
    entries = {**entries, "sizes": {name: (folder / name).lstat().st_size for name in ("state", "ranges", "values")}}
    return {**entries, "manifest": Manifest(**entries).checksum}


def _check_kinds(manifest: Manifest) -> None:
    """TypeError names an entry of another kind than it is written with."""
    for field in dataclasses.fields(manifest):
        value = getattr(manifest, field.name)
        if not isinstance(value, _KINDS[str(field.type)]):
            raise TypeError(f"{field.name} is {type(value).__name__} instead of {field.type}")
    for name in ("rows", "sizes"):
        if not all(isinstance(count, int) for count in getattr(manifest, name).values()):
            raise TypeError(f"{name} are not numbers")


def _pieces(folder: Path, manifest: Manifest, most: int) -> Iterator[tuple[int, int]]:
    """The ranges of a snapshot, which end at byte `most` or before, in pieces of a few MiB. They are read as they are
    used. SnapshotError, OSError.
    """
    path, found, end = folder / "ranges", xxh3_64(), 0
    with open_part(folder, "ranges", manifest) as file:
        for data in iter(partial(file.read, _PIECE), b""):
            found.update(data)
            ranges = np.frombuffer(data[: len(data) // 16 * 16], np.int64).reshape(-1, 2)
            if len(data) % 16 or not _are_in_order(ranges, end, most):
                what = f"its ranges overlap, are empty, or exceed the {most} bytes of values"
                raise SnapshotError(f"{path} is not of this snapshot: {what}")
            end = int(ranges[-1].sum())
            yield from _in_pieces(ranges)
    _check(path, found.hexdigest(), manifest.ranges)


def _are_in_order(ranges: Int64Array, begin: int, most: int) -> bool:
    begins, sizes = ranges[:, 0], ranges[:, 1]
    inside = ((begins >= begin) & (begins <= most)).all() and ((sizes > 0) & (sizes <= most - begins)).all()
    return bool(inside and (begins[1:] >= begins[:-1] + sizes[:-1]).all())


def _check(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise SnapshotError(f"{path} was changed: its checksum is {found}, and the manifest has {expected}")


def _copy(source: int, target: int, pieces: Iterable[tuple[int, int]]) -> str:
    """Copy pieces of a file to the same places of another one. Returns the checksum of what that has then: writers may
    change the values of a put that is under way meanwhile.
    """
    copied = xxh3_64()
    for offset, size in pieces:
        try:
            shared = os.copy_file_range(source, target, size, offset, offset)  # blocks, if the file system can
        except OSError:  # the files are on two file systems
            shared = 0
        if shared < size:
            _write_all(target, os.pread(source, size - shared, offset + shared), offset + shared)
        copied.update(os.pread(target, size, offset))
    return copied.hexdigest()


def _write_all(file: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written


def _with_checks(pieces: Iterable[tuple[int, int]], check: Callable[[], object]) -> Iterator[tuple[int, int]]:
    """The pieces, with a check before each."""
    for piece in pieces:
        check()
        yield piece


def _in_pieces(ranges: Int64Array) -> Iterator[tuple[int, int]]:
    """The ranges in pieces of a few MiB."""
    for offset, size in ranges.tolist():
        for begin in range(offset, offset + size, _PIECE):
            yield begin, min(_PIECE, offset + size - begin)
