"""Values that all rows of a group share: stored once, read as if they stood in every row, gone with the last one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import BYTES, Caller, int64
from tests.core.machine.arena import cut

from dataplane_server.core.calls.answers import (
    ClearResult,
    GroupFinished,
    PutResult,
    ReadPlan,
    Reservation,
    SampleEvent,
    Waiting,
)
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import DropPartition, EndRead, PutSamples
from dataplane_server.core.calls.values import Run

IDS = ["s1", "s2", "s3"]


def places(plan: ReadPlan) -> list[list[Run]]:
    """Pieces of each value, column after column."""
    return cut(plan.runs, [int(n) for column in plan.columns for n in column.entries])


def size_of(caller: Caller, field: str) -> tuple[int, int]:
    """Rows that hold a field, and bytes of their values."""
    info = next(info for info in caller.plane.partition_info("p").fields if info.name == field)
    return info.rows, info.size_bytes


@pytest.fixture
def group(caller: Caller) -> str:
    """Reservation of group g: rows s1 to s3 with one, two, three bytes of their own in b, 100 that they share in a."""
    reservation_id = caller.reserve("g", IDS).reservation_id
    assert caller.share(reservation_id, a=100) == PutResult(0, 100)
    caller.put(caller.put_call(IDS, {"b": [1, 2, 3]}, reservation_id=reservation_id))
    return reservation_id


def test_a_shared_value_is_read_from_one_place_by_every_row(caller: Caller, group: str) -> None:
    plan = caller.read(["s3", "s1", "s2"], "a", "b")
    assert [column.entries.tolist() for column in plan.columns] == [[100, 100, 100], [3, 1, 2]]
    (one,), (other,), (third,) = places(plan)[:3]
    assert one == other == third
    assert plan.size_bytes == 306


def test_a_shared_value_is_counted_once(caller: Caller, group: str) -> None:
    assert (caller.used, caller.plane.partition_info("p").size_bytes) == (106, 106)
    assert (size_of(caller, "a"), size_of(caller, "b")) == ((3, 100), (3, 6))


def test_a_group_whose_rows_have_shared_values_only_can_be_finished(caller: Caller) -> None:
    reservation_id = caller.reserve("g", IDS).reservation_id
    caller.share(reservation_id, a=10)
    assert caller.finish_group(reservation_id) == GroupFinished(3)
    assert caller.take("a", batch_size=3).sample_ids == tuple(IDS)


def test_rows_that_share_a_field_are_ready_for_claims_of_it(caller: Caller, group: str) -> None:
    caller.finish_group(group)
    assert caller.take("a", "b", batch_size=1, whole_groups=True).sample_ids == tuple(IDS)


def test_the_bytes_are_free_when_the_last_row_is_gone(caller: Caller, group: str) -> None:
    caller.finish_group(group)
    assert caller.clear(["s1", "s3"]) == ClearResult(2, 4)
    assert (caller.used, size_of(caller, "a")) == (102, (1, 100))
    assert caller.clear(["s2"]) == ClearResult(1, 102)
    assert (caller.used, size_of(caller, "a")) == (0, (0, 0))


def test_a_row_that_gets_a_value_of_its_own_leaves_the_others_theirs(caller: Caller, group: str) -> None:
    caller.put(caller.put_call(["s2"], {"a": [7]}, reservation_id=group))
    assert caller.read(IDS, "a").columns[0].entries.tolist() == [100, 7, 100]
    assert (caller.used, size_of(caller, "a")) == (113, (3, 107))


def test_the_bytes_are_free_when_every_row_has_a_value_of_its_own(caller: Caller, group: str) -> None:
    caller.finish_group(group)
    for sample_id in IDS:
        caller.put_rows([sample_id], "a", size=7)
    assert (caller.used, size_of(caller, "a")) == (27, (3, 21))
    assert caller.clear() == ClearResult(3, 27)


def test_a_value_of_its_own_is_replaced_as_any_other(caller: Caller, group: str) -> None:
    caller.finish_group(group)
    caller.put_rows(["s1"], "a", size=8)
    caller.put_rows(["s1"], "a", size=9)
    assert caller.used == 100 + 9 + 6


def test_an_aborted_group_frees_what_its_rows_share(caller: Caller, group: str) -> None:
    caller.abort_group(group)
    assert caller.used == 0


def test_a_dropped_partition_frees_what_its_rows_share(caller: Caller, group: str) -> None:
    caller.apply(DropPartition(caller.request_id(), "p"))
    assert caller.used == 0


def test_groups_share_apart_from_one_another(caller: Caller, group: str) -> None:
    other = caller.reserve("h", ["t1", "t2"]).reservation_id
    caller.share(other, a=50)
    plan = caller.read(["t1", "s1"], "a")
    assert plan.columns[0].entries.tolist() == [50, 100]
    caller.apply(EndRead(plan.ticket))
    caller.abort_group(group)
    assert caller.used == 50


def test_several_fields_can_be_shared_at_once_and_one_after_the_other(caller: Caller) -> None:
    caller.register(("a", "b", "c"))
    reservation_id = caller.reserve("g", IDS).reservation_id
    assert caller.share(reservation_id, a=10, b=20) == PutResult(0, 30)
    assert caller.share(reservation_id, c=40) == PutResult(0, 40)
    plan = caller.read(["s2"], "c", "a", "b")
    assert [column.entries.tolist() for column in plan.columns] == [[40], [10], [20]]
    caller.apply(EndRead(plan.ticket))
    caller.clear(["s1", "s2"])
    assert caller.used == 70


@pytest.mark.parametrize("size", [0, 1])
def test_an_empty_value_can_be_shared(caller: Caller, size: int) -> None:
    reservation_id = caller.reserve("g", IDS).reservation_id
    caller.share(reservation_id, a=0, b=size)
    assert caller.read(IDS, "a").columns[0].entries.tolist() == [0, 0, 0]
    caller.put(caller.put_call(["s1"], {"a": [4]}, reservation_id=reservation_id))
    assert (size_of(caller, "a"), caller.used) == ((3, 4), 4 + size)


def test_any_kind_of_value_can_be_shared_and_widens_its_field(caller: Caller) -> None:
    reservation_id = caller.reserve("g", IDS).reservation_id

    def put(sample_ids: list[str], shape: Shape, *, shared: bool) -> None:
        column = ColumnSpec("a", shape)
        caller.put(caller.put_call(sample_ids, columns=[column], reservation_id=reservation_id, shared=shared))

    put([], Shape("dense", "int16", (3, 2)), shared=True)
    assert caller.read(IDS, "a").columns[0].shape == Shape("dense", "int16", (3, 2))
    put(["s2"], Shape("dense", "int16", (5, 2)), shared=False)
    plan = caller.read(IDS, "a")
    assert plan.columns[0].shape == Shape("jagged", "int16", (2,))
    assert plan.columns[0].entries.tolist() == [3, 5, 3]


def test_rows_cleared_while_a_shared_value_streams_do_not_get_it(caller: Caller) -> None:
    reservation_id = caller.reserve("g", IDS).reservation_id
    begun = caller.apply(caller.put_call([], {"a": [10]}, reservation_id=reservation_id, shared=True))
    assert isinstance(begun, Reservation)
    caller.clear(["s2"])
    caller.put_rows(["s2"], "b")
    caller.finish(begun.ticket)
    assert size_of(caller, "a") == (2, 10)
    with caller.refuses(Reason.FIELD_NOT_PRODUCED, "'s2'"):
        caller.read(["s2"], "a")


def test_a_shared_value_waits_for_room_as_any_other(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=64)
    caller.register()
    caller.put_rows(["single"], "a", size=60)
    reservation_id = caller.reserve("g", IDS).reservation_id
    waiting = caller.apply(caller.put_call([], {"a": [30]}, reservation_id=reservation_id, shared=True))
    assert isinstance(waiting, Waiting)
    caller.clear(["single"])
    caller.plane.take_effects()
    assert caller.finish(waiting.ticket) == PutResult(0, 30)


def test_a_shared_put_is_told_in_the_story_of_every_row(caller: Caller, group: str) -> None:
    story = caller.plane.sample("p", "s3").events
    assert [event.what for event in story if event.fields == ("a",)] == ["put"]
    assert all(isinstance(event, SampleEvent) for event in story)


# -- readers -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(caller: Caller, group: str) -> Caller:
    caller.finish_group(group)
    return caller


def test_a_reader_of_one_row_holds_what_all_of_them_shared(finished: Caller) -> None:
    plan = finished.read(["s2"], "a")
    assert finished.clear() == ClearResult(3, 106)
    assert finished.used == 102, "the row's bytes in both fields"
    assert finished.plane.partition_info("p").size_bytes == 0
    finished.apply(EndRead(plan.ticket))
    assert finished.used == 0


def test_the_last_of_several_readers_of_different_rows_frees_the_bytes(finished: Caller) -> None:
    plans = [finished.read([sample_id], "a") for sample_id in ("s1", "s2", "s2", "s3")]
    finished.clear()
    for plan in plans[:-1]:
        finished.apply(EndRead(plan.ticket))
        assert finished.used >= 100
    finished.apply(EndRead(plans[-1].ticket))
    assert finished.used == 0


def test_a_reader_that_ends_while_rows_are_left_frees_nothing_of_theirs(finished: Caller) -> None:
    plan = finished.read(["s1"], "a")
    finished.clear(["s1", "s2"])
    finished.apply(EndRead(plan.ticket))
    assert (finished.used, finished.read(["s3"], "a").size_bytes) == (103, 100)


def test_a_reader_keeps_what_a_row_had_before_it_got_a_value_of_its_own(finished: Caller) -> None:
    plan = finished.read(["s1"], "a")
    finished.put_rows(["s1"], "a", size=5)
    finished.clear(["s2", "s3"])
    assert finished.used == 100 + 5 + 1
    finished.apply(EndRead(plan.ticket))
    assert finished.used == 5 + 1


def test_room_that_a_reader_of_a_shared_value_holds_is_not_handed_out(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=128)
    caller.register()
    reservation_id = caller.reserve("g", IDS).reservation_id
    caller.share(reservation_id, a=64)
    plan = caller.read(["s1"], "a")
    caller.abort_group(reservation_id)
    caller.put_rows(["t1"], "a", size=64)
    assert caller.read(["t1"], "a").runs == (Run(64, 64),)
    assert plan.runs == (Run(0, 64),)


# -- what cannot be shared ---------------------------------------------------------------------------------------------


def put_call(caller: Caller, *columns: ColumnSpec, **more: object) -> PutSamples:
    call = {
        "request_id": caller.request_id(),
        "partition_id": "p",
        "sample_ids": (),
        "columns": columns,
        "shared": True,
    }
    return PutSamples(**{**call, **more})  # type: ignore[arg-type]


A = ColumnSpec("a", BYTES, int64([3]))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        pytest.param({"reservation_id": ""}, ("reservation",), id="no reservation"),
        pytest.param({"sample_ids": ["s1"]}, ("samples",), id="samples"),
        pytest.param({"tags": []}, ("tags",), id="tags"),
        pytest.param({"sequence_lengths": int64([])}, ("samples",), id="lengths"),
        pytest.param({"generations": int64([])}, ("samples",), id="generations"),
        pytest.param({"claim_id": "c-1"}, ("claim",), id="a claim"),
        pytest.param({"columns": ()}, ("column",), id="no column"),
        pytest.param({"columns": [ColumnSpec("a", BYTES, int64([3, 3]))]}, ("2 rows",), id="two rows"),
    ],
)
def test_a_malformed_shared_put_is_refused(caller: Caller, more: dict[str, object], words: tuple[str, ...]) -> None:
    reservation_id = caller.reserve("g", IDS).reservation_id
    put = put_call(caller, A, **{"reservation_id": reservation_id, **more})
    reason = Reason.ROW_COUNT_MISMATCH if words == ("2 rows",) else Reason.INVALID_REQUEST
    with caller.refuses(reason, *words):
        caller.apply(put)


def test_per_token_fields_cannot_be_shared(caller: Caller) -> None:
    caller.register(per_token_fields=frozenset("a"))
    reservation_id = caller.reserve("g", IDS).reservation_id
    with caller.refuses(Reason.INVALID_REQUEST, "'p'", "'g'", "'a'", "per-token"):
        caller.apply(put_call(caller, A, reservation_id=reservation_id))


def test_a_field_that_a_row_of_the_group_has_already_cannot_be_shared(caller: Caller, group: str) -> None:
    for field, row in (("b", "'s1'"), ("a", "'s1'")):
        column = ColumnSpec(field, BYTES, int64([3]))
        with caller.refuses(Reason.INVALID_REQUEST, "'p'", "'g'", repr(field), row):
            caller.apply(put_call(caller, column, reservation_id=group))


def test_of_two_shared_puts_of_a_field_under_way_the_first_to_finish_stays(caller: Caller) -> None:
    reservation_id = caller.reserve("g", IDS).reservation_id
    first, second = (
        caller.apply(put_call(caller, ColumnSpec("a", BYTES, int64([size])), reservation_id=reservation_id))
        for size in (3, 4)
    )
    assert isinstance(first, Reservation)
    assert isinstance(second, Reservation)
    caller.finish(second.ticket)
    with pytest.raises(Refusal):
        caller.finish(first.ticket)
    assert (caller.used, caller.read(["s1"], "a").size_bytes) == (4, 4)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (ColumnSpec("z", BYTES, int64([3])), Reason.FIELD_NOT_DECLARED),
        (ColumnSpec("b", Shape("dense", "float32", ())), Reason.FIELD_MISMATCH),
        (ColumnSpec("a", BYTES, int64([5000])), Reason.PUT_TOO_LARGE),
    ],
)
def test_a_shared_column_obeys_the_rules_of_every_column(caller: Caller, column: ColumnSpec, reason: Reason) -> None:
    caller.put_rows(["single"], "b")
    reservation_id = caller.reserve("g", IDS).reservation_id
    with caller.refuses(reason):
        caller.apply(put_call(caller, column, reservation_id=reservation_id))
