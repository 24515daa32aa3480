"""Groups that are late, and rollouts that failed: what consumers get of them, and how often they are tried again."""

from __future__ import annotations

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Answered, Failed, GroupAborted, GroupFinished, Reserved
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import AbortGroup, FinishGroup
from dataplane_server.core.calls.values import Tags

IDS = ("x", "y", "z")


def reserve(caller: Caller, *complete: str, **terms: object) -> str:
    """A group of three rows with a deadline in 30 s. complete: the rows that have a value."""
    reservation: str = caller.reserve("g", IDS, **{"deadline_s": 30.0, **terms}).reservation_id  # type: ignore[arg-type]
    for sample_id in complete:
        caller.put(caller.put_call([sample_id], {"a": [8]}, reservation_id=reservation))
    return reservation


def ended(caller: Caller) -> dict[str, int]:
    counters = caller.plane.partitions["p"].counters
    return {how: getattr(counters, f"groups_{how}") for how in ("committed", "partial", "aborted", "late")}


def test_a_group_is_committed_at_its_deadline_with_the_rows_that_are_there(caller: Caller) -> None:
    reservation = reserve(caller, "x", "z", min_rows=2)
    caller.pass_time(29.9)
    assert caller.plane.partitions["p"].groups.reserved
    assert caller.plane.next_due == pytest.approx(caller.now + 0.1)
    caller.pass_time(0.2)
    grant = caller.take("a", whole_groups=True)
    assert (grant.sample_ids, [dict(tags) for tags in grant.tags]) == (("x", "z"), [{"missing_rows": 1}] * 2)
    assert caller.apply(FinishGroup(caller.request_id(), reservation)) == GroupFinished(2)
    with caller.refuses(Reason.GROUP_FENCED, "its deadline passed, and it was committed with 2 rows"):
        caller.put(caller.put_call(["y"], {"a": [8]}, reservation_id=reservation))
    info = caller.state()[0][0]
    assert (info.removed_rows["failed"], ended(caller)) == (1, {"committed": 0, "partial": 1, "aborted": 0, "late": 0})
    assert caller.plane.sample("p", "y").events[-1].what == "failed"


def test_a_commit_that_comes_before_the_server_has_noticed_the_deadline_is_not_refused(caller: Caller) -> None:
    reservation = reserve(caller, "x", "z", min_rows=2)
    caller.now += 30.0
    assert caller.finish_group(reservation, 3).rows == 2
    caller.pass_time(1.0)
    grant = caller.take("a", batch_size=2)
    assert [dict(tags) for tags in grant.tags] == [{"end_weight_version": 3, "missing_rows": 1}] * 2


@pytest.mark.parametrize("terms", [{}, {"min_rows": 3}, {"min_rows": 2, "complete_fields": ("a", "b")}])
def test_a_group_with_too_few_rows_at_its_deadline_is_removed_and_its_producer_told(
    caller: Caller, terms: dict[str, object]
) -> None:
    reservation = reserve(caller, "x", "z", **terms)
    caller.pass_time(31.0)
    info = caller.state()[0][0]
    assert (info.rows, info.size_bytes, info.open_groups, info.removed_rows["rolled_back"]) == (0, 0, 0, 3)
    assert ended(caller) == {"committed": 0, "partial": 0, "aborted": 0, "late": 1}
    late_put = caller.put_call(["y"], {"a": [8]}, reservation_id=reservation)
    for call in (late_put, FinishGroup(caller.request_id(), reservation)):
        with caller.refuses(Reason.GROUP_FENCED, "group 'g' was removed: its deadline passed with", "min_rows"):
            caller.apply(call)
    reserve(caller)


def test_a_row_with_as_many_tags_as_it_may_have_is_committed_at_the_deadline_and_its_tags_can_change(
    caller: Caller,
) -> None:
    tags: Tags = {f"tag{number}": number for number in range(64)}
    reservation = reserve(caller, min_rows=1)
    caller.put(caller.put_call(["x"], {"a": [8]}, tags=[tags], reservation_id=reservation))
    caller.pass_time(31.0)
    caller.put(caller.put_call(["x"], tags=[{"tag0": 1}]))
    assert dict(caller.take("a").tags[0]) == {**tags, "tag0": 1, "missing_rows": 2}
    with caller.refuses(Reason.INVALID_REQUEST, "64 tags"):
        caller.apply(caller.put_call(["x"], tags=[{"another": 1}]))


def test_a_deadline_is_kept_however_many_groups_have_come_and_gone(caller: Caller) -> None:
    reserve(caller, "x", min_rows=1)
    for number in range(200):
        caller.abort_group(caller.reserve(f"g{number}", [], deadline_s=60.0).reservation_id)
    caller.pass_time(31.0)
    assert ended(caller)["partial"] == 1


def test_values_that_all_rows_share_make_none_of_them_complete(caller: Caller) -> None:
    reservation = reserve(caller, "x", min_rows=1)
    caller.share(reservation, b=8)
    caller.pass_time(31.0)
    assert caller.take("b", batch_size=3, min_size=1).sample_ids == ("x",)


def test_a_row_that_failed_is_gone_and_the_others_tell_how_many_their_group_lacks(caller: Caller) -> None:
    caller.put_rows(["s"], "a")
    reservation = reserve(caller, "x", "y", deadline_s=0.0)
    with caller.refuses(Reason.INVALID_REQUEST, "'s'"):
        caller.apply(AbortGroup(caller.request_id(), reservation, "no", ("x", "s")))
    removed = caller.apply(AbortGroup(caller.request_id(), reservation, "sandbox died", ("z",))).removed_rows
    assert (removed, caller.finish_group(reservation).rows, ended(caller)["partial"]) == (1, 2, 1)
    grant = caller.take("a", batch_size=3)
    assert [dict(tags) for tags in grant.tags] == [{}, {"missing_rows": 1}, {"missing_rows": 1}]
    assert caller.plane.sample("p", "z").events[-1].reason == "sandbox died"
    assert caller.state()[0][0].removed_rows["failed"] == 1


def test_a_prompt_is_tried_again_only_as_often_as_it_may_be(caller: Caller) -> None:
    for _ in range(3):
        caller.abort_group(reserve(caller, max_regenerations=2), "no tests pass")
    with caller.refuses(Reason.GROUP_GIVEN_UP, "removed 3 times, and max_regenerations is 2; last: no tests pass"):
        reserve(caller, max_regenerations=2)
    (given_up,) = caller.plane.list_groups("p", caller.now).given_up
    assert (given_up.group_id, given_up.attempts, given_up.reason) == ("g", 3, "no tests pass")
    caller.finish_group(reserve(caller, *IDS))
    caller.clear(IDS)
    reserve(caller, max_regenerations=0)
    assert caller.plane.list_groups("p", caller.now).given_up == ()


def test_a_reservation_that_nobody_took_is_no_attempt(caller: Caller) -> None:
    call = caller.reserve_call("g", ["x"], max_regenerations=0)
    caller.answer(Reserved, call)
    assert [caller.abandon_reservation(call.request_id) for _ in range(2)] == [
        GroupAborted(1, True),
        GroupAborted(0, True),
    ]
    with caller.refuses(Reason.SUPERSEDED):
        caller.apply(call)
    assert caller.plane.sample("p", "x").events[-1].reason == "not taken"
    assert caller.plane.list_groups("p", caller.now).given_up == ()
    caller.finish_group(reserve(caller, *IDS, max_regenerations=0))


def test_a_reservation_that_was_made_use_of_is_not_given_up(caller: Caller) -> None:
    call = caller.reserve_call("g", ["x"])
    reservation = caller.answer(Reserved, call).reservation_id
    caller.put(caller.put_call(["x"], {"a": [1]}, reservation_id=reservation))
    caller.finish_group(reservation)
    assert caller.abandon_reservation(call.request_id) == GroupAborted(0, True)
    assert caller.take("a", batch_size=1).sample_ids == ("x",)


@pytest.mark.parametrize("when", ["before it arrives", "while it waits"])
def test_a_reservation_that_is_given_up_makes_no_room(caller: Caller, when: str) -> None:
    caller.put_rows(["s"], "a")
    caller.set_flow(max_rows=1, when_full="block" if when == "while it waits" else "evict")
    call = caller.reserve_call("g", ["x"])
    if when == "while it waits":
        caller.apply(call)
    assert caller.abandon_reservation(call.request_id) == GroupAborted(0, True)
    if when == "while it waits":
        assert caller.effect(Failed).refusal.reason is Reason.SUPERSEDED
    with caller.refuses(Reason.SUPERSEDED):
        caller.apply(call)
    assert (caller.state()[0][0].rows, caller.plane.partitions["p"].groups.reserved) == (1, {})


def test_a_prompt_that_waits_for_room_is_refused_if_it_was_given_up_meanwhile(caller: Caller) -> None:
    caller.put_rows(["s"], "a")
    caller.set_flow(max_rows=1)
    for _ in range(2):
        caller.apply(caller.reserve_call("g", ["x"], max_regenerations=0))
    caller.clear(["s"])
    first = caller.effect(Answered)
    assert isinstance(first.answer, Reserved)
    caller.abort_group(first.answer.reservation_id, "no tests pass")
    assert caller.effect(Failed).refusal.reason is Reason.GROUP_GIVEN_UP


def test_reserved_groups_are_listed_with_what_they_lack(caller: Caller) -> None:
    session = caller.open_session()
    reserve(caller, "y", min_rows=2, session_id=session, weight_version=7)
    caller.now += 12.0
    listed = caller.plane.list_groups("p", caller.now)
    (group,) = listed.groups
    assert (group.rows, group.incomplete_rows, group.incomplete_sample_ids) == (3, 2, ("x", "z"))
    assert (group.age_s, group.deadline_in_s, group.min_rows, group.start_weight_version) == (12.0, 18.0, 2, 7)
    assert listed.reserved == 1


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"deadline_s": -1.0}, "deadline of 0 to 86400 s"),
        ({"deadline_s": 90_000.0}, "deadline of 0 to 86400 s"),
        ({"deadline_s": 0.0, "min_rows": 1}, "no deadline at which they count"),
        ({"min_rows": 5000}, "max_group_rows"),
        ({"complete_fields": ("a",)}, "complete_fields and no min_rows"),
    ],
)
def test_terms_that_make_no_sense_are_refused(caller: Caller, terms: dict[str, object], words: str) -> None:
    with caller.refuses(Reason.INVALID_REQUEST, "'g'", words):
        reserve(caller, **terms)
