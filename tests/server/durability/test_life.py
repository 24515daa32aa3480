"""A server's next life begins with all that the former one has answered.

What lives lose and keep when they die is shown by `tests/simulate` and `tests/integration/failpoints`.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.machine.clients import Clients

from dataplane_server.core.calls.answers import Reservation, Waiting
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.filters import Term
from dataplane_server.core.calls.flow import FlowPolicy
from dataplane_server.core.calls.life_calls import BeginSnapshot, EndSnapshot, LetGo, Recover
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import (
    Advance,
    BeginRead,
    Call,
    ClearSamples,
    EndRead,
    ExtendPartition,
    FinishWrite,
    MergeFreeRanges,
    PutSamples,
    RegisterPartition,
    SetPolicies,
    StoreValues,
)
from dataplane_server.core.calls.values import Definition, Run
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.rows.shared_payloads import DIGEST_SIZE
from dataplane_server.core.stats.digest import digest
from dataplane_server.durability.checkpoint import build
from dataplane_server.durability.checkpointer import remove_history
from dataplane_server.durability.frames import frame_of
from dataplane_server.durability.life import DataDirDurability, Life, RecoveryError, Terms, begin_life
from dataplane_server.durability.log_writer import LogWriter
from dataplane_server.durability.logged_plane import LoggedPlane
from dataplane_server.durability.replica import Replica
from dataplane_server.durability.standby import _Standby, take_over
from dataplane_server.version import VERSION

LIMITS = Limits(memory_bytes=4096)
REGISTER = RegisterPartition("r", Definition("p", ("a",), ("t",)))


def raised(error: Exception) -> None:
    raise error


def begin(
    folder: Path,
    durability: DataDirDurability = "process",
    limits: Limits = LIMITS,
    *,
    shared: bool = True,
    **more: Any,
) -> Life:
    """more: of Terms."""
    life = begin_life(Terms(folder, limits, shared, durability, raised, **more))
    life.resume()
    if life.commits is not None:
        life.commits.start(lambda call: life.plane.apply(call, life.now()))
    return life


def put_of(sample_id: str, size: int) -> PutSamples:
    column = ColumnSpec("a", Shape("jagged", "uint8", ()), np.array([size]))
    return PutSamples(f"put {sample_id}", "p", (sample_id,), (column,))


def put(plane: DataPlane, sample_id: str, size: int) -> Reservation:
    begun = plane.apply(put_of(sample_id, size), 0.0)
    assert isinstance(begun, Reservation)
    plane.apply(FinishWrite(begun.ticket), 0.0)
    return begun


def log_of(folder: Path, plane: LoggedPlane, segment_bytes: int = 16 << 20, **header: object) -> LogWriter:
    """A log in a folder, where a plane that has had no call logs its calls."""
    origin = {"incarnation": "c", "first_generation": 1, "limits": asdict(plane.limits)}
    header = {"version": VERSION, "build": build(), **origin, "at": 0.0, **header}
    log = LogWriter(folder, 0, header, segment_bytes=segment_bytes)
    plane.log_to(log, raised)
    return log


class Played:
    """A core to which the calls of a history come that may come at this point of its life: a write is finished once it
    has its space, with as many digests as its put has values that are put once.
    """

    def __init__(self, plane: LoggedPlane) -> None:
        self.plane = plane
        self._digests: dict[int, int] = {}  # bytes of them, by the tickets of puts

    def may_come(self, call: Call[Any]) -> bool:
        if isinstance(call, FinishWrite):
            return self.plane.holds_reservation(call.ticket) and self._digests.get(call.ticket, 0) == len(call.digests)
        return not isinstance(call, (Recover, LetGo))

    def outcome(self, call: Call[Any], now: float) -> str:
        """What a call was answered and caused."""
        try:
            answer: object = self.plane.apply(call, now)
        except Refusal as refusal:
            answer = refusal
        if isinstance(call, PutSamples) and isinstance(answer, (Reservation, Waiting)):
            once = [column for column in call.columns if column.name in call.once]
            self._digests[answer.ticket] = len(once) * len(call.sample_ids) * DIGEST_SIZE
        return digest(answer, self.plane.take_effects())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))])
def test_a_replica_of_any_history_goes_on_as_the_core_does(tmp_path: Path, seed: int) -> None:
    clients = Clients(random.Random(seed))
    clients.run(300, 10**9, 300)
    turns = [(now, call) for now, call, _ in clients.world.plane.turns]
    plane = LoggedPlane(clients.world.plane.limits)
    log = log_of(tmp_path, plane)
    half = len(turns) // 2
    played = Played(plane)
    for now, call in turns[:half]:
        if played.may_come(call):
            played.outcome(call, now)
    replica = Replica(tmp_path)
    replica.catch_up()
    again = Played(replica.plane)
    assert again.outcome(Recover(False), turns[half][0]) == played.outcome(Recover(False), turns[half][0])
    for now, call in turns[half:]:
        if not played.may_come(call) or isinstance(call, (BeginRead, EndRead)):
            continue
        answered, expected = again.outcome(call, now), played.outcome(call, now)
        if not isinstance(call, (RegisterPartition, ExtendPartition, SetPolicies)):  # whose answers count reads
            assert answered == expected, call
    replica.plane.check_invariants()
    log.close()


def test_a_torn_record_is_cut_off_and_told(tmp_path: Path) -> None:
    life = begin(tmp_path)
    life.plane.apply(REGISTER, 0.0)
    put(life.plane, "s1", 100)
    life.log.close()
    life.arena.close()
    with (tmp_path / "log-00000000000000000000").open("ab") as segment:
        segment.write(frame_of(b"a call that nobody was answered")[:-5])
    for torn in (True, False):
        next_life = begin(tmp_path)
        assert next_life.recovery is not None
        assert (next_life.recovery.torn_bytes > 0, next_life.recovery.rows) == (torn, 1)
        next_life.arena.close()


def test_a_directory_is_of_one_server(tmp_path: Path) -> None:
    life = begin(tmp_path)
    with pytest.raises(OSError, match="another server"):
        begin(tmp_path)
    life.arena.close()


def test_a_standby_that_cannot_follow_the_log_says_why(tmp_path: Path) -> None:
    terms = Terms(tmp_path, LIMITS, False, "process", raised, segment_bytes=1400)
    life = begin_life(terms)
    life.plane.apply(REGISTER, 0.0)
    for number in range(12):
        put(life.plane, f"s{number}", 8)
    replica = Replica(tmp_path)
    replica.catch_up()
    checkpoint = replica.write_checkpoint(tmp_path)
    remove_history(tmp_path, 0)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    with pytest.raises(RecoveryError, match=f"{checkpoint} cannot be used"):
        take_over(terms, threading.Event(), lambda: None)
    life.arena.close()


def test_a_standby_that_begins_again_keeps_nothing_of_its_former_state(tmp_path: Path) -> None:
    terms = Terms(tmp_path, LIMITS, False, "process", raised, segment_bytes=1400)
    life, standby = begin_life(terms), _Standby(terms)
    life.plane.apply(REGISTER, 0.0)
    while standby.advance():
        pass
    assert standby.replica is not None
    former = weakref.ref(standby.replica.plane.partitions["p"].rows)
    for number in range(12):
        put(life.plane, f"s{number}", 8)
    replica = Replica(tmp_path)
    replica.catch_up()
    replica.write_checkpoint(tmp_path)
    remove_history(tmp_path, 0)
    while standby.advance():
        pass
    assert standby.replica.plane.digest() == replica.plane.digest()
    assert former() is None
    life.arena.close()


def test_a_standby_with_other_limits_is_refused_before_it_is_needed(tmp_path: Path) -> None:
    life, stopping = begin(tmp_path), threading.Event()
    terms = Terms(tmp_path, replace(LIMITS, max_rows=7), False, "process", raised)
    with pytest.raises(RecoveryError, match=r"max_rows 4000000 \(now 7\)"):
        take_over(terms, stopping, stopping.set)
    life.arena.close()


def test_reads_are_not_in_the_log_until_a_row_that_they_pin_is_given_up(tmp_path: Path) -> None:
    life = begin(tmp_path)
    life.plane.apply(REGISTER, 0.0)
    put(life.plane, "s1", 100)
    before = life.log.next_record
    life.plane.apply(EndRead(life.plane.apply(BeginRead("p", ["s1"], ["a"]), 2.0).ticket), 2.0)
    plan = life.plane.apply(BeginRead("p", ["s1"], ["a"]), 2.0)
    assert life.log.next_record == before
    life.plane.apply(ClearSamples("c", "p", None), 3.0)
    assert life.log.next_record == before + 2
    life.plane.apply(EndRead(plan.ticket), 4.0)
    assert life.log.next_record == before + 3
    life.arena.close()


@pytest.mark.parametrize(
    ("pins", "unpins"),
    [(BeginSnapshot("a"), EndSnapshot()), (Recover(True), LetGo())],
    ids=["a snapshot", "a recovery"],
)
def test_a_row_gets_the_same_place_in_the_next_life_although_a_read_is_not_in_the_log(
    tmp_path: Path, pins: Call[None], unpins: Call[None]
) -> None:
    life = begin(tmp_path)
    life.plane.apply(REGISTER, 0.0)
    put(life.plane, "s1", 8)
    life.plane.apply(pins, 0.0)
    again = life.plane.apply(replace(put_of("s1", 8), request_id="again"), 0.0)
    assert isinstance(again, Reservation)
    life.plane.apply(FinishWrite(again.ticket), 0.0)
    read = life.plane.apply(BeginRead("p", ["s1"], ["a"]), 0.0)
    life.plane.apply(unpins, 0.0)
    put(life.plane, "s2", 8)
    life.plane.apply(EndRead(read.ticket), 0.0)
    replica = Replica(tmp_path)
    replica.catch_up()
    s2 = BeginRead("p", ["s2"], ["a"])
    assert list(replica.plane.apply(s2, 0.0).runs) == list(life.plane.apply(s2, 0.0).runs)
    life.arena.close()


def test_a_read_lets_no_put_in_that_waits_until_rows_are_old_enough_to_go(tmp_path: Path) -> None:
    """It is not in the log, so the next life would not know which rows went for the put."""
    life = begin(tmp_path)
    life.plane.apply(REGISTER, 0.0)
    put(life.plane, "s1", 8)
    put(life.plane, "s2", 8)
    old = (Term(">", "age_s", of_row=True, values=(10,)),)
    life.plane.apply(SetPolicies("s", "p", (), flow=FlowPolicy(2, when_full="evict", evict_where=old)), 0.0)
    assert isinstance(life.plane.apply(put_of("s3", 8), 1.0), Waiting)
    life.plane.apply(EndRead(life.plane.apply(BeginRead("p", ["s2"], ["a"]), 20.0).ticket), 20.0)
    replica = Replica(tmp_path)
    replica.catch_up()
    assert rows_of(replica.plane) == rows_of(life.plane)
    life.plane.apply(Advance(), 20.0)
    assert rows_of(life.plane) == ["s2"]
    life.arena.close()


def rows_of(plane: DataPlane) -> list[str]:
    rows = plane.partitions["p"].rows
    return rows.ids(rows.all_slots())


def test_a_put_overwrites_what_it_evicts_once_that_is_in_the_log(tmp_path: Path) -> None:
    """Before that the next life may have the evicted row, whose bytes must still be there."""
    life = begin(tmp_path)
    life.plane.apply(REGISTER, 0.0)
    life.plane.apply(SetPolicies("s", "p", (), flow=FlowPolicy(2, when_full="evict")), 0.0)
    for sample_id in ("s1", "s2", "s3"):
        store(life, sample_id, 8, 0.0)
    assert rows_of(life.plane) == ["s2", "s3"]
    life.arena.close()


def test_a_repeated_put_overwrites_what_went_for_others_once_that_is_in_the_log(tmp_path: Path) -> None:
    life = begin(tmp_path)
    life.plane.apply(REGISTER, 0.0)
    put(life.plane, "s1", 32)
    old = (Term(">", "age_s", of_row=True, values=(10,)),)
    policy = FlowPolicy(max_bytes=48, when_full="evict", evict_where=old)
    life.plane.apply(SetPolicies("s", "p", (), flow=policy), 0.0)
    assert isinstance(life.plane.apply(put_of("s2", 16), 0.0), Reservation)
    assert isinstance(life.plane.apply(put_of("s3", 20), 0.0), Waiting)
    store(life, "s2", 16, 20.0)
    assert rows_of(life.plane) == ["s2"]
    life.arena.close()


def store(life: Life, sample_id: str, size: int, now: float) -> None:
    """Put values that are at hand. They go where the log, as it is, has no value of a row."""

    def fill(runs: Sequence[Run]) -> None:
        replica = Replica(life.folder)
        replica.catch_up()
        rows = rows_of(replica.plane)
        kept = replica.plane.apply(BeginRead("p", rows, ["a"]), 0.0).runs if rows else ()
        assert not places(kept) & places(runs)

    answer = life.plane.store(StoreValues(put_of(sample_id, size), size), now, fill)
    if isinstance(answer, Reservation):
        fill(answer.runs)
        life.plane.apply(FinishWrite(answer.ticket), now)


def places(runs: Sequence[Run]) -> set[int]:
    return {place for run in runs for place in range(run.offset, run.offset + run.size_bytes)}


async def test_a_call_that_comes_after_the_end_is_refused_and_no_failure_of_the_log(tmp_path: Path) -> None:
    """Such as one of a timer, while the server stops."""
    life = begin(tmp_path)
    await life.close()
    with pytest.raises(Refusal, match="has ended"):
        life.plane.apply(MergeFreeRanges(), life.now())
    life.arena.close()


# -- directories that are refused --------------------------------------------------------------------------------------


def remove_log(folder: Path) -> None:
    for path in folder.glob("log-*"):
        path.rename(folder / path.name.replace("log", "checkpoint"))


@pytest.mark.parametrize(
    ("spoil", "limits", "version", "words"),
    [
        (lambda folder: None, replace(LIMITS, max_rows=7), VERSION, r"max_rows 4000000 \(now 7\); start with those"),
        (lambda folder: (folder / "arena").unlink(), LIMITS, VERSION, "no arena"),
        (remove_log, LIMITS, VERSION, "no log"),
        (lambda folder: None, LIMITS, "9.9.9", rf"{VERSION}.*9\.9\.9"),
    ],
    ids=["other limits", "no arena", "no log", "another version"],
)
def test_a_directory_that_cannot_be_gone_on_with_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], object],
    limits: Limits,
    version: str,
    words: str,
) -> None:
    begin(tmp_path).arena.close()
    spoil(tmp_path)
    monkeypatch.setattr("dataplane_server.durability.replica.VERSION", version)
    with pytest.raises(RecoveryError, match=words):
        begin(tmp_path, limits=limits)
