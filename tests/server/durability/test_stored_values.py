"""Values that come with their call are in place before the log tells of them, and are checked by their checksums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dataplane_server.core.calls.answers import Stored
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.requests import PutSamples, RegisterPartition, StoreValues
from dataplane_server.core.calls.values import Definition, Run
from dataplane_server.durability.call_codec import decode_record
from dataplane_server.durability.checksums import checksums_of
from dataplane_server.durability.logged_plane import LoggedPlane

SPEC = ColumnSpec("a", Shape("jagged", "uint8", ()), np.array([3, 2]))
REGISTER = RegisterPartition("r", Definition("p", ("a",), ()))


def put_of(size_bytes: int) -> StoreValues:
    return StoreValues(PutSamples("1", "p", ("s0", "s1"), (SPEC,)), size_bytes)


class Log:
    def __init__(self) -> None:
        self.records: list[bytes] = []

    def append(self, payload: bytes) -> None:
        self.records.append(payload)


def test_the_log_tells_of_values_that_are_in_place() -> None:
    log, memory = Log(), memoryview(bytearray(1 << 12))
    plane = LoggedPlane(Limits(memory_bytes=len(memory)))
    plane.log_to(log, pytest.fail, memory)  # type: ignore[arg-type]
    plane.apply(REGISTER, 0.0)

    def fill(runs: Sequence[Run]) -> None:
        assert len(log.records) == 1
        (run,) = runs
        memory[run.offset : run.offset + run.size_bytes] = b"abcde"

    stored = plane.store(put_of(5), 1.0, fill)
    assert isinstance(stored, Stored)
    ((_, call),) = decode_record(log.records[1])
    assert isinstance(call, StoreValues)
    assert call.checksums == checksums_of(memory, stored.offsets, stored.sizes)
    assert len(call.checksums) == 16


def test_a_put_that_is_repeated_or_of_another_size_than_declared_fills_nothing() -> None:
    plane = LoggedPlane(Limits(memory_bytes=1 << 12))
    plane.apply(REGISTER, 0.0)
    filled: list[Sequence[Run]] = []
    assert not isinstance(plane.store(put_of(4), 1.0, filled.append), Stored)
    assert (plane.totals().rows, filled) == (0, [])
    first = plane.store(put_of(5), 2.0, filled.append)
    assert isinstance(first, Stored)
    assert plane.store(put_of(5), 3.0, filled.append) == first.result
    assert filled == [first.runs]
