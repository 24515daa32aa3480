"""The core after the records of a log, as far as they were read: what recovery ends with and checkpoints begin with."""

from __future__ import annotations

import fcntl
import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from dataplane_server.core.calls.answers import Stored
from dataplane_server.core.calls.life_calls import BeginSnapshot, LeaveFor
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import Call, FinishWrite, StoreValues
from dataplane_server.durability.call_codec import decode_record
from dataplane_server.durability.checkpoint import (
    DamagedCheckpointError,
    build,
    checkpoints,
    load_checkpoint,
    write_checkpoint,
)
from dataplane_server.durability.checksums import Checksums
from dataplane_server.durability.log_reader import LogDamagedError, LogFormatError, LogReader, RecordMissingError
from dataplane_server.durability.logged_plane import LoggedPlane
from dataplane_server.storage.folders import locked
from dataplane_server.version import VERSION

_UPGRADE = "to upgrade, take a snapshot there, and restore it in an empty directory of this version, or export its rows"


class Replica:
    """Begins with the newest checkpoint of a folder that can be used, or with the first record of its log. latest: a
    record, to begin with the newest checkpoint that is not after it.

    at: the time of the last call, in seconds. calls: how many it has applied; log_bytes: of these. header: of the
    segment that was read last. checksums: of the values that rows have. restored: the snapshot that the state is of, if
    no call came after it; restored_by: the request for that. left: the server may have gone on from the state of a
    snapshot. If it has, the next `advance` or `catch_up` begins with that. at_snapshot: called at the moment that a
    snapshot is to be of. passed_over: why newer checkpoints cannot be used.
    """

    at_snapshot: Callable[[BeginSnapshot], object] | None = None
    calls = log_bytes = 0
    passed_over: tuple[str, ...] = ()

    def __init__(self, folder: Path, latest: int | None = None) -> None:
        """ValueError for a log of another version or build; DamagedCheckpointError, and the errors of a LogReader."""
        self._folder = folder
        found = [path for number, path in checkpoints(folder) if latest is None or number <= latest]
        self._begin(found, from_first=True)

    def _begin(self, starts: Sequence[Path], *, from_first: bool) -> None:
        """Begin with the first of the checkpoints that can be used. from_first: else with the first record."""
        errors: list[Exception] = []
        for path in [*starts, None] if from_first else starts:
            try:
                self._begin_with(path)
            except (DamagedCheckpointError, LogDamagedError, LogFormatError, RecordMissingError) as error:  # noqa: PERF203  # few
                errors.append(error)
            else:
                self.passed_over = tuple(map(str, errors))
                self._check_build()
                return
        raise errors[0]

    def _begin_with(self, checkpoint: Path | None) -> None:
        self.restored = self.restored_by = ""
        self.left = False
        self.checksums = Checksums()
        if checkpoint is not None:
            loaded = load_checkpoint(checkpoint)
            self.reader = LogReader(self._folder, loaded.next_record, loaded.extra.get("place"))
            if loaded.extra.get("incarnation", self.header["incarnation"]) != self.header["incarnation"]:
                raise DamagedCheckpointError(f"{checkpoint} cannot be used: it is of another server than the log")
            self.plane, self.at = loaded.plane, loaded.now
            self.checksums = Checksums(loaded.extra.get("checksums"))
            self.restored, self.restored_by = (loaded.extra.get(name, "") for name in ("restored", "request_id"))
        else:
            self.reader = LogReader(self._folder, 0)
            header = self.reader.header
            self.plane, self.at = _fresh_plane(header), header["at"]

    def _check_build(self) -> None:
        wrote = self.header["version"]
        if wrote != VERSION:
            raise ValueError(
                f"{self._folder} was written by version {wrote}, and this is {VERSION}; start that version ({_UPGRADE})"
            )
        if self.header.get("build") != build():
            raise ValueError(
                f"{self._folder} was written by another build of version {VERSION}; start that build ({_UPGRADE})"
            )

    @property
    def header(self) -> Mapping[str, Any]:
        return self.reader.header

    def advance(self) -> int:
        """Apply some of the records that are complete now. Returns how many; 0 if there is none. LogDamagedError;
        ValueError names a record whose calls no server has written.
        """
        payloads = self.reader.read()
        for record, payload in enumerate(payloads, self.reader.next_record - len(payloads)):
            if self._goes_on_from_snapshot(record):
                return 1
            try:
                for self.at, call in decode_record(payload):
                    self._apply(call)
            except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
                what = f"record {record} of the log in {self._folder} cannot be applied"
                raise ValueError(f"{what}: {error!r}") from error
            self.log_bytes += len(payload)
        return len(payloads)

    def catch_up(self) -> None:
        """Apply all records, once no process appends any more."""
        while self.advance():
            pass
        self._goes_on_from_snapshot(self.reader.next_record)

    def _goes_on_from_snapshot(self, record: int) -> bool:
        """Begin with the snapshot that a restore has put before this record, or with a later state, if there is one. A
        restore has ended early if that snapshot is missing and there are older checkpoints, which are removed first.
        """
        found = checkpoints(self._folder) if self.left else []
        later = [path for number, path in found if number >= record]
        if later and (found[-1][0] >= record or dict(found).get(record)):
            self._begin(later, from_first=False)
            gc.unfreeze()  # the state of before is garbage, and a standby has frozen it
            gc.collect()
            return True
        return False

    def _apply(self, call: Call[Any]) -> None:
        self.calls += 1
        self.restored, self.left = "", isinstance(call, LeaveFor)
        layout = self.plane.layout(call.ticket) if isinstance(call, FinishWrite) else None
        with suppress(Refusal):  # its caller was told
            answer = self.plane.apply(call, self.at)
            if isinstance(call, StoreValues) and isinstance(answer, Stored):
                self.checksums.note(answer.offsets, answer.sizes, call.checksums)
            if layout is not None and isinstance(call, FinishWrite):
                self.checksums.note(*layout, call.checksums)
        self.plane.take_effects()
        if isinstance(call, BeginSnapshot) and self.at_snapshot is not None:
            self.at_snapshot(call)

    def write_checkpoint(self, folder: Path) -> Path:
        """Write a checkpoint of what was applied. OSError leaves the earlier ones as they are."""
        if self.header["durability"] == "disk":  # a checkpoint must not be ahead of the log
            self.reader.sync()
        place = self.reader.segment, self.reader.position
        extra = {
            "checksums": self.checksums.keep(self.plane),
            "place": place,
            "incarnation": self.header["incarnation"],
        }
        return write_checkpoint(folder, self.plane, self.reader.next_record, self.at, extra)


def _fresh_plane(header: Mapping[str, Any]) -> LoggedPlane:
    return LoggedPlane(
        Limits(**header["limits"]),
        incarnation=header["incarnation"],
        first_generation=header["first_generation"],
    )


def kept(folder: Path, *, removing: bool = False) -> AbstractContextManager[None]:
    """A block in which no other process removes segments and checkpoints. Waits for one that does. removing: this one
    does; it also waits for blocks of others.
    """
    return locked(folder / "removing", fcntl.LOCK_EX if removing else fcntl.LOCK_SH)
