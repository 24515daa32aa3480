"""Groups whose rows are not known beforehand: they are added until the group is finished."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller
from tests.semantics.callers import Caller as AnyCaller

from dataplane_server.core.calls.answers import (
    ClearResult,
    GroupAborted,
    PutResult,
    Reservation,
)
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import DropPartition, EndRead, RegisterPartition
from dataplane_server.core.calls.values import Definition


@pytest.fixture
def group(caller: Caller) -> str:
    """The reservation of group g, which has no row, by a session."""
    return caller.reserve("g", [], caller.open_session()).reservation_id


def add(caller: Caller, reservation_id: str, *sample_ids: str, size: int = 1, field: str = "a") -> PutResult:
    return caller.put(caller.add_call(reservation_id, sample_ids, {field: [size] * len(sample_ids)}))


def test_rows_are_added_until_the_group_is_finished_and_then_seen_together(via: AnyCaller) -> None:
    waiting = via.begin_claim("a", "b", whole_groups=True)
    group = via.reserve("g")
    group.put("x", "a", add=True, tags={"n": 1}, sequence_lengths=[3])
    group.share("b", 200_000)
    group.put("yz", "a", add=True, sequence_lengths=[4, 5])
    assert via.waiting() == 1
    assert group.finish() == 3
    claim = waiting.answer()
    assert (claim.ids, claim.groups) == ("xyz", [("g", 3, None, None)])
    assert (claim.tags, claim.sequence_lengths) == ([{"n": 1}, {}, {}], [3, 4, 5])
    assert (via.sizes("xyz", "a"), via.sizes("x", "b")) == ([1, 1, 1], [200_000])


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_group_without_rows_cannot_be_finished(via: AnyCaller) -> None:
    group = via.reserve("g")
    with via.refuses("GROUP_INCOMPLETE", "'g'", "no row", "add one or abort"):
        group.finish()
    assert group.abort() == 0
    assert via.partition().open_groups == 0


@pytest.mark.parametrize("end", ["finish", "abort", "expire", "drop"])
def test_a_group_that_has_ended_takes_no_more_rows(caller: Caller, group: str, end: str) -> None:
    add(caller, group, "s1")
    begun = caller.apply(caller.add_call(group, ["s2"], {"a": [1]}))
    assert isinstance(begun, Reservation)
    if end == "finish":
        caller.finish_group(group)
    elif end == "abort":
        caller.abort_group(group)
    elif end == "expire":
        caller.pass_time(100.0)
    else:
        caller.apply(DropPartition(caller.request_id(), "p"))
        caller.register()
    caller.plane.take_effects()
    with caller.refuses(Reason.GROUP_FENCED, group):
        caller.apply(caller.add_call(group, ["s3"], {"a": [1]}))
    with pytest.raises(Refusal) as caught:
        caller.finish(begun.ticket)
    assert caught.value.reason is Reason.GROUP_FENCED
    assert caller.plane.partition_info("p").rows == (end == "finish")


@pytest.mark.parametrize("end", ["abort", "expire", "drop"])
def test_a_group_that_never_had_a_row_leaves_nothing_behind(caller: Caller, group: str, end: str) -> None:
    caller.share(group, b=50)
    assert caller.used == 50
    if end == "abort":
        assert caller.abort_group(group) == GroupAborted(0)
    elif end == "expire":
        caller.pass_time(100.0)
    else:
        caller.apply(DropPartition(caller.request_id(), "p"))
        caller.register()
    assert (caller.used, caller.plane.totals().open_groups) == (0, 0)
    caller.reserve("g", [])


@pytest.mark.parametrize("added", [True, False])
def test_a_group_has_a_greatest_number_of_rows(new_caller: Callable[..., Caller], added: bool) -> None:
    caller = new_caller(max_group_rows=4)
    caller.register()
    reservation_id = caller.reserve("g", [] if added else ["s1", "s2", "s3"]).reservation_id
    if added:
        add(caller, reservation_id, "s1", "s2", "s3")
    with caller.refuses(Reason.INVALID_REQUEST, "'g'", "5 rows", "the limit is 4"):
        add(caller, reservation_id, "s1", "s4", "s5")
    add(caller, reservation_id, "s1", "s4")


def test_two_adds_under_way_do_not_exceed_the_greatest_number_of_rows(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(max_group_rows=3)
    caller.register()
    reservation_id = caller.reserve("g", []).reservation_id
    begun = [caller.apply(caller.add_call(reservation_id, ids, {"a": [1, 1]})) for ids in (["s1", "s2"], ["s3", "s4"])]
    assert all(isinstance(one, Reservation) for one in begun)
    caller.finish(begun[0].ticket)  # type: ignore[union-attr]
    with pytest.raises(Refusal, match="the limit is 3"):
        caller.finish(begun[1].ticket)  # type: ignore[union-attr]
    assert (caller.used, caller.plane.partition_info("p").rows) == (2, 2)


@pytest.mark.parametrize(
    "more",
    [{"reservation_id": ""}, {"claim_id": "c-1"}, {"generations": [1]}, {"shared": True, "sample_ids": ()}],
    ids=str,
)
def test_a_malformed_add_is_refused(caller: Caller, group: str, more: dict[str, object]) -> None:
    put = {"sample_ids": ["s1"], "lengths": {"a": [1]}, "reservation_id": group, "add_to_group": True, **more}
    with caller.refuses(Reason.INVALID_REQUEST, "adds to a group"):
        caller.apply(caller.put_call(**put))  # type: ignore[arg-type]


# -- shared values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["shared", "added"])
@pytest.mark.parametrize("size", [50, 0])
def test_rows_share_what_was_put_before_or_after_they_were_added(
    caller: Caller, group: str, first: str, size: int
) -> None:
    if first == "shared":
        caller.share(group, b=size)
    add(caller, group, "s1")
    if first == "added":
        caller.share(group, b=size)
    add(caller, group, "s2", "s3")
    assert caller.used == 3 + size
    caller.finish_group(group)
    plan = caller.read(["s3", "s1", "s2"], "b")
    assert plan.columns[0].entries.tolist() == [size] * 3
    assert len(set(plan.runs)) == (1 if size else 0)
    assert caller.clear(["s1", "s2"]).size_bytes == 2
    caller.apply(EndRead(plan.ticket))
    assert caller.clear() == ClearResult(1, 1 + size)
    assert caller.used == 0


def test_a_value_that_no_row_shares_is_freed_when_the_group_is_finished(caller: Caller, group: str) -> None:
    caller.share(group, b=50)
    caller.put(caller.add_call(group, ["s1"], {"b": [7]}))
    assert caller.used == 57
    caller.finish_group(group)
    assert (caller.used, caller.plane.partition_info("p").size_bytes) == (7, 7)


def test_a_field_that_a_group_without_rows_shares_stays_declared(caller: Caller, group: str) -> None:
    caller.share(group, b=50)
    definition = Definition("p", ("a",), ("train", "score"))
    with caller.refuses(Reason.FIELD_HOLDS_VALUES, "'b'", "1 reserved group"):
        caller.apply(RegisterPartition(caller.request_id(), definition, replace=True))
    caller.abort_group(group)
    caller.apply(RegisterPartition(caller.request_id(), definition, replace=True))
