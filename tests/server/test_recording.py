"""Recordings of calls: written by a core, run again on a fresh one, compared call by call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from dataplane_server.core.calls.answers import Grant, Reservation
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import (
    BeginRead,
    ClaimSamples,
    ClaimShard,
    ClearSamples,
    CommitClaim,
    EndRead,
    FinishWrite,
    OpenSession,
    PutSamples,
    RegisterPartition,
)
from dataplane_server.core.calls.values import Definition
from dataplane_server.recording.recorder import LENGTH, RecordedPlane
from dataplane_server.replaying.recording import replay

COLUMN = ColumnSpec("a", Shape("jagged", "uint8", (2,)), np.array([3, 1]))
PUT = PutSamples(
    "r1", "p", ["s0", "s1"], [COLUMN], [{"weight_version": 3, "std": 0.5, "x": None}, {}], np.array([3, -1])
)


def recorded(path: Path, outside: Callable[[RecordedPlane], None] = lambda plane: None) -> None:
    """A recording of a put, a read, a claim with its commit, a refused claim and a clear. outside: done behind the door
    before the last call.
    """
    plane = RecordedPlane(path, Limits(memory_bytes=4096), incarnation="i", first_generation=1)
    plane.apply(RegisterPartition("r0", Definition("p", ("a",), ("t",), per_token_fields=frozenset("a"))), 0.0)
    session = plane.apply(OpenSession("", "client"), 0.5).session_id
    reservation = plane.apply(PUT, 1.0)
    assert isinstance(reservation, Reservation)
    plane.apply(FinishWrite(reservation.ticket), 1.5)
    plane.apply(EndRead(plane.apply(BeginRead("p", ["s1"], ["a"]), 2.0).ticket), 2.0)
    grant = plane.apply(ClaimSamples("r2", "p", "t", ("a",), 2, 2, session_id=session), 3.0)
    assert isinstance(grant, Grant)
    plane.apply(CommitClaim("r3", grant.claim_id), 4.0)
    with pytest.raises(Refusal):
        plane.apply(ClaimShard("r4", "p", "no task", 0, 0, 1, (), 1, 1, "rows"), 5.0)
    outside(plane)
    plane.apply(ClearSamples("r5", "p", None), 6.0)
    plane.take_effects()
    plane.close()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "recording"
    recorded(path)
    return path


def run(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dataplane_server.replaying", str(path), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def records_of(path: Path) -> list[Any]:
    data, records = path.read_bytes(), []
    while data:
        end = LENGTH.size + LENGTH.unpack(data[: LENGTH.size])[0]
        records.append(msgpack.unpackb(data[LENGTH.size : end]))
        data = data[end:]
    return records


def write(path: Path, records: list[Any]) -> None:
    packed = map(msgpack.packb, records)
    path.write_bytes(b"".join(LENGTH.pack(len(record)) + record for record in packed))


def changed(path: Path, number: int, change: Callable[[list[object]], None]) -> Path:
    """A copy of a recording with one record changed."""
    records = records_of(path)
    change(records[number])
    copy = path.with_name("changed")
    write(copy, records)
    return copy


def test_a_recording_replays_with_equal_outcomes_and_an_equal_state(recording: Path) -> None:
    found = replay(recording)
    assert (found.calls, found.refused, found.difference, found.equal) == (10, 1, None, True)
    assert found.digests[0] == found.digests[1]
    ran = run(recording)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "10 calls replayed, 1 of them refused" in ran.stdout
    assert "equal to the recorded one" in ran.stdout


def test_a_change_outside_of_the_door_is_found(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    recorded(path, outside=lambda plane: plane.partitions["p"].tasks["t"].counters.__init__(7))  # type: ignore[misc]
    assert replay(path).digests[0] != replay(path).digests[1]
    ran = run(path)
    assert ran.returncode == 1
    assert "differs from the recorded one" in ran.stdout


def test_the_first_outcome_that_differs_is_named(recording: Path) -> None:
    def forget(record: list[object]) -> None:
        record[1] = "0" * 32

    found = replay(changed(recording, 6, forget))
    assert not found.equal
    assert found.difference is not None
    assert "call 6 at 2.000000 s: EndRead(ticket=1)" in found.difference


def test_a_recording_without_its_end_is_replayed_as_far_as_it_goes(recording: Path) -> None:
    recording.write_bytes(recording.read_bytes()[:-90])
    found = replay(recording)
    assert (found.calls, found.digests[0], found.equal) == (9, None, True)
    assert "did not stop in order" in run(recording).stdout


@pytest.mark.parametrize(
    "content", [b"", b"\x04\0\0\0\x93\x01\x02\x03", b"[text]"], ids=["an empty file", "another list", "text"]
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    ran = run(path)
    assert ran.returncode == 2
    assert "not a recording" in ran.stderr


def test_a_recording_of_another_version_is_refused(recording: Path) -> None:
    records = records_of(recording)
    records[0]["version"] = "0.0.1"
    write(recording, records)
    with pytest.raises(ValueError, match=r"0\.0\.1.*replay it with that version"):
        replay(recording)
