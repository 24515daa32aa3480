"""The core after the records of a log, as far as they were read: what recovery ends with and checkpoints begin with."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.durability.call_codec import decode_call
from dataplane_server.durability.checkpoint import checkpoints, load_checkpoint
from dataplane_server.durability.log_reader import LogReader
from dataplane_server.durability.logged_plane import LoggedPlane
from dataplane_server.version import VERSION


class Replica:
    """Begins with the newest checkpoint of a folder, or with the first record of its log.

    at: the time of the last call, in seconds. header: of the segment that was read last.
    """

    def __init__(self, folder: Path) -> None:
        """ValueError for a log of another version; DamagedCheckpointError, and the errors of a LogReader."""
        newest = next(iter(checkpoints(folder)), None)
        if newest is not None:
            loaded = load_checkpoint(newest[1], LoggedPlane)
            self.reader = LogReader(folder, loaded.next_record)
            self.plane, self.at = loaded.plane, loaded.now
        else:
            self.reader = LogReader(folder, 0)
            header = self.reader.header
            self.plane, self.at = _fresh_plane(header), header["at"]
        if self.header["version"] != VERSION:
            wrote = self.header["version"]
            raise ValueError(f"{folder} was written by version {wrote}, and this is {VERSION}; start that version")

    @property
    def header(self) -> Mapping[str, Any]:
        return self.reader.header

    def advance(self) -> int:
        """Apply some of the records that are complete now. Returns how many; 0 if there is none. LogDamagedError."""
        payloads = self.reader.read()
        for payload in payloads:
            self.at, call = decode_call(payload)
            with suppress(Refusal):  # its caller was told
                self.plane.apply(call, self.at)
            self.plane.take_effects()
        return len(payloads)

    def catch_up(self) -> int:
        """Apply all records, once no process appends any more. Returns how many."""
        before = self.reader.next_record
        while self.advance():
            pass
        return self.reader.next_record - before


def _fresh_plane(header: Mapping[str, Any]) -> LoggedPlane:
    return LoggedPlane(
        Limits(**header["limits"]),
        incarnation=header["incarnation"],
        first_generation=header["first_generation"],
    )


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """A block in which no other process removes segments and checkpoints. Waits for one that does."""
    file = os.open(folder / "removing", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
