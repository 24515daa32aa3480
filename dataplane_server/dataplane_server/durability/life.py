"""One life of a server on a data directory: it begins with what the former life left, and goes on with its log.

    DIR/arena                    values, locked by the server that uses the directory
    DIR/checkpoint-0000...       the state of the core after as many records
    DIR/log-0000...              the calls since, in segments

The arena and the log are written at once and not synced, so they survive the death of the process and not that of the
machine. A torn record at the end of the log was never acknowledged; it is cut off. Damage elsewhere stops the server.
"""

from __future__ import annotations

import dataclasses
import gc
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataplane_server.collection import without_collection
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.requests import Recover
from dataplane_server.durability.checkpoint import DamagedCheckpointError, checkpoints
from dataplane_server.durability.log_reader import LogDamagedError, LogFormatError, RecordMissingError, segments
from dataplane_server.durability.log_writer import LogWriter
from dataplane_server.durability.logged_plane import LoggedPlane
from dataplane_server.durability.replica import Replica, kept
from dataplane_server.storage.arena import Arena
from dataplane_server.version import VERSION

_RECONNECT_S = 2.0
"""Clients pause for up to a second between two attempts to connect."""
_UNUSABLE = (ValueError, LogDamagedError, LogFormatError, RecordMissingError, DamagedCheckpointError)


class RecoveryError(Exception):
    """A directory that a server cannot go on with. Its message says why, and what to do."""


@dataclass(frozen=True)
class Recovery:
    """What a life found. calls: replayed since the checkpoint. torn_bytes: cut off the end of the log. held: clients of
    the former life still map the arena.
    """

    rows: int
    calls: int
    torn_bytes: int
    seconds: float
    held: bool


@dataclass(frozen=True)
class Life:
    """now: the time of calls, in seconds, which goes on where the former life ended. recovery: None if the directory
    was empty.
    """

    folder: Path
    plane: LoggedPlane
    arena: Arena
    now: Callable[[], float]
    log: LogWriter
    recovery: Recovery | None

    def resume(self) -> None:
        """End what the former life left under way, and let sessions go on. To be called right before the server
        listens.
        """
        if self.recovery is not None:
            self.plane.apply(Recover(self.recovery.held, _RECONNECT_S), self.now())
            self.plane.take_effects()

    @property
    def held(self) -> bool:
        """Whether clients of the former life mapped the arena when this one began."""
        return self.recovery is not None and self.recovery.held


def begin_life(folder: Path, limits: Limits, *, shared: bool, failed: Callable[[OSError], object]) -> Life:
    """Recover what is in a directory, or begin anew in an empty one. Blocks for as long as that takes.

    Raises OSError if the directory cannot be used, or another server uses it; RecoveryError if it belongs to another
    version or other limits, or is damaged.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        arena = Arena(limits.memory_bytes, shared=shared, file=folder / "arena")
    except ValueError as error:
        raise RecoveryError(str(error)) from error
    try:
        return _life(folder, limits, arena, failed)
    except _UNUSABLE as error:
        arena.close()
        raise RecoveryError(str(error)) from error
    except BaseException:
        arena.close()
        raise


def _life(folder: Path, limits: Limits, arena: Arena, failed: Callable[[OSError], object]) -> Life:
    if not segments(folder):
        return _first(folder, limits, arena, failed)
    if arena.fresh:
        raise ValueError(f"{folder} has a log but had no arena: the values are lost; empty the folder")
    return _next(folder, limits, arena, failed)


def _first(folder: Path, limits: Limits, arena: Arena, failed: Callable[[OSError], object]) -> Life:
    if checkpoints(folder):
        raise ValueError(f"{folder} has a checkpoint but no log: calls since it are lost; empty the folder")
    if arena.holders():
        raise ValueError(f"clients still use the arena in {folder}, whose log is gone; end them, or empty the folder")
    origin = {"incarnation": uuid.uuid4().hex[:12], "first_generation": time.time_ns() // 1000}
    plane = LoggedPlane(limits, **origin)  # type: ignore[arg-type]
    log = LogWriter(folder, 0, _header(origin, limits, 1, time.monotonic()))
    plane.log_to(log, failed)
    return Life(folder, plane, arena, time.monotonic, log, None)


def _next(folder: Path, limits: Limits, arena: Arena, failed: Callable[[OSError], object]) -> Life:
    began = time.monotonic()
    with kept(folder), without_collection():
        replica = Replica(folder)
        _check_limits(folder, replica.header, limits)
        calls = replica.catch_up()
        torn = replica.reader.ending()
        replica.reader.cut()
    gc.freeze()  # what was recovered is no garbage
    plane, at = replica.plane, replica.at
    origin = {name: replica.header[name] for name in ("incarnation", "first_generation")}
    header = _header(origin, limits, replica.header["epoch"] + 1, at)
    log = LogWriter(folder, replica.reader.next_record, header)
    plane.log_to(log, failed)
    held = bool(arena.holders())
    offset = at - time.monotonic()
    recovery = Recovery(plane.totals().rows, calls, torn, round(time.monotonic() - began, 3), held)
    return Life(folder, plane, arena, lambda: time.monotonic() + offset, log, recovery)


def _header(origin: Mapping[str, Any], limits: Limits, epoch: int, at: float) -> dict[str, Any]:
    """at: the time of the next call at the earliest. wall: the same moment, in seconds since 1970."""
    held = dataclasses.asdict(limits)
    return {"version": VERSION, "epoch": epoch, **origin, "limits": held, "at": at, "wall": time.time()}


def _check_limits(folder: Path, header: Mapping[str, Any], limits: Limits) -> None:
    held, wanted = header["limits"], dataclasses.asdict(limits)
    differing = [f"{name} {held.get(name)} (now {value})" for name, value in wanted.items() if held.get(name) != value]
    if differing:
        texts = ", ".join(differing)
        raise ValueError(f"{folder} was made with other limits: {texts}; start with those, or empty the folder")
