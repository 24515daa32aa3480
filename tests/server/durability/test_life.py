"""A server's next life begins with all that the former one has answered."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.machine.clients import Clients

from dataplane_server.core.calls.answers import Grant, Reservation
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import (
    BeginRead,
    Call,
    ClaimSamples,
    ClearSamples,
    EndRead,
    ExtendPartition,
    FinishWrite,
    LetGo,
    PutSamples,
    Recover,
    RegisterPartition,
)
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.stats.digest import digest
from dataplane_server.durability.life import Life, RecoveryError, Terms, begin_life
from dataplane_server.durability.log_writer import LogWriter
from dataplane_server.durability.logged_plane import LoggedPlane
from dataplane_server.durability.replica import Replica
from dataplane_server.version import VERSION

LIMITS = Limits(memory_bytes=1 << 20)
COLUMN = ColumnSpec("a", Shape("jagged", "uint8", ()), np.array([100]))


def raised(error: OSError) -> None:
    raise error


def begin(folder: Path, limits: Limits = LIMITS) -> Life:
    begun = begin_life(Terms(folder, limits, True, "process", raised))
    begun.resume()
    return begun


def end(life: Life) -> None:
    """As the death of the process: nothing is written any more, and the kernel drops the lock."""
    life.arena.close()


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """The first life, with the partition p of field a and task t."""
    first = begin(tmp_path)
    first.plane.apply(RegisterPartition("r0", Definition("p", ("a",), ("t",))), 0.0)
    return first


def put(plane: LoggedPlane, sample_id: str) -> Reservation:
    begun = plane.apply(PutSamples(f"put {sample_id}", "p", (sample_id,), (COLUMN,)), 1.0)
    assert isinstance(begun, Reservation)
    plane.apply(FinishWrite(begun.ticket), 1.0)
    return begun


def outcome(plane: LoggedPlane, call: Call[Any], now: float) -> str:
    """What a call was answered and caused."""
    try:
        answer: object = plane.apply(call, now)
    except Refusal as refusal:
        answer = refusal
    return digest(answer, plane.take_effects())


def may_come(plane: LoggedPlane, call: Call[Any]) -> bool:
    """Whether a call of a history may come at this point of a life: a write is finished once it has its space."""
    if isinstance(call, FinishWrite):
        return plane.holds_reservation(call.ticket)
    return not isinstance(call, (Recover, LetGo))


@pytest.mark.parametrize("seed", range(8))
def test_a_replica_of_any_history_goes_on_as_the_core_does(tmp_path: Path, seed: int) -> None:
    clients = Clients(random.Random(seed))
    clients.run(300, 10**9)
    turns = [(now, call) for now, call, _ in clients.world.plane.turns]
    plane, limits = LoggedPlane(clients.world.plane.limits), asdict(clients.world.plane.limits)
    header = {
        "version": VERSION,
        "incarnation": "c",
        "first_generation": 1,
        "limits": limits,
        "at": 0.0,
        "durability": "process",
    }
    log = LogWriter(tmp_path, 0, header)
    plane.log_to(log, raised)
    half = len(turns) // 2
    for now, call in turns[:half]:
        if may_come(plane, call):
            outcome(plane, call, now)
    replica = Replica(tmp_path)
    replica.catch_up()
    assert outcome(replica.plane, Recover(False), turns[half][0]) == outcome(plane, Recover(False), turns[half][0])
    for now, call in turns[half:]:
        if not may_come(plane, call) or isinstance(call, (BeginRead, EndRead)):
            continue
        answered, expected = outcome(replica.plane, call, now), outcome(plane, call, now)
        if not isinstance(call, (RegisterPartition, ExtendPartition)):  # whose answers count reads
            assert answered == expected, call
    replica.plane.check_invariants()
    log.close()


def test_values_rows_and_claims_are_there_in_the_next_life(tmp_path: Path, life: Life) -> None:
    (run,) = put(life.plane, "s1").runs
    life.arena.view(run)[:] = b"x" * 100
    claim = ClaimSamples("claim", "p", "t", ("a",), 1, 1)
    granted = life.plane.apply(claim, 2.0)
    end(life)
    second = begin(tmp_path)
    assert second.recovery is not None
    assert (second.recovery.rows, second.recovery.calls, second.recovery.torn_bytes) == (1, 5, 0)
    again = second.plane.apply(claim, second.now())
    assert isinstance(again, Grant)
    assert isinstance(granted, Grant)
    assert again.claim_id == granted.claim_id
    plan = second.plane.apply(BeginRead("p", ["s1"], ["a"]), second.now())
    assert [bytes(second.arena.view(run)) for run in plan.runs] == [b"x" * 100]
    end(second)


def test_time_goes_on_where_it_ended(tmp_path: Path, life: Life) -> None:
    life.plane.apply(ClearSamples("c", "p", None), 1e9)
    end(life)
    second = begin(tmp_path)
    assert 1e9 <= second.now() <= second.now() < 1e9 + 60
    end(second)


def test_reads_are_not_in_the_log_until_a_row_that_they_pin_is_given_up(life: Life) -> None:
    put(life.plane, "s1")
    before = life.log.next_record
    life.plane.apply(EndRead(life.plane.apply(BeginRead("p", ["s1"], ["a"]), 2.0).ticket), 2.0)
    plan = life.plane.apply(BeginRead("p", ["s1"], ["a"]), 2.0)
    assert life.log.next_record == before
    life.plane.apply(ClearSamples("c", "p", None), 3.0)
    assert life.log.next_record == before + 2
    life.plane.apply(EndRead(plan.ticket), 4.0)
    assert life.log.next_record == before + 3
    end(life)


def test_a_torn_record_is_cut_off_and_told(tmp_path: Path, life: Life) -> None:
    put(life.plane, "s1")
    life.log.close()
    end(life)
    segment = tmp_path / "log-00000000000000000000"
    segment.write_bytes(segment.read_bytes()[:-5])
    for torn in (True, False):
        next_life = begin(tmp_path)
        assert next_life.recovery is not None
        assert (next_life.recovery.torn_bytes > 0, next_life.recovery.rows) == (torn, 0)
        end(next_life)


def change_limits(folder: Path) -> None:
    pass


def remove_arena(folder: Path) -> None:
    (folder / "arena").unlink()


def remove_log(folder: Path) -> None:
    for path in folder.glob("log-*"):
        path.rename(folder / path.name.replace("log", "checkpoint"))


@pytest.mark.parametrize(
    ("spoil", "limits", "words"),
    [
        (change_limits, replace(LIMITS, max_rows=7), r"max_rows 4000000 \(now 7\); start with those"),
        (remove_arena, LIMITS, "a log but had no arena: the values are lost"),
        (remove_log, LIMITS, "a checkpoint but no log"),
    ],
    ids=["other limits", "no arena", "no log"],
)
def test_a_directory_that_cannot_be_gone_on_with_is_refused(
    tmp_path: Path, life: Life, spoil: Callable[[Path], None], limits: Limits, words: str
) -> None:
    end(life)
    spoil(tmp_path)
    with pytest.raises(RecoveryError, match=words):
        begin(tmp_path, limits)


def test_a_directory_of_another_version_is_refused(tmp_path: Path, life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    end(life)
    monkeypatch.setattr("dataplane_server.durability.replica.VERSION", "9.9.9")
    with pytest.raises(RecoveryError, match=r"was written by version .*, and this is 9\.9\.9; start that version"):
        begin(tmp_path)


def test_a_directory_is_of_one_server(tmp_path: Path, life: Life) -> None:
    with pytest.raises(OSError, match="another server"):
        begin(tmp_path)
    end(life)
