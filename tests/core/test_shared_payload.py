"""Values that all rows of a group share: stored once, read as if they stood in every row, gone with the last one."""

from __future__ import annotations

import pytest
from tests.core.caller import BYTES, Caller, int64
from tests.core.machine.arena import cut

from dataplane_server.core.calls.answers import ClearResult, PutResult, ReadPlan, SampleEvent
from dataplane_server.core.calls.columns import ColumnSpec
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import EndRead, PutSamples
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
