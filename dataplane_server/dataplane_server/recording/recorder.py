"""Writes every call of a core, with its outcome, to a file.

A recording is a sequence of msgpack values, each after its length (4 bytes, little-endian): a header, one record a
call, and a footer. A record has the call with its time, as in a log, and a hash of its outcome: the answer or the
refusal, and the effects that the call caused. The footer has the digest of the final state. A server that was killed
leaves no footer, and may cut the last record short.
"""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgpack

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import Call
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.stats.digest import digest
from dataplane_server.durability.call_codec import encode_call
from dataplane_server.version import VERSION

A = TypeVar("A")

FORMAT = 2
LENGTH = struct.Struct("<I")


class RecordedPlane(DataPlane):
    """A core whose calls are recorded, until `close`."""

    def __init__(self, path: Path, limits: Limits, *, incarnation: str, first_generation: int) -> None:
        super().__init__(limits, incarnation=incarnation, first_generation=first_generation)
        self._file: BinaryIO = path.open("wb")
        self._write(
            {
                "format": FORMAT,
                "version": VERSION,
                "limits": dataclasses.asdict(limits),
                "incarnation": incarnation,
                "first_generation": first_generation,
            }
        )

    def apply(self, call: Call[A], now: float) -> A:
        outcome: object = None
        before = len(self._state.effects)
        try:
            outcome = answer = super().apply(call, now)
        except Refusal as refusal:
            outcome = refusal
            raise
        finally:
            self._write((encode_call(now, call), digest(outcome, self._state.effects[before:])))
        return answer

    def close(self) -> None:
        """Write the footer and close the file. Later calls are not recorded."""
        if not self._file.closed:
            self._write({"digest": self.digest()})
            self._file.close()

    def _write(self, value: object) -> None:
        if not self._file.closed:
            data = msgpack.packb(value)
            self._file.write(LENGTH.pack(len(data)) + data)
