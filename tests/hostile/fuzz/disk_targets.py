"""What a server finds on its disk: its log, checkpoints, snapshots.

Damage is told in words, by the errors that recovery and the commands catch. Otherwise what is read is what was
written: the state after as many calls as the log has records. The files are made anew by every run, and damaged as an
input says: each of its pieces edits one of them, in the order of their names, or removes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import shutil
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from tests.hostile.fuzz.inputs import damaged, pieces
from tests.hostile.fuzz.world import LIMITS
from xxhash import xxh3_64_hexdigest

from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.requests import (
    Call,
    ClaimSamples,
    ClearSamples,
    CommitClaim,
    FinishWrite,
    OpenSession,
    PutSamples,
    RegisterPartition,
)
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.stats.digest import digest
from dataplane_server.durability.checkpoint import DamagedCheckpointError, build, load_checkpoint, write_checkpoint
from dataplane_server.durability.frames import payloads_of
from dataplane_server.durability.life import _UNUSABLE, RecoveryError, Terms, begin_life
from dataplane_server.durability.log_reader import MAGIC
from dataplane_server.durability.log_writer import LogWriter
from dataplane_server.durability.replica import Replica
from dataplane_server.durability.snapshot import (
    Manifest,
    SnapshotError,
    copy_values,
    read_manifest,
    verify_snapshot,
    write_snapshot,
)
from dataplane_server.version import VERSION

GONE = b"gone"
"""The piece that removes a file."""
_SHM = Path("/dev/shm")  # noqa: S108  # a folder of a random name is made there
_SEGMENT_BYTES = 1800
_CHUNK_HEAD = struct.Struct("<QI")


def _folder(name: str) -> Path:
    """An empty folder for one input of this process, in memory if there is one that has a name."""
    folder = _made_folder() / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


@functools.cache
def _made_folder() -> Path:
    made = tempfile.TemporaryDirectory(prefix="fuzz-", dir=_SHM if _SHM.is_dir() else None)
    _kept.append(made)  # until the process ends
    return Path(made.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


# -- log ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Base:
    """A data directory. files: their bytes, by name. states: of the core, by the number of records before."""

    files: dict[str, bytes]
    states: list[str]


def data_directory(data: bytes) -> None:
    """A life begins on a damaged data directory in the state after its records, or refuses in words."""
    base, folder = base_directory(), _folder("data")
    _write_damaged(folder, base.files, pieces(data))
    forged = _has_other_records(folder, base.files)
    try:
        life = begin_life(_terms(folder))
    except (OSError, RecoveryError):
        return
    finally:
        gc.unfreeze()  # a life freezes what it recovered
    life.log.close()
    life.arena.close()
    if not forged and _state(life.plane) != base.states[life.log.next_record]:
        raise AssertionError(f"another state than after {life.log.next_record} records")


def _write_damaged(folder: Path, files: dict[str, bytes], edits: list[bytes]) -> None:
    folder.mkdir(mode=0o700)
    for of_file, (name, content) in zip(edits + [b""] * len(files), sorted(files.items()), strict=False):
        if of_file != GONE:
            (folder / name).write_bytes(damaged(content, of_file))


def _has_other_records(folder: Path, files: dict[str, bytes]) -> bool:
    """Whether an input has made frames that are valid and were never written in their place."""
    for path in folder.glob("log-*"):
        found = payloads_of(path.read_bytes()[len(MAGIC) :], 1 << 20)[0]
        if found != payloads_of(files[path.name][len(MAGIC) :], 1 << 20)[0][: len(found)]:
            return True
    return False


def _state(plane: DataPlane) -> str:
    return digest(*plane.parts[:3])  # the history of samples is not kept whole


def _terms(folder: Path) -> Terms:
    return Terms(folder, LIMITS, False, "process", _raised, segment_bytes=_SEGMENT_BYTES)


def _raised(error: Exception) -> None:
    raise error


@functools.cache
def base_directory() -> Base:
    """Some calls in several segments, with a checkpoint among them."""
    folder = _folder("base")
    life = begin_life(_terms(folder))
    states = [_state(life.plane)]

    def said(call: Call[Any]) -> Any:
        now = float(len(states))
        answer = life.plane.apply(call, now)
        states.append(_state(life.plane))
        if len(states) == 8:
            write_checkpoint(folder, life.plane, life.log.next_record, now, {})
        return answer

    said(RegisterPartition("r", Definition("p", ("a",), ("t",))))
    session = said(OpenSession("", "client"))
    for number in range(5):
        column = ColumnSpec("a", Shape("jagged", "uint8", ()), np.array([100 + number]))
        put = said(PutSamples(f"put {number}", "p", (f"s{number}",), (column,), [{"std": 0.5, "source": "math"}]))
        said(FinishWrite(put.ticket))
    grant = said(ClaimSamples("claim", "p", "t", ("a",), 2, 2, session_id=session.session_id))
    said(CommitClaim("commit", grant.claim_id))
    said(ClearSamples("clear", "p", ["s1"]))
    life.log.close()
    life.arena.close()
    return Base({path.name: path.read_bytes() for path in folder.iterdir()}, states)


def written_directory() -> Path:
    """The data directory as it was before any damage."""
    folder = _folder("written")
    _write_damaged(folder, base_directory().files, [])
    return folder


def log_records(data: bytes) -> None:
    """Any payloads, each a piece, whose checksums are right: the log is replayed, or refused in words."""
    folder = _folder("log")
    folder.mkdir()
    origin = {
        "incarnation": "c",
        "first_generation": 1,
        "limits": dataclasses.asdict(LIMITS),
        "version": VERSION,
        "build": build(),
    }
    log = LogWriter(folder, 0, {**origin, "at": 0.0, "durability": "process"}, segment_bytes=_SEGMENT_BYTES)
    for payload in filter(None, pieces(data)):
        log.append(payload)
    log.close()
    with contextlib.suppress(*_UNUSABLE):
        Replica(folder).catch_up()


# -- checkpoints -------------------------------------------------------------------------------------------------------


def checkpoint(data: bytes) -> None:
    """A checkpoint whose chunks were edited, each by a piece, and have right checksums is read, or refused in words."""
    chunks = base_chunks()
    edits = pieces(data) + [b""] * len(chunks)
    content = map(damaged, chunks, edits)
    path = _made_folder() / "checkpoint"
    path.write_bytes(b"RLDPCKP\n" + b"".join(map(_chunk, content)) + b"RLDPEND\n")
    with contextlib.suppress(DamagedCheckpointError):
        load_checkpoint(path)


@functools.cache
def base_chunks() -> list[bytes]:
    """The chunks of the checkpoint in the base directory."""
    (file,) = (content for name, content in base_directory().files.items() if name.startswith("checkpoint-"))
    at, found = 8, []
    while at < len(file) - 8:
        length, _ = _CHUNK_HEAD.unpack_from(file, at)
        at += _CHUNK_HEAD.size + length
        found.append(file[at - length : at])
    return found


def _chunk(content: bytes) -> bytes:
    length = len(content).to_bytes(8, "little")
    return length + zlib.crc32(content, zlib.crc32(length)).to_bytes(4, "little") + content


# -- snapshots ---------------------------------------------------------------------------------------------------------


_FILES = ("ranges", "state", "values")


def snapshot(data: bytes) -> None:
    """A snapshot is verified and copied, or refused in words. The first piece is the manifest, or entries of it that
    are to be others; the next edit its other files. It has the sizes of all, and the checksums of ranges, state and
    itself, as edited.
    """
    given, *edits = [*pieces(data), b"", b"", b"", b""][: 1 + len(_FILES)]
    base, folder = base_snapshot(), _folder("snapshot")
    files = dict(base)
    files.update({name: damaged(files[name], of_file) for name, of_file in zip(_FILES, edits, strict=True)})
    files["manifest.json"] = _manifest(files, given)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with contextlib.suppress(SnapshotError, OSError), (folder / "arena").open("w+b") as arena:
        arena.truncate(len(base["values"]))
        copy_values(folder, read_manifest(folder), arena.fileno())
        verify_snapshot(folder)
        if not given and _used(files["ranges"], arena.read()) != _used(base["ranges"], base["values"]):
            raise AssertionError("other values are accepted")


def _used(ranges: bytes, values: bytes) -> bytes:
    places = np.frombuffer(ranges, np.int64).reshape(-1, 2).tolist()
    return b"".join(values[offset : offset + size] for offset, size in places)


def _manifest(files: dict[str, bytes], given: bytes) -> bytes:
    try:
        entries = json.loads(given)
    except (ValueError, RecursionError):
        return given or _manifest(files, b"{}")
    if not isinstance(entries, dict):
        return given
    sums = {name: xxh3_64_hexdigest(files[name]) for name in ("ranges", "state")}
    sizes = {"sizes": {name: len(files[name]) for name in _FILES}}
    edited = {**json.loads(files["manifest.json"]), **sums, **sizes, **entries}
    with contextlib.suppress(TypeError, RecursionError):  # these entries are refused before the checksum
        edited["manifest"] = Manifest(**edited).checksum
    return json.dumps(edited).encode()


@functools.cache
def base_snapshot() -> dict[str, bytes]:
    """The files of a snapshot, by name."""
    folder = written_directory()
    replica = Replica(folder)
    replica.catch_up()
    write_snapshot(folder, "s", "q", replica, folder / "arena")
    return {path.name: path.read_bytes() for path in (folder / "s").iterdir()}
