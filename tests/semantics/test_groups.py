"""Groups: the rows of a prompt become visible together or not at all, whatever happens to their producer."""

from __future__ import annotations

import pytest
import torch
from tests.core.caller import Caller
from tests.core.replayed import RecordedPlane
from tests.semantics.callers import Caller as AnyCaller
from tests.semantics.conftest import ON_ONE_WAY

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import GroupFencedError, PreconditionError
from dataplane_client.options import TransportChoice
from dataplane_server.core.calls.answers import (
    Effect,
    Granted,
    GroupAborted,
    GroupFinished,
    PutResult,
)
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal


def put_into(caller: Caller, reservation_id: str, *sample_ids: str, size: int = 1) -> PutResult:
    lengths = {"a": [size] * len(sample_ids)}
    return caller.put(caller.put_call(sample_ids, lengths, reservation_id=reservation_id))


def waits(caller: Caller, batch_size: int, task: str = "train") -> int:
    return caller.wait(caller.claim_call("a", batch_size=batch_size, task=task))


def granted(effects: list[Effect]) -> list[tuple[int, tuple[str, ...]]]:
    assert all(isinstance(effect, Granted) for effect in effects)
    return [(effect.ticket, effect.grant.sample_ids) for effect in effects if isinstance(effect, Granted)]


# -- reserved ----------------------------------------------------------------------------------------------------------


def test_reserved_rows_exist_and_no_claim_sees_them(caller: Caller) -> None:
    reserved = caller.reserve("g", ["s1", "s2"])
    put_into(caller, reserved.reservation_id, "s1", "s2")
    info = caller.plane.partition_info("p")
    assert (info.rows, info.rows_put_total, info.open_groups) == (2, 2, 1)
    assert caller.plane.totals().open_groups == 1
    caller.wait(caller.claim_call("a"))
    caller.wait(caller.claim_call(task="score", whole_groups=True))


def test_a_group_that_exists_is_told_with_its_state_and_who_fills_it(caller: Caller) -> None:
    reservation_id = caller.reserve("g", ["s1", "s2"], caller.open_session()).reservation_id
    with caller.refuses(Reason.SAMPLE_EXISTS, "is being filled by client", "aborts it or dies"):
        caller.reserve("g", [])
    put_into(caller, reservation_id, "s1", "s2")
    caller.finish_group(reservation_id)
    with pytest.raises(Refusal, match="2 of its rows") as caught:
        caller.reserve("g", [])
    assert caught.value.metadata["group_state"] == "committed"


def test_a_reservation_of_another_server_life_is_refused() -> None:
    earlier, later = Caller(Limits()), Caller(Limits())
    earlier.plane, later.plane = RecordedPlane(incarnation="one"), RecordedPlane(incarnation="two")
    for caller in (earlier, later):
        caller.register()
    reservation_id = earlier.reserve("g", ["s1"]).reservation_id
    later.reserve("g", ["s1"])
    with later.refuses(Reason.GROUP_FENCED, reservation_id):
        later.abort_group(reservation_id)


# -- puts of reserved rows ---------------------------------------------------------------------------------------------


@pytest.fixture
def reservation(caller: Caller) -> str:
    """Of group g, rows s1 and s2, each with a byte in a, held by a session."""
    reservation_id = caller.reserve("g", ["s1", "s2"], caller.open_session()).reservation_id
    put_into(caller, reservation_id, "s1", "s2")
    return reservation_id


# -- finished ----------------------------------------------------------------------------------------------------------


def test_rows_become_visible_to_all_tasks_when_their_group_is_finished(caller: Caller, reservation: str) -> None:
    train, score = waits(caller, 2), waits(caller, 1, "score")
    assert caller.plane.take_effects() == []
    assert caller.finish_group(reservation) == GroupFinished(2)
    assert granted(caller.plane.take_effects()) == [(train, ("s1", "s2")), (score, ("s1",))]


def test_a_group_with_a_row_that_has_nothing_cannot_be_finished_yet(via: AnyCaller) -> None:
    group = via.reserve("g", "xy")
    group.put("x", "a")
    with via.refuses("GROUP_INCOMPLETE", "'y'"):
        group.finish()
    group.put("y", "a")
    assert group.finish() == 2


def test_a_group_takes_its_own_rows_only_and_nobody_else_puts_into_them(via: AnyCaller) -> None:
    group = via.reserve("g", "x")
    via.reserve("h", "y")
    with via.refuses("ROW_RESERVED", "'x'", "'g'"):
        via.put("x", "a")
    with via.refuses("SAMPLE_NOT_FOUND", "'z'"):
        group.put("z", "a")
    via.put("z", "a")
    for stranger in "yz":
        with via.refuses("INVALID_REQUEST", repr(stranger), "'g'"):
            group.put(f"x{stranger}", "a")


@pytest.mark.parametrize("size", [24, 400_000], ids=["small", "large"])
def test_what_rows_have_in_common_is_stored_once_and_read_from_each(via: AnyCaller, size: int) -> None:
    group = via.reserve("g", "xy")
    group.put("xy", "a")
    before = via.used()
    group.share("b", size)
    assert via.used() == before + size
    group.finish()
    assert via.sizes(via.claim("a", "b", size=2).ids, "b") == [size, size]
    via.clear("x")
    assert via.sizes("y", "b") == [size]


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_groups_that_a_session_reserved_are_rolled_back_when_it_dies_and_others_stay(caller: Caller) -> None:
    mine, other = caller.open_session(grace_s=5.0), caller.open_session(grace_s=50.0)
    first = caller.reserve("g", ["s1", "s2"], mine).reservation_id
    put_into(caller, first, "s1")
    finished = caller.reserve("done", ["s3"], mine).reservation_id
    put_into(caller, finished, "s3")
    caller.finish_group(finished)
    kept = [caller.reserve("h", ["s4"], other).reservation_id, caller.reserve("i", ["s5"]).reservation_id]
    caller.pass_time(6.0)
    info = caller.plane.partition_info("p")
    assert (info.rows, info.open_groups, info.removed_rows["rolled_back"]) == (3, 2, 2)
    assert [caller.abort_group(reservation_id) for reservation_id in kept] == [GroupAborted(1, True)] * 2


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["a"], 4, ["train"])
    return client


def test_a_late_put_of_a_group_that_was_rolled_back_is_fenced_and_creates_nothing(
    flow: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    group = flow.reserve_group("p", "g", ["g0"])
    with connect(address, transport=transport) as other:
        group.reservation_id = other.reserve_group("p", "h", ["h0"]).reservation_id
    for late in (lambda: group.put(["h0"], {"a": torch.zeros(1)}), group.commit):
        with pytest.raises(GroupFencedError):
            late()
        assert group.state == "fenced"
    assert flow.partition("p").rows == 1


@ON_ONE_WAY
def test_an_exception_aborts_the_group_and_says_why(flow: DataPlaneClient) -> None:
    group = flow.reserve_group("p", "g", ["g0", "g1"])
    group.put(["g0", "g1"], {"a": torch.zeros(2)})
    with pytest.raises(ZeroDivisionError), group:
        raise ZeroDivisionError
    assert (group.state, flow.partition("p").rows) == ("aborted", 0)
    event = flow.sample("p", "g0").events[-1]
    assert (event.what, event.reason) == ("rolled_back", "ZeroDivisionError")
    with pytest.raises(PreconditionError, match="g1"), flow.reserve_group("p", "g", ["g0", "g1"]) as group:
        group.put(["g0"], {"a": torch.zeros(1)})  # the commit is refused
    assert (group.state, flow.partition("p").rows) == ("aborted", 0)
    assert flow.partition("p").removed_rows["rolled_back"] == 4
    assert flow.server_status().memory_used_bytes == 0
