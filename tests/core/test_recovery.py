"""The next life of a server: what was under way has ended, and what was answered is as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Failed, Grant
from dataplane_server.core.calls.life_calls import LetGo, Recover
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import FinishWrite, OpenSession, PutSamples, ShareReservation

HELD = pytest.mark.parametrize("held", [False, True])


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    """A partition in 64 bytes of memory."""
    caller = new_caller(memory_bytes=64)
    caller.register()
    return caller


def put_call(caller: Caller, sample_id: str, size: int) -> PutSamples:
    return caller.put_call([sample_id], {"a": [size]})


@HELD
def test_calls_that_wait_end_and_may_be_repeated(caller: Caller, held: bool) -> None:
    claim, put = caller.claim_call("a", batch_size=2), caller.put_call(["s2"], {"a": [40]})
    waiting = caller.wait(claim)
    caller.put_rows(["s1"], "a", size=40)
    queued = caller.wait(put)
    caller.apply(Recover(held))
    failed = {effect.ticket: effect.refusal for effect in caller.plane.take_effects() if isinstance(effect, Failed)}
    assert failed.keys() == {waiting, queued}
    assert all("repeat the call" in refusal.message for refusal in failed.values())
    caller.wait(claim)
    caller.wait(put)


@pytest.mark.parametrize(("held", "shared"), [(False, False), (True, False), (False, True)])
def test_a_write_that_streams_ends_and_its_space_is_free(caller: Caller, held: bool, shared: bool) -> None:
    begun = caller.begin(put_call(caller, "s1", 64))
    if shared:  # by a client that is gone
        caller.apply(ShareReservation(begun.ticket))
    caller.apply(Recover(held))
    assert caller.used == 0
    with pytest.raises(Refusal):
        caller.apply(FinishWrite(begun.ticket))


def test_what_a_client_writes_to_directly_stays_reserved_until_it_is_gone(caller: Caller) -> None:
    begun = caller.begin(put_call(caller, "s1", 40))
    caller.apply(ShareReservation(begun.ticket))
    caller.apply(Recover(True))
    with pytest.raises(Refusal):
        caller.apply(FinishWrite(begun.ticket))
    queued = caller.wait(put_call(caller, "s2", 40))
    caller.apply(LetGo())
    assert [effect.ticket for effect in caller.plane.take_effects()] == [queued]


def test_rows_that_clients_of_the_former_server_may_read_keep_their_bytes_until_they_are_gone(caller: Caller) -> None:
    caller.put_rows(["s1"], "a", size=40)
    caller.read(["s1"], "a")
    caller.apply(Recover(True))
    caller.put_rows(["later"], "a", size=8)
    caller.clear()
    assert caller.used == 40
    queued = caller.wait(put_call(caller, "s2", 40))
    caller.apply(LetGo())
    assert [effect.ticket for effect in caller.plane.take_effects()] == [queued]


@HELD
def test_claims_groups_and_cursors_are_as_they_were(caller: Caller, held: bool) -> None:
    session = caller.open_session()
    caller.put_rows(["s1", "s2"], "a")
    claim = caller.take("a", session_id=session)
    reservation_id = caller.reserve("g", ["g1"], session).reservation_id
    caller.apply(Recover(held))
    assert caller.commit(claim.claim_id).consumed_rows == 1
    caller.put(caller.put_call(["g1"], {"a": [1]}, reservation_id=reservation_id))
    caller.finish_group(reservation_id)
    assert caller.take("a", batch_size=2).sample_ids == ("s2", "g1")


def test_an_answer_that_was_not_received_is_repeated(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    claim = caller.claim_call("a")
    granted = caller.answer(Grant, claim)
    caller.apply(Recover(False))
    assert caller.answer(Grant, claim).claim_id == granted.claim_id


def test_every_session_has_its_grace_from_now_on(caller: Caller) -> None:
    session = caller.open_session(grace_s=5.0)
    caller.now += 4.0
    caller.apply(Recover(False))
    caller.pass_time(4.0)
    assert caller.apply(OpenSession(session, "client")).session_id == session
    caller.pass_time(5.5)
    with caller.refuses(Reason.SESSION_EXPIRED):
        caller.apply(OpenSession(session, "client"))
