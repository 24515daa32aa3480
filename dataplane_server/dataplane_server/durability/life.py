"""One life of a server on a data directory: it begins with what the former life left, and goes on with its log.

    DIR/arena                    values, locked by the server that uses the directory
    DIR/checkpoint-0000...       the state of the core after as many records
    DIR/log-0000...              the calls since, in segments

With durability `process`, arena and log are written at once and not synced, so they survive the death of the process
and not that of the machine: after that the server does not start, because values and calls may not fit together. With
`disk`, `group_commit` syncs them before an answer leaves. Recovery checks every value by its checksum.

The arena has a mark (`durability.mark`) of the log that belongs to it. A file that is missing, or not of this
directory, is refused, at this start and at each later one: nothing is made before the log is found complete. A torn
record at the end of the log was never acknowledged; it is cut off. A checkpoint that is damaged is passed over, if the
one before it, or the whole log, is there. Other damage stops the server, and the error names what it costs. A server
that is told to accept the loss goes on without what is damaged.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dataplane_server.collection import without_collection
from dataplane_server.core.calls.life_calls import LeaveFor, Recover, Restored
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.requests import AbortGroup, ClearSamples
from dataplane_server.core.state.issued_ids import new_incarnation
from dataplane_server.durability.checkpoint import DamagedCheckpointError, build, checkpoints
from dataplane_server.durability.checksums import Damaged
from dataplane_server.durability.group_commit import GroupCommit
from dataplane_server.durability.log_reader import (
    LogDamagedError,
    LogFormatError,
    LogReader,
    RecordMissingError,
    forget_cached,
    segment_path,
    segments,
)
from dataplane_server.durability.log_writer import LogWriter
from dataplane_server.durability.logged_plane import LoggedPlane
from dataplane_server.durability.mark import Mark, Marks, compare, compare_run
from dataplane_server.durability.replica import Replica, kept
from dataplane_server.durability.restore import Prepared, finish
from dataplane_server.storage.arena import Arena
from dataplane_server.version import VERSION

DataDirDurability = Literal["process", "disk"]
Failed = Callable[[Exception], object]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMED = 20  # damaged values in a message
_RECONNECT_S = 2.0
"""Clients pause for up to a second between two attempts to connect."""
_UNUSABLE = (ValueError, LogDamagedError, LogFormatError, RecordMissingError, DamagedCheckpointError)


class RecoveryError(Exception):
    """A directory that a server cannot go on with. Its message says why, and what to do."""


@dataclass(frozen=True)
class Terms:
    """What a server asks of its directory. failed: called when the log cannot be written. accept_loss: go on without
    what is damaged. segment_bytes: of the log. arena: in place of the folder's, if the values are elsewhere.
    """

    folder: Path
    limits: Limits
    shared: bool
    durability: DataDirDurability
    failed: Failed
    accept_loss: bool = False
    segment_bytes: int = 16 << 20
    arena: Arena | None = None


@dataclass(frozen=True)
class Recovery:
    """What a life found. calls: replayed since the checkpoint, or since a standby began. torn_bytes: cut off the end of
    the log. held: clients of the former life still map the arena. damaged: values that are lost, which was accepted.
    warnings: damage that was passed over or accepted.
    restored: the snapshot that this life begins with; restored_by: the request for it.
    """

    rows: int
    calls: int
    torn_bytes: int
    seconds: float
    held: bool
    damaged: int = 0
    restored: str = ""
    restored_by: str = ""
    warnings: tuple[str, ...] = ()


class _Recovered(NamedTuple):
    """A replica of the whole log; how many bytes behind it are torn; what is lost, which was accepted."""

    replica: Replica
    torn: int
    accepted: list[str]


@dataclass(frozen=True)
class Life:
    """now: the time of calls, in seconds, which goes on where the former life ended. recovery: None if the directory
    was empty. commits: where calls wait for stable storage, if they do. failed: as of Terms.
    """

    folder: Path
    plane: LoggedPlane
    arena: Arena
    now: Callable[[], float]
    log: LogWriter
    commits: GroupCommit | None
    recovery: Recovery | None
    failed: Failed

    def resume(self) -> None:
        """End what the former life left under way, and let sessions go on. To be called right before the server
        listens.
        """
        self.plane.apply(Recover(self.held, _RECONNECT_S, defer_frees=self.commits is not None), self.now())
        self.plane.take_effects()

    async def flush(self) -> None:
        if self.commits is not None:
            await self.commits.close()

    async def close(self) -> None:
        """Refuse all later calls; the server itself may still make one, such as the end of a snapshot."""
        await self.flush()
        self.plane.end()
        self.log.close()

    async def leave_for(self, prepared: Prepared) -> None:
        """End this life; the next one begins with a snapshot. Every later call is refused. OSError or
        DamagedCheckpointError before that leaves it as it is, and so does a cancellation.
        """
        self.log.check_folder()
        async with self._at_rest():  # without awaits: no call comes in between, and it cannot be cancelled halfway
            self._write_now()
            generation = max(self.plane.next_generation, time.time_ns() // 1000)  # the clock may have been set back
            written = prepared.write(self.log.next_record + 1, Restored(new_incarnation(), generation))
            self.plane.apply(LeaveFor(prepared.extra["restored"]), self.now())
            self.plane.end()
            self._write_now()
            try:
                prepared.use(written)
            except OSError as error:  # the log has ended, and which state the next life begins with is unknown
                self.failed(error)
                raise

    def _at_rest(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self.commits is None else self.commits.at_rest()

    def _write_now(self) -> None:
        if self.commits is not None:
            self.commits.write_now()

    @property
    def held(self) -> bool:
        """Whether clients of the former life mapped the arena when this one began."""
        return self.recovery is not None and self.recovery.held


def begin_life(terms: Terms, replica: Replica | None = None) -> Life:
    """Recover what is in a directory, or begin anew in an empty one. Blocks for as long as that takes. replica: one
    that has followed the log so far.

    Raises OSError if the directory cannot be used (EBUSY: another server uses it); RecoveryError if it belongs to
    another version or other limits, or is damaged.
    """
    terms.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    arena: Arena | None = None
    try:
        _refuse_without_arena(terms)
        arena = _open_arena(terms)
        if terms.arena is None and finish(terms.folder, arena):
            arena.close()
            arena = _open_arena(terms)
        marks = Marks(arena) if terms.arena is None else None
        if _is_new(terms.folder, arena, marks):
            return _first(terms, arena, marks)
        return _next(terms, arena, marks, replica)
    except BaseException as error:
        if arena is not None:
            arena.close()
        if isinstance(error, _UNUSABLE):
            raise RecoveryError(str(error)) from error
        raise


def _open_arena(terms: Terms) -> Arena:
    if terms.arena is not None:
        return terms.arena
    return Arena(terms.limits.memory_bytes, shared=terms.shared, file=terms.folder / "arena")


def _refuse_without_arena(terms: Terms) -> None:
    """ValueError if there is a log whose arena is missing. None is made beside it."""
    folder, missing = terms.folder, terms.arena is None and not (terms.folder / "arena").exists()
    if missing and not terms.accept_loss and (segments(folder) or checkpoints(folder)):
        raise ValueError(
            f"{folder} has a log but no arena: the values are lost; put {folder}/arena back, start with --accept-loss "
            "to clear the rows, or empty the folder"
        )


def _is_new(folder: Path, arena: Arena, marks: Marks | None) -> bool:
    """Whether no server has used a directory. ValueError if one has, and something is missing."""
    if segments(folder):
        return False
    if checkpoints(folder):
        raise ValueError(f"{folder} has a checkpoint but no log: calls since it are lost; empty the folder")
    if marks is not None and marks.newest is not None:
        missing = segment_path(folder, marks.newest.first)
        raise ValueError(f"{folder} has an arena but no log: {missing} is missing; put it back, or empty the folder")
    if arena.holders():
        raise ValueError(f"clients still use the arena in {folder}, whose log is gone; end them, or empty the folder")
    return True


def _first(terms: Terms, arena: Arena, marks: Marks | None) -> Life:
    origin = {"incarnation": new_incarnation(), "first_generation": time.time_ns() // 1000}
    plane = LoggedPlane(terms.limits, **origin)  # type: ignore[arg-type]
    log = _new_log(terms, 0, _header(origin, terms, 1), marks)
    commits = _logged(terms, plane, arena, log)
    return Life(terms.folder, plane, arena, time.monotonic, log, commits, None, terms.failed)


def _next(terms: Terms, arena: Arena, marks: Marks | None, replica: Replica | None) -> Life:
    began = time.monotonic()
    with without_collection():
        found = None if replica is None else _end_for_standby(terms, replica, marks)
        takes_over = found is not None  # at once: values of a machine that still runs are in memory
        found = found or _recovered(terms, arena, marks)
    replica, torn, accepted = found
    gc.freeze()  # what was recovered is no garbage
    header = replica.header
    _check(terms, header)
    damaged = [] if takes_over or terms.arena is not None else replica.checksums.damaged(replica.plane, arena.memory)
    _check_values(terms, damaged)
    _cut(terms, replica, marks)
    origin = {name: header[name] for name in ("incarnation", "first_generation")}
    lives = max(header["epoch"], 0 if marks is None or marks.newest is None else marks.newest.epoch)
    log = _new_log(terms, replica.reader.next_record, _header(origin, terms, lives + 1, replica.at), marks)
    plane, offset, held = replica.plane, replica.at - time.monotonic(), bool(arena.holders())
    commits = _logged(terms, plane, arena, log)
    if damaged:  # a call that waited in the former life is not to get the room of their rows
        plane.apply(Recover(held, _RECONNECT_S, defer_frees=commits is not None), replica.at)
    _clear(plane, damaged, replica.at)
    seconds = round(time.monotonic() - began, 3)
    recovery = Recovery(
        plane.totals().rows,
        replica.calls,
        torn,
        seconds,
        held,
        len(damaged),
        replica.restored,
        replica.restored_by,
        (*replica.passed_over, *accepted),
    )
    return Life(terms.folder, plane, arena, lambda: time.monotonic() + offset, log, commits, recovery, terms.failed)


def _end_for_standby(terms: Terms, replica: Replica, marks: Marks | None) -> _Recovered | None:
    """As _end_of_log, without a wait for the former checkpointer, which may hold its lock at a low priority. None if
    the replica lagged behind the removal of old records, has read one that the disk has lost, or if the former server
    has synced nothing and this one does.
    """
    try:
        found = _end_of_log(terms, replica, marks)
        if terms.durability == "disk":
            if replica.header["durability"] == "process":
                return None
            if mark := _mark_of(replica.reader, marks):  # what is behind it may not be on the disk
                replica.reader.write_again(min(mark.acknowledged, replica.reader.position))
    except RecordMissingError:
        return None
    return found


def _recovered(terms: Terms, arena: Arena, marks: Marks | None) -> _Recovered:
    with kept(terms.folder):
        if terms.durability == "disk":  # what is read now is what the disk has
            arena.forget_cached()
            forget_cached(terms.folder)
            if marks is not None:
                marks.read()
        return _end_of_log(terms, Replica(terms.folder), marks)


def _end_of_log(terms: Terms, replica: Replica, marks: Marks | None) -> _Recovered:
    """Apply the rest of the log, and see whether it is complete."""
    accepted: list[str] = []
    with _accepting(terms, accepted):
        compare_run(None if marks is None else marks.newest, replica.reader, terms.folder)
    try:
        replica.catch_up()
        torn = replica.reader.ending()
        if marks is not None and not accepted:
            with _accepting(terms, accepted):
                compare(marks.newest, replica.reader, terms.folder)
    except LogDamagedError as error:
        if not terms.accept_loss:
            raise
        accepted.append(str(error))
        torn = replica.reader.abandon()
    return _Recovered(replica, torn, accepted)


@contextmanager
def _accepting(terms: Terms, accepted: list[str]) -> Iterator[None]:
    """A block that compares arena and log. What differs is noted if the loss is accepted; ValueError if it is not."""
    try:
        yield
    except ValueError as error:
        if not terms.accept_loss:
            message = "put the right file back, start with --accept-loss to clear rows whose values are lost, or empty"
            raise ValueError(f"{error}; {message} the folder") from error
        accepted.append(str(error))


def _cut(terms: Terms, replica: Replica, marks: Marks | None) -> None:
    """Cut off what is behind the last record. Checkpoints of later ones are renamed to `lost-...`: the log gets other
    records of these numbers.
    """
    for number, path in checkpoints(terms.folder):
        if number > replica.reader.next_record:
            path.rename(path.with_name(f"lost-{path.name}"))
    reader = replica.reader
    if marks is not None and (mark := _mark_of(reader, marks)):
        marks.shorten(reader.position, min(mark.acknowledged, reader.position))
        if terms.durability == "disk":
            marks.sync()
    replica.reader.cut()


def _mark_of(reader: LogReader, marks: Marks | None) -> Mark | None:
    """The mark, if it is of the segment that is read."""
    mark = None if marks is None else marks.newest
    of_segment = mark is not None and (mark.epoch, mark.first) == (reader.header["epoch"], reader.segment)
    return mark if of_segment else None


def _new_log(terms: Terms, first: int, header: Mapping[str, Any], marks: Marks | None) -> LogWriter:
    synced = terms.durability == "disk"
    return LogWriter(terms.folder, first, header, segment_bytes=terms.segment_bytes, synced=synced, marks=marks)


def _logged(terms: Terms, plane: LoggedPlane, arena: Arena, log: LogWriter) -> GroupCommit | None:
    """Let the plane log its calls."""
    memory = arena.memory if terms.arena is None else None
    if terms.durability == "process":
        plane.log_to(log, terms.failed, memory)
        return None
    commits = GroupCommit(plane, arena, log, terms.failed)
    plane.log_to(commits, terms.failed, memory)
    return commits


def _header(origin: Mapping[str, Any], terms: Terms, epoch: int, at: float | None = None) -> dict[str, Any]:
    """at: the time of the next call at the earliest; None for that of this machine. wall: the same moment, in seconds
    since 1970. boot: of the machine since it was started.
    """
    header = {
        "version": VERSION,
        "build": build(),
        "epoch": epoch,
        **origin,
        "limits": dataclasses.asdict(terms.limits),
        "durability": terms.durability,
        "boot": _boot(),
    }
    return {**header, "at": time.monotonic() if at is None else at, "wall": time.time()}  # with nothing between them


def _boot() -> str:
    return _BOOT.read_text().strip() if _BOOT.exists() else ""


def _check(terms: Terms, header: Mapping[str, Any]) -> None:
    """ValueError if a life cannot go on after the one that wrote a header."""
    check_limits(terms, header)
    if header["durability"] == "process" and header["boot"] != _boot():
        raise ValueError(
            f"the machine was started again since a server with --durability process used {terms.folder}, so calls and "
            "values in it may not fit together; empty the folder (--durability disk survives this)"
        )


def check_limits(terms: Terms, header: Mapping[str, Any]) -> None:
    """ValueError names the limits that differ from those of a header: all of one log have the same."""
    held, wanted = header["limits"], dataclasses.asdict(terms.limits)
    differing = [f"{name} {held.get(name)} (now {value})" for name, value in wanted.items() if held.get(name) != value]
    if differing:
        raise ValueError(
            f"{terms.folder} was made with other limits: {', '.join(differing)}; start with those, or empty the folder"
        )


def _check_values(terms: Terms, damaged: list[Damaged]) -> None:
    if damaged and not terms.accept_loss:
        names = [
            f"field {field!r} of {'group' if reservation_id else 'sample'} {owner!r} in {partition!r}"
            for partition, field, owner, reservation_id in damaged[:_NAMED]
        ]
        more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
        raise ValueError(
            f"{terms.folder}: stored values are not those that were put: {', '.join(names)}{more}; restore a "
            "snapshot, or start with --accept-loss to clear their rows"
        )


def _clear(plane: LoggedPlane, damaged: list[Damaged], now: float) -> None:
    """Remove the rows with damaged values, and the groups, which have them for rows to come."""
    samples: dict[str, dict[str, None]] = {}
    for partition_id, _, owner, reservation_id in damaged:
        if not reservation_id:
            samples.setdefault(partition_id, {})[owner] = None
    for reservation_id in {each.reservation_id: None for each in damaged if each.reservation_id}:
        plane.apply(AbortGroup(_request_id(), reservation_id, "a value of the group is damaged"), now)
    for partition_id, ids in samples.items():
        left, most = iter(ids), plane.limits.max_rows_per_call
        while some := list(itertools.islice(left, most)):
            plane.apply(ClearSamples(_request_id(), partition_id, some), now)


def _request_id() -> str:
    return f"lost-{uuid.uuid4().hex}"
