"""Groups whose rows are not known beforehand: they are added until the group is finished."""

from __future__ import annotations

import pytest
from tests.core.caller import Caller
from tests.semantics.callers import Caller as AnyCaller

from dataplane_server.core.calls.answers import (
    ClearResult,
    GroupAborted,
    PutResult,
)
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import DropPartition, EndRead


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
    begun = caller.begin(caller.add_call(group, ["s2"], {"a": [1]}))
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
    caller.fails(Reason.GROUP_FENCED, begun.ticket)
    assert caller.plane.partition_info("p").rows == (end == "finish")


@pytest.mark.parametrize("end", ["abort", "expire", "drop"])
def test_a_group_that_never_had_a_row_leaves_nothing_behind(caller: Caller, group: str, end: str) -> None:
    caller.share(group, b=50)
    assert caller.used == 50
    if end == "abort":
        assert caller.abort_group(group) == GroupAborted(0, True)
    elif end == "expire":
        caller.pass_time(100.0)
    else:
        caller.apply(DropPartition(caller.request_id(), "p"))
        caller.register()
    assert (caller.used, caller.plane.totals().open_groups) == (0, 0)
    caller.reserve("g", [])


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
