"""Who holds memory that no clear frees: told by name, also to a put that finds no space."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Reservation
from dataplane_server.core.calls.life_calls import Recover
from dataplane_server.core.calls.listings import Holder
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import BeginRead, DropPartition, EndRead, GiveUpWrite, OpenSession


@pytest.fixture
def small(new_caller: Callable[..., Caller]) -> Caller:
    """A plane of 256 bytes, with the rows s1, s2 and s3 of 32 bytes each."""
    caller = new_caller(memory_bytes=256)
    caller.register()
    caller.put_rows(["s1", "s2", "s3"], "a", size=32)
    return caller


def begin_put(caller: Caller, who: str, size: int) -> Reservation:
    return caller.begin(caller.put_call([f"new-{caller.request_id()}"], {"a": [size]}, caller=who))


def read(caller: Caller, who: str, *sample_ids: str) -> int:
    return caller.apply(BeginRead("p", sample_ids, ["a"], caller=who)).ticket


def refusal_of_a_put(caller: Caller, size: int) -> str:
    waiting = caller.wait(caller.put_call(["late"], {"a": [size]}, caller="late"))
    refusal = caller.apply(GiveUpWrite(waiting))
    assert refusal.reason is Reason.NO_SPACE
    caller.plane.take_effects()
    return refusal.message


def test_what_is_lent_to_a_put_is_held_until_it_ends(small: Caller) -> None:
    assert (small.plane.holders(10), small.plane.totals().held_bytes) == ([], 0)
    reservation = begin_put(small, "rollout-0", 64)
    assert small.plane.holders(10) == [Holder("rollout-0", lent_bytes=64)]
    assert small.plane.totals().held_bytes == 64
    small.finish(reservation.ticket)
    assert small.plane.holders(10) == []


def test_what_is_lent_to_a_commit_is_held_by_the_client_of_its_session(small: Caller) -> None:
    session = small.apply(OpenSession("", "trainer-1", None)).session_id
    small.apply(small.commit_call(small.take("a", session_id=session).claim_id, {"b": [7]}))
    assert small.plane.holders(10) == [Holder("trainer-1", lent_bytes=7)]


def test_what_is_read_is_leased_and_owed_once_its_row_is_gone(small: Caller) -> None:
    ticket = read(small, "trainer-0", "s1", "s2")
    read(small, "", "s2")
    assert small.plane.holders(10) == [Holder("trainer-0", leased_bytes=64), Holder("unnamed", leased_bytes=32)]
    assert small.plane.totals().held_bytes == 0
    small.clear(["s1", "s2", "s3"])
    assert small.plane.holders(10) == [Holder("trainer-0", 0, 64, 64), Holder("unnamed", 0, 32, 32)]
    assert small.plane.totals().held_bytes == 64  # once, though two read s2
    small.apply(EndRead(ticket))
    assert small.plane.holders(10) == [Holder("unnamed", 0, 32, 32)]


def test_a_value_that_rows_share_is_owed_by_who_reads_one_of_them(small: Caller) -> None:
    small.put_once({"t1": bytes(16), "t2": bytes(16)})
    read(small, "trainer-0", "t1", "t2")
    small.clear(["t1", "t2"])
    assert small.plane.holders(10) == [Holder("trainer-0", 0, 32, 16)]


def test_readers_of_a_dropped_partition_are_told(small: Caller) -> None:
    read(small, "trainer-0", "s1")
    small.apply(DropPartition("drop", "p"))
    assert small.plane.holders(10) == [Holder("trainer-0", 0, 32, 32)]
    assert small.plane.totals().held_bytes == 32


def test_clients_of_a_former_server_are_told_together(small: Caller) -> None:
    read(small, "trainer-0", "s1")
    small.apply(Recover(held=True, reconnect_s=0.0, defer_frees=False))
    small.clear(["s1"])
    (former,) = small.plane.holders(10)
    assert former.client_name == "clients of the former server"
    assert former.owed_bytes >= 32


def test_those_beyond_the_largest_are_one(small: Caller) -> None:
    for number in range(1, 5):
        begin_put(small, f"r{number}", number)
    assert small.plane.holders(2) == [Holder("r4", 4), Holder("r3", 3), Holder("others", 3)]


def test_a_put_without_space_is_told_who_reads_cleared_rows(small: Caller) -> None:
    read(small, "trainer-0", "s1", "s2", "s3")
    small.put_rows(["s4"], "a", size=100)
    read(small, "trainer-1", "s4")  # which a clear would free, if this client ended
    small.clear(["s1", "s2", "s3"])
    message = refusal_of_a_put(small, 250)
    assert "'trainer-0' 96 bytes" in message
    assert "trainer-1" not in message
    for number in range(1, 5):
        begin_put(small, f"{number}-{'x' * 200}", number)
    message = refusal_of_a_put(small, 250)
    assert all(word in message for word in ("xx' 4 bytes", "'3-xx", "1 others", "'trainer-0' 96 bytes")), message
    assert len(message) < 800
