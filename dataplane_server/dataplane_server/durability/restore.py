"""Restoring a snapshot into a data directory, so that the next life of its server goes on from there.

The state becomes a checkpoint behind the last record of the log, which says so (LeaveFor). The values become another
arena. First both are written beside what is in use; then the log gets its last record; then the checkpoint gets its
name, which is the moment from which the next life begins with it; that life gives the arena its name. Whatever is left
over from an attempt that did not come that far is removed by the next life. Clients that still map the former arena
write to a file without a name.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dataplane_server.core.calls.life_calls import Restored
from dataplane_server.core.calls.limits import Limits
from dataplane_server.durability.checkpoint import (
    DamagedCheckpointError,
    checkpoints,
    load_checkpoint,
    read_extra,
    write_checkpoint,
)
from dataplane_server.durability.logged_plane import LoggedPlane
from dataplane_server.durability.mark import carry
from dataplane_server.durability.snapshot import Manifest, SnapshotError, copy_values, open_part, read_manifest
from dataplane_server.storage.arena import Arena
from dataplane_server.storage.arena_file import ArenaFile
from dataplane_server.storage.folders import sync_path

_STATE = "restoring"
_ARENAS = "arena.restored-"
_BESIDE_BOOKKEEPING = 512 << 20
"""Bytes of a state that --bookkeeping does not count: history, counts of the last minute, claims and sessions."""


@dataclass(frozen=True)
class Prepared:
    """A snapshot that was copied into a data directory and not yet taken into use."""

    folder: Path
    plane: LoggedPlane
    now: float
    extra: Mapping[str, Any]

    def write(self, next_record: int, restored: Restored) -> Path:
        """Write the checkpoint that the next life begins with, under a name that does not count yet. next_record:
        behind the last record of this life. restored: what sets the state apart from the one that is left.
        """
        self.plane.apply(restored, self.now)
        self.plane.take_effects()
        return write_checkpoint(self.folder / _STATE, self.plane, next_record, self.now, self.extra)

    def use(self, written: Path) -> None:
        """Let the next life begin with it."""
        written.rename(self.folder / written.name)
        sync_path(self.folder)


@dataclass(frozen=True)
class Source:
    """A snapshot to restore. request_id: of the call that asks for it. file_bytes: of the arena."""

    snapshot: Path
    request_id: str
    file_bytes: int


def prepare(source: Source, folder: Path, limits: Limits) -> Prepared:
    """Copy a snapshot into a data directory. Blocks; SnapshotError, OSError and DamagedCheckpointError leave the
    directory as it is.
    """
    manifest = read_manifest(source.snapshot)
    if manifest.limits != asdict(limits):
        what = f"{source.snapshot} is of a server with other limits: {manifest.limits}"
        raise SnapshotError(f"{what}; start one with those")
    _check_size(source.snapshot, manifest, limits)
    loaded = load_checkpoint(source.snapshot / "state")
    discard(folder)
    (folder / _STATE).mkdir()
    arena = ArenaFile(folder / f"{_ARENAS}{uuid.uuid4().hex}", source.file_bytes)
    try:
        copy_values(source.snapshot, manifest, arena.descriptor)
        arena.sync()
    except BaseException:
        discard(folder)
        raise
    finally:
        arena.close()
    extra = {**loaded.extra, "restored": manifest.name, "request_id": source.request_id, "arena": arena.path.name}
    return Prepared(folder, loaded.plane, loaded.now, extra)


def _check_size(snapshot: Path, manifest: Manifest, limits: Limits) -> None:
    """The state is read whole, so it may have no more bytes than a server with these limits could write."""
    with open_part(snapshot, "state", manifest):
        size, most = manifest.sizes["state"], 4 * limits.bookkeeping_bytes + _BESIDE_BOOKKEEPING
    if size > most:
        raise SnapshotError(
            f"{snapshot / 'state'} has {size} bytes, more than the {most} of a server with these limits"
        )


def finish(folder: Path, arena: Arena) -> bool:
    """Give the arena of a restored snapshot its name, and the mark of the arena in use, if the newest checkpoint is of
    one whose arena has none yet. Returns whether it did. To be called by the only server that uses the directory. What
    it has stays as it is if that checkpoint is damaged: an earlier one may do.
    """
    left_over, newest = list(folder.glob(f"{_ARENAS}*")), next(iter(checkpoints(folder)), None)
    try:
        restored = read_extra(newest[1]).get("arena", "") if left_over and newest is not None else ""
    except DamagedCheckpointError:
        return False
    finished = restored in [path.name for path in left_over]
    if finished:
        carry(arena, folder / restored)
        (folder / restored).rename(folder / "arena")
        sync_path(folder)
    discard(folder)
    return finished


def discard(folder: Path) -> None:
    """Remove what was prepared and never used."""
    for path in folder.glob(f"{_ARENAS}*"):
        path.unlink()
    shutil.rmtree(folder / _STATE, ignore_errors=True)
