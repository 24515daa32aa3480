"""The core after the records of a log, as far as they were read: what recovery ends with and checkpoints begin with."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dataplane_server.core.calls.life_calls import BeginSnapshot, LeaveFor
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import Call, FinishWrite
from dataplane_server.durability.call_codec import decode_record
from dataplane_server.durability.checkpoint import checkpoints, load_checkpoint, write_checkpoint
from dataplane_server.durability.checksums import Checksums
from dataplane_server.durability.log_reader import LogReader
from dataplane_server.durability.logged_plane import LoggedPlane
from dataplane_server.version import VERSION


class Replica:
    """Begins with the newest checkpoint of a folder, or with the first record of its log. latest: a record, to begin
    with the newest checkpoint that is not after it.

    at: the time of the last call, in seconds. calls: how many it has applied; log_bytes: of these. header: of the
    segment that was read last. checksums: of the values that rows have. restored: the snapshot that the state is of, if
    no call came after it; restored_by: the request for that. left: the server may have gone on from the state of a
    snapshot. If it has, the next `advance` or `catch_up` begins with that. at_snapshot: called at the moment that a
    snapshot is to be of.
    """

    at_snapshot: Callable[[BeginSnapshot], object] | None = None
    calls = log_bytes = 0

    def __init__(self, folder: Path, latest: int | None = None) -> None:
        """ValueError for a log of another version; DamagedCheckpointError, and the errors of a LogReader."""
        self._folder = folder
        self._begin(latest)

    def _begin(self, latest: int | None = None) -> None:
        self.restored = self.restored_by = ""
        self.left = False
        self.checksums = Checksums()
        newest = next((found for found in checkpoints(self._folder) if latest is None or found[0] <= latest), None)
        if newest is not None:
            loaded = load_checkpoint(newest[1], LoggedPlane)
            self.reader = LogReader(self._folder, loaded.next_record)
            self.plane, self.at = loaded.plane, loaded.now
            self.checksums = Checksums(loaded.extra.get("checksums"))
            self.restored, self.restored_by = (loaded.extra.get(name, "") for name in ("restored", "request_id"))
        else:
            self.reader = LogReader(self._folder, 0)
            header = self.reader.header
            self.plane, self.at = _fresh_plane(header), header["at"]
        if self.header["version"] != VERSION:
            wrote = self.header["version"]
            raise ValueError(
                f"{self._folder} was written by version {wrote}, and this is {VERSION}; start that version"
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
        """Begin with the snapshot that a restore has put before this record, if there is one."""
        goes_on = self.left and any(number >= record for number, _ in checkpoints(self._folder))
        if goes_on:
            self._begin()
        return goes_on

    def _apply(self, call: Call[Any]) -> None:
        self.calls += 1
        self.restored, self.left = "", isinstance(call, LeaveFor)
        layout = self.plane.layout(call.ticket) if isinstance(call, FinishWrite) else None
        with suppress(Refusal):  # its caller was told
            self.plane.apply(call, self.at)
            if layout is not None and isinstance(call, FinishWrite):
                self.checksums.note(*layout, call.checksums)
        self.plane.take_effects()
        if isinstance(call, BeginSnapshot) and self.at_snapshot is not None:
            self.at_snapshot(call)

    def write_checkpoint(self, folder: Path) -> Path:
        """Write a checkpoint of what was applied. OSError leaves the earlier ones as they are."""
        if self.header["durability"] == "disk":  # a checkpoint must not be ahead of the log
            self.reader.sync()
        extra = {"checksums": self.checksums.keep(self.plane)}
        return write_checkpoint(folder, self.plane, self.reader.next_record, self.at, extra)


def _fresh_plane(header: Mapping[str, Any]) -> LoggedPlane:
    return LoggedPlane(
        Limits(**header["limits"]),
        incarnation=header["incarnation"],
        first_generation=header["first_generation"],
    )


@contextmanager
def kept(folder: Path, *, removing: bool = False) -> Iterator[None]:
    """A block in which no other process removes segments and checkpoints. Waits for one that does. removing: this one
    does; it also waits for blocks of others.
    """
    file = os.open(folder / "removing", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX if removing else fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)
