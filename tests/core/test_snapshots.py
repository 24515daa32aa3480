"""A snapshot pins the rows of one moment, and a restored state gives ids that no other state has given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Grant, SessionInfo
from dataplane_server.core.calls.life_calls import BeginSnapshot, EndSnapshot, Recover, Restored
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import OpenSession


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
    caller.plane.check_invariants()


def test_there_is_one_snapshot_at_a_time(caller: Caller) -> None:
    caller.apply(BeginSnapshot("a"))
    with caller.refuses(Reason.LIMIT_REACHED, "'a'"):
        caller.apply(BeginSnapshot("b"))
    caller.apply(EndSnapshot())
    caller.apply(BeginSnapshot("b"))


def test_a_restored_state_releases_what_sessions_held_and_gives_new_ids(caller: Caller) -> None:
    session = caller.apply(OpenSession("", "trainer", 10.0))
    assert isinstance(session, SessionInfo)
    claim = caller.apply(caller.claim_call("a", batch_size=1, session_id=session.session_id))
    assert isinstance(claim, Grant)
    before = caller.plane.partitions["p"].rows.generations(caller.plane.partitions["p"].rows.all_slots()).max()
    caller.apply(Restored("another", int(before) + 1000))
    again = caller.apply(caller.claim_call("a", batch_size=1))
    assert isinstance(again, Grant)
    assert again.sample_ids == claim.sample_ids
    assert again.claim_id.startswith("another-")
    opened = caller.apply(OpenSession("", "trainer", 10.0))
    assert opened.session_id.startswith("another-")
    caller.put_rows(["new"], "a", size=8)
    rows = caller.plane.partitions["p"].rows
    assert rows.generations(rows.all_slots()).max() >= before + 1000
    caller.plane.check_invariants()
