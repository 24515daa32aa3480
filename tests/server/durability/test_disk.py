"""With durability `disk` an answer leaves when what it tells is on stable storage, and no freed byte is used before.

What happens when syncs fail, or power is lost, is shown by `tests/simulate`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.server.durability.test_life import LIMITS, REGISTER, begin, put, put_of, raised

from dataplane_server.core.calls.answers import Reservation, Reserved, Waiting
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.flow import FlowPolicy
from dataplane_server.core.calls.life_calls import Recover, Settle
from dataplane_server.core.calls.requests import (
    AbortWrite,
    ClaimSamples,
    ClearSamples,
    FinishWrite,
    PutSamples,
    ReserveGroup,
    SetPolicies,
)
from dataplane_server.core.plane import DataPlane
from dataplane_server.durability import life as lives
from dataplane_server.durability.life import DataDirDurability, Life, RecoveryError, Terms, begin_life
from dataplane_server.durability.log_reader import LogReader, segments
from dataplane_server.durability.replica import Replica


async def test_calls_are_in_the_log_when_their_answers_may_leave_and_not_before(tmp_path: Path) -> None:
    life = begin(tmp_path, "disk")
    life.plane.apply(REGISTER, 0.0)
    put(life.plane, "s", 100)
    assert life.commits is not None
    assert LogReader(tmp_path, 0).read() == []
    pending = life.commits.unstable()
    assert pending is not None
    await pending
    assert len(LogReader(tmp_path, 0).read()) == 1  # one record for the batch
    assert life.commits.unstable() is None
    await life.close()
    life.arena.close()


@pytest.mark.parametrize("durability", ["process", "disk"])
async def test_whatever_keeps_a_call_out_of_the_log_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: DataDirDurability
) -> None:
    failed: list[Exception] = []
    life = begin_life(Terms(tmp_path, LIMITS, False, durability, failed.append))

    def fail(record: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(life.log, "append", fail)
    with contextlib.suppress(MemoryError):
        life.plane.apply(REGISTER, life.now())
        if life.commits is not None:
            life.commits.unstable()
            assert life.commits._writing is not None
            await life.commits._writing
    assert [type(error) for error in failed] == [MemoryError]
    life.arena.close()


def test_a_standby_on_disk_syncs_what_a_server_that_syncs_nothing_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own calls would be of no use after a loss of power if some before them were missing."""
    life = begin(tmp_path, "process", segment_bytes=1400)
    life.plane.apply(REGISTER, 0.0)
    for number in range(12):
        put(life.plane, f"s{number}", 8)
    replica, written, synced = Replica(tmp_path), {path.stat().st_ino for _, path in segments(tmp_path)}, set[int]()
    replica.catch_up()
    life.arena.close()
    sync = os.fdatasync

    def noted(file: int) -> None:
        synced.add(os.fstat(file).st_ino)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", noted)
    after = begin_life(Terms(tmp_path, LIMITS, False, "disk", raised), replica)
    assert len(written) > 1
    assert written <= synced
    after.arena.close()


async def replica_ahead_of_a_failed_sync(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Replica, int]:
    """A standby's, with a last record that its server has written and failed to sync, and where that begins."""
    life, sync = begin_life(Terms(folder, LIMITS, False, "disk", lambda error: None)), os.fdatasync
    life.resume()
    assert life.commits is not None
    life.plane.apply(REGISTER, 0.0)
    await life.flush()
    replica = Replica(folder)
    replica.catch_up()
    acknowledged = replica.reader.position

    def fail(file: int) -> None:
        if os.path.samestat(os.fstat(file), replica.reader.path.stat()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(file)

    put(life.plane, "s", 100)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        life.commits.unstable()
        assert life.commits._writing is not None
        with pytest.raises(OSError, match="Input/output"):
            await life.commits._writing
    replica.catch_up()
    assert replica.reader.position > acknowledged
    life.arena.close()
    return replica, acknowledged


async def test_a_standby_writes_again_what_a_failed_sync_may_have_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have dropped the pages and report them clean. Then no later sync would write them."""
    replica, acknowledged = await replica_ahead_of_a_failed_sync(tmp_path, monkeypatch)
    path, end = replica.reader.path, replica.reader.position
    number, content = path.stat().st_ino, path.read_bytes()[acknowledged:end]
    pwrite, fsync, steps = os.pwrite, os.fsync, list[tuple[int, bytes] | str]()

    def written(file: int, data: bytes, position: int) -> int:
        if os.fstat(file).st_ino == number:
            steps.append((position, bytes(data)))
        return pwrite(file, data, position)

    def synced(file: int) -> None:
        if os.fstat(file).st_ino == number:
            steps.append("sync")
        fsync(file)

    monkeypatch.setattr(os, "pwrite", written)
    monkeypatch.setattr(os, "fsync", synced)
    after = begin_life(Terms(tmp_path, LIMITS, False, "disk", raised), replica)
    assert steps == [(acknowledged, content), "sync"]
    assert after.plane.totals().rows == 1
    after.arena.close()


async def test_a_standby_begins_from_the_disk_if_that_has_lost_a_record_which_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the kernel drops pages that it could not write, and has reported clean."""
    replica, acknowledged = await replica_ahead_of_a_failed_sync(tmp_path, monkeypatch)
    with replica.reader.path.open("r+b") as file:
        file.seek(acknowledged)
        file.write(bytes(replica.reader.position - acknowledged))
    after = begin_life(Terms(tmp_path, LIMITS, False, "disk", raised), replica)
    assert after.plane.totals().rows == 0
    after.arena.close()
    again = begin(tmp_path, "disk")
    assert "p" in again.plane.partitions
    await again.close()
    again.arena.close()


def test_freed_bytes_are_used_again_once_the_call_that_freed_them_is_stable() -> None:
    plane = DataPlane(LIMITS, incarnation="i")
    plane.apply(Recover(False, defer_frees=True), 0.0)
    plane.apply(REGISTER, 0.0)
    put(plane, "s1", 4000)
    plane.apply(ClearSamples("c1", "p", ["s1"]), 0.0)
    waiting = plane.apply(put_of("s2", 4000), 0.0)
    assert isinstance(waiting, Waiting)
    plane.check_invariants()
    plane.apply(Settle(plane.releases), 0.0)
    (admitted,) = plane.take_effects()
    assert isinstance(getattr(admitted, "reservation", None), Reservation)
    plane.apply(AbortWrite(waiting.ticket), 0.0)
    deferred = [plane.releases_deferred]
    plane.apply(Recover(False, defer_frees=False), 0.0)  # a life that need not wait
    assert [*deferred, plane.releases_deferred] == [True, False]
    plane.check_invariants()
    put(plane, "s3", 4000)


async def test_a_changed_value_is_named_and_only_its_row_is_cleared_if_the_loss_is_accepted(tmp_path: Path) -> None:
    life = begin(tmp_path, "disk")
    life.plane.apply(REGISTER, 0.0)
    (_, (run,)) = [put(life.plane, name, 500).runs for name in ("s1", "s2")]
    await life.close()
    life.arena.view(run)[7] = 1
    life.arena.close()
    with pytest.raises(
        RecoveryError,
        match="'a' of sample 's2' in 'p'",
    ):
        begin(tmp_path, "disk")
    after = begin(tmp_path, "disk", accept_loss=True)
    rows = after.plane.partitions["p"].rows
    assert rows.ids(rows.all_slots()) == ["s1"]
    await after.close()
    after.arena.close()


async def share_in_a_group(life: Life) -> tuple[Reservation, str]:
    """Put a value for the rows of a group that has none yet. Returns its space and the group's reservation."""
    life.plane.apply(REGISTER, life.now())
    reserved = life.plane.apply(ReserveGroup("g", "p", "g", ()), life.now())
    assert isinstance(reserved, Reserved)
    shared = replace(put_of("s", 500), sample_ids=(), reservation_id=reserved.reservation_id, shared=True)
    begun = life.plane.apply(shared, life.now())
    assert isinstance(begun, Reservation)
    life.plane.apply(FinishWrite(begun.ticket), life.now())
    await life.flush()
    return begun, reserved.reservation_id


async def test_a_changed_value_is_named_although_no_row_had_it_when_a_checkpoint_was_written(tmp_path: Path) -> None:
    life = begin(tmp_path, "disk")
    begun, reservation_id = await share_in_a_group(life)
    replica = Replica(tmp_path)
    replica.catch_up()
    replica.write_checkpoint(tmp_path)
    row = PutSamples("row", "p", ("s1",), reservation_id=reservation_id, add_to_group=True)
    joined = life.plane.apply(row, life.now())
    assert isinstance(joined, Reservation)
    life.plane.apply(FinishWrite(joined.ticket), life.now())
    await life.close()
    life.arena.view(begun.runs[0])[7] = 1
    life.arena.close()
    with pytest.raises(RecoveryError, match="'a' of sample 's1' in 'p', field 'a' of group 'g' in 'p'"):
        begin(tmp_path, "disk")


async def test_a_changed_value_of_a_group_without_rows_is_named_and_the_group_ends_if_the_loss_is_accepted(
    tmp_path: Path,
) -> None:
    life = begin(tmp_path, "disk")
    begun, _ = await share_in_a_group(life)
    await life.close()
    life.arena.view(begun.runs[0])[7] = 1
    life.arena.close()
    with pytest.raises(RecoveryError, match="'a' of group 'g' in 'p'"):
        begin(tmp_path, "disk")
    after = begin(tmp_path, "disk", accept_loss=True)
    assert after.plane.partitions["p"].groups.find("g") is None
    await after.close()
    after.arena.close()


def test_more_lost_rows_than_a_call_may_name_are_cleared_if_the_loss_is_accepted(tmp_path: Path) -> None:
    """As when the arena is lost."""
    limits = replace(LIMITS, max_rows_per_call=2)
    life = begin(tmp_path, limits=limits)
    life.arena.memory[:] = b"x" * len(life.arena.memory)
    life.plane.apply(REGISTER, life.now())
    for number in range(3):
        put(life.plane, f"s{number}", 100)
    life.arena.close()
    (tmp_path / "arena").unlink()
    life = begin(tmp_path, limits=limits, accept_loss=True)
    assert (life.recovery and life.recovery.damaged, life.plane.totals().rows) == (3, 0)
    life.arena.close()


def test_a_call_that_waited_does_not_get_the_room_of_lost_rows(tmp_path: Path) -> None:
    """It would have another row evicted for itself."""
    life = begin(tmp_path)
    life.plane.apply(REGISTER, life.now())
    lost, _ = put(life.plane, "lost", 100), put(life.plane, "kept", 100)
    life.plane.apply(ClaimSamples("c", "p", "t", ("a",), 1, 1, consume=False), life.now())
    life.plane.apply(SetPolicies("f", "p", (), FlowPolicy(max_rows=2, when_full="evict")), life.now())
    column = ColumnSpec("a", Shape("jagged", "uint8", ()), np.array([1, 1]))
    assert isinstance(life.plane.apply(PutSamples("w", "p", ("x", "y"), (column,)), life.now()), Waiting)
    life.arena.view(lost.runs[0])[7] ^= 1
    life.arena.close()
    life = begin(tmp_path, accept_loss=True)
    life.resume()
    assert life.plane.list_samples("p", "", [], (), 100, 0).sample_ids == ("kept",)
    life.arena.close()


async def test_a_value_in_the_place_of_another_is_as_it_was_put(tmp_path: Path) -> None:
    life = begin(tmp_path, "disk")
    life.plane.apply(REGISTER, 0.0)
    places = []
    for number in (1, 2):
        reservation = life.plane.apply(put_of(f"s{number}", 3000), 0.0)
        assert isinstance(reservation, Reservation)
        places.append(reservation.runs)
        life.arena.view(reservation.runs[0])[:] = bytes([number]) * 3000
        life.plane.apply(FinishWrite(reservation.ticket), 0.0)
        if number == 1:
            life.plane.apply(ClearSamples("c", "p", ["s1"]), 0.0)
            assert life.commits is not None
            pending = life.commits.unstable()
            assert pending is not None
            await pending
    await life.close()
    life.arena.close()
    assert places[0] == places[1]
    after = begin(tmp_path, "disk")
    await after.close()
    after.arena.close()


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_only_disk_survives_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: DataDirDurability
) -> None:
    begin(tmp_path, durability).arena.close()
    restarted = tmp_path / "boot_id"
    restarted.write_text("another")
    monkeypatch.setattr(lives, "_BOOT", restarted)
    if durability == "disk":
        begin(tmp_path, durability).arena.close()
    else:
        with pytest.raises(RecoveryError, match="machine"):
            begin(tmp_path, durability)


async def test_the_durability_of_a_directory_may_change_from_life_to_life(tmp_path: Path) -> None:
    for number, durability in enumerate(("disk", "process", "disk", "process", "disk")):
        life = begin(tmp_path, durability)  # type: ignore[arg-type]  # one of the two
        if life.recovery is None:
            life.plane.apply(REGISTER, life.now())
        else:
            assert (life.recovery.rows, life.recovery.calls, life.recovery.torn_bytes) == (number, 1 + 3 * number, 0)
        put(life.plane, f"s{number}", 300)
        await life.close()
        life.arena.close()
