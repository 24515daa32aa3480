"""Groups whose rows are not known beforehand: they are added until the group is finished."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller
from tests.semantics.callers import Caller as AnyCaller

from dataplane_server.core.calls.answers import ClearResult, PutResult
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import DropPartition, EndRead


@pytest.fixture
def group(caller: Caller) -> str:
    """The reservation of group g, which has no row, by a session."""
    return caller.reserve("g", [], caller.open_session()).reservation_id


def add(caller: Caller, reservation_id: str, *sample_ids: str, size: int = 1, field: str = "a") -> PutResult:
    return caller.put(caller.add_call(reservation_id, sample_ids, {field: [size] * len(sample_ids)}))


def test_rows_are_reserved_or_added_until_the_group_is_finished_and_then_seen_together(via: AnyCaller) -> None:
    waiting = via.begin_claim("a", "b", whole_groups=True)
    group = via.reserve("g", "vw")
    assert (via.partition().rows, via.partition().open_groups) == (2, 1)
    group.put("wv", "a", tags=[{"n": 1}, {}], sequence_lengths=[2, 1])
    group.put("x", "a", add=True, tags={"n": 2}, sequence_lengths=[3])
    group.share("b", 200_000)
    group.put("yz", "a", add=True, sequence_lengths=[4, 5])
    assert via.waiting() == 1
    assert group.finish() == 5
    claim = waiting.answer()
    assert (claim.ids, claim.groups) == ("vwxyz", [("g", 5, None, None)])
    assert (claim.tags, claim.sequence_lengths) == ([{}, {"n": 1}, {"n": 2}, {}, {}], [1, 2, 3, 4, 5])
    assert (via.sizes("vwxyz", "a"), via.sizes("x", "b")) == ([1] * 5, [200_000])
    assert via.partition().open_groups == 0


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_group_without_rows_cannot_be_finished(via: AnyCaller) -> None:
    group = via.reserve("g")
    with via.refuses("GROUP_INCOMPLETE", "'g'", "no row", "add one or abort"):
        group.finish()
    assert group.abort() == 0
    assert via.partition().open_groups == 0


def drop(caller: Caller, _: str) -> None:
    caller.apply(DropPartition(caller.request_id(), "p"))
    caller.register()


ENDS: dict[str, Callable[[Caller, str], object]] = {
    "finish": Caller.finish_group,
    "abort": Caller.abort_group,
    "expire": lambda caller, _: caller.pass_time(100.0),
    "drop": drop,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_group_that_has_ended_takes_no_more_rows(caller: Caller, group: str, end: str) -> None:
    add(caller, group, "s1")
    begun = caller.begin(caller.add_call(group, ["s2"], {"a": [1]}))
    ENDS[end](caller, group)
    caller.plane.take_effects()
    with caller.refuses(Reason.GROUP_FENCED, group):
        caller.apply(caller.add_call(group, ["s3"], {"a": [1]}))
    caller.fails(Reason.GROUP_FENCED, begun.ticket)
    assert caller.plane.partition_info("p").rows == (end == "finish")


@pytest.mark.parametrize("end", ["abort", "expire", "drop"])
def test_a_group_that_never_had_a_row_leaves_nothing_behind(caller: Caller, group: str, end: str) -> None:
    caller.share(group, b=50)
    assert caller.used == 50
    ENDS[end](caller, group)
    assert (caller.used, caller.plane.totals().open_groups) == (0, 0)
    caller.reserve("g", [])


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
