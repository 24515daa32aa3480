"""A snapshot pins the rows of one moment, and a restored state gives ids that no other state has given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.life_calls import BeginSnapshot, EndSnapshot, Recover, Restored
from dataplane_server.core.calls.refusal import Reason


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    """A partition in 64 bytes of memory, with a row of 40."""
    caller = new_caller(memory_bytes=64)
    caller.register()
    caller.put_rows(["s1"], "a", size=40)
    return caller


@pytest.mark.parametrize("ended_by", [EndSnapshot(), Recover(False)], ids=["its end", "the server's end"])
def test_what_is_cleared_during_a_snapshot_keeps_its_bytes_until_the_end(
    caller: Caller, ended_by: EndSnapshot | Recover
) -> None:
    caller.apply(BeginSnapshot("a"))
    caller.clear()
    caller.put_rows(["later"], "a", size=8)
    assert caller.used == 48
    caller.apply(ended_by)
    assert caller.used == 8


def test_there_is_one_snapshot_at_a_time(caller: Caller) -> None:
    caller.apply(BeginSnapshot("a"))
    with caller.refuses(Reason.LIMIT_REACHED, "'a'"):
        caller.apply(BeginSnapshot("b"))
    caller.apply(EndSnapshot())
    caller.apply(BeginSnapshot("b"))


def test_a_restored_state_releases_what_clients_held_and_gives_new_ids(caller: Caller) -> None:
    before = int(caller.put_rows(["s1"], "b").generations[0])
    caller.take("a", session_id=caller.open_session(10.0))
    used, reservation_id = caller.used, caller.reserve("g", ()).reservation_id
    caller.share(reservation_id, b=8)
    caller.apply(Restored("another", before + 1000))
    assert caller.used == used
    with caller.refuses(Reason.GROUP_FENCED):
        caller.finish_group(reservation_id)
    again = caller.take("a")
    assert again.sample_ids == ("s1",)
    assert again.claim_id.startswith("another-")
    assert caller.open_session().startswith("another-")
    assert caller.put_rows(["new"], "a", size=8).generations[0] >= before + 1000


def test_a_restored_state_counts_no_attempt_of_a_group_that_was_being_filled(caller: Caller) -> None:
    for group_id, session_id in (("g", caller.open_session(10.0)), ("h", "")):
        caller.reserve(group_id, [group_id], session_id, max_regenerations=0)
    caller.apply(Restored("another", 1000))
    for row in "gh":
        event = caller.plane.sample("p", row).events[-1]
        assert (event.what, event.reason) == ("rolled_back", "a snapshot was restored")
        caller.reserve(row, [row], max_regenerations=0)


@pytest.mark.parametrize("waits", ["put", "claim"])
def test_a_restored_state_serves_no_call_that_waited(caller: Caller, waits: str) -> None:
    caller.set_flow(max_rows=1, when_full="evict")
    caller.take("a", session_id=caller.open_session(10.0))
    caller.wait(caller.put_call(["s2"], {"a": [8]}) if waits == "put" else caller.claim_call("a", consume=True))
    caller.apply(Restored("another", 1000))
    caller.plane.take_effects()
    assert caller.take("a").sample_ids == ("s1",)
