"""Sessions: how long they live, and what becomes of what they held."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import SessionInfo
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import CloseSession, Heartbeat, OpenSession
from dataplane_server.core.state.sessions import Sessions


@pytest.fixture
def sessions() -> Sessions:
    """Sessions of a server life that is called x."""
    return Sessions(Limits(max_sessions=3), "x")


def dead(sessions: Sessions, now: float, stalled_s: float = 0.0) -> list[str]:
    return [session.session_id for session in sessions.expired(now, stalled_s)]


# -- how long they live ------------------------------------------------------------------------------------------------


def test_a_client_that_sends_heartbeats_lives_for_hours(sessions: Sessions) -> None:
    sessions.open(OpenSession("", "client", 1.0), 0.0)
    for quarter in range(4 * 3600 * 3):
        assert sessions.heartbeat("x-s1", quarter / 4)
        assert sessions.expired(quarter / 4, 0.0) == []


def test_a_session_that_lives_is_resumed_with_its_grace(sessions: Sessions) -> None:
    sessions.open(OpenSession("", "client", 5.0), 0.0)
    assert sessions.open(OpenSession("x-s1", "somebody", 1.0), 4.0) == SessionInfo("x-s1", 5.0)
    assert sessions.name("x-s1") == "client"
    assert dead(sessions, 8.9) == []
    assert dead(sessions, 9.0) == ["x-s1"]


def test_a_grace_that_nobody_named_is_the_default(sessions: Sessions) -> None:
    assert sessions.open(OpenSession("", "client", None), 0.0) == SessionInfo("x-s1", 10.0)
    assert dead(sessions, 9.9) == []
    assert dead(sessions, 10.0) == ["x-s1"]


def test_sessions_opened_and_closed_without_end_leave_nothing_behind() -> None:
    sessions = Sessions(Limits(), "x")
    kept = sessions.open(OpenSession("", "client", 3600.0), 0.0).session_id
    for _ in range(10_000):
        sessions.close(sessions.open(OpenSession("", "client", 3600.0), 0.0).session_id, 0.0)
    assert [session.session_id for session in sessions] == [kept]
    assert len(sessions._due) < 1000


# -- open, resume, close -----------------------------------------------------------------------------------------------


def test_how_sessions_ended_is_remembered_by_name_for_the_last_256(sessions: Sessions) -> None:
    for number in range(300):
        sessions.close(sessions.open(OpenSession("", f"client {number}", None), 0.0).session_id, float(number))
    sessions.open(OpenSession("", "client 299", 1.0), 300.0)
    sessions.expired(302.0, 0.0)
    assert sessions.gone("client 43") is None
    assert (sessions.gone("client 44"), sessions.gone("client 299")) == ((44.0, "closed"), (302.0, "expired"))


# -- what a session holds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended", ["died", "closed"])
def test_nothing_is_claimed_or_reserved_in_the_name_of_a_session_that_ended(caller: Caller, ended: str) -> None:
    caller.put_rows(["s1"], "a")
    session_id = caller.open_session(5.0)
    if ended == "died":
        caller.pass_time(5.0)
    else:
        caller.apply(CloseSession(session_id))
    with caller.refuses(Reason.SESSION_EXPIRED, session_id):
        caller.apply(caller.claim_call("a", session_id=session_id))
    with caller.refuses(Reason.SESSION_EXPIRED, session_id):
        caller.apply(caller.shard_call("a", session_id=session_id))
    with caller.refuses(Reason.SESSION_EXPIRED, session_id):
        caller.reserve("g", ["s2"], session_id)
    with caller.refuses(Reason.SESSION_EXPIRED, session_id):
        caller.apply(OpenSession(session_id, "client", None))


# -- room for new ones -------------------------------------------------------------------------------------------------


@pytest.fixture
def crowded(new_caller: Callable[..., Caller]) -> tuple[Caller, list[str]]:
    """A plane with as many sessions as may be, of an hour each. The first three hold a claim, a group, and a place in a
    queue; the others hold nothing, and the last is a second younger.
    """
    caller = new_caller(max_sessions=5)
    caller.register()
    caller.put_rows(["s1"], "a")
    ids = [caller.open_session(3600.0) for _ in range(4)]
    caller.take("a", session_id=ids[0])
    caller.reserve("g", ["g1"], ids[1])
    caller.wait(caller.claim_call("b", session_id=ids[2]))
    caller.pass_time(1.0)
    ids.append(caller.open_session(3600.0))
    return caller, ids


def open_ones(caller: Caller) -> list[str]:
    return [session.session_id for session in caller.plane.list_sessions(caller.now)]


def test_those_that_hold_nothing_and_are_silent_make_room_for_a_new_one(crowded: tuple[Caller, list[str]]) -> None:
    caller, ids = crowded
    caller.pass_time(900.0)
    new = caller.open_session()
    assert open_ones(caller) == [*ids[:3], new]
    assert [(told.session_id, told.silent_s) for told in caller.plane.take_effects()] == [  # type: ignore[union-attr]
        (ids[3], 901.0),
        (ids[4], 900.0),
    ]
    assert caller.plane.totals().sessions_ended == {"closed": 0, "expired": 2}
    with caller.refuses(Reason.SESSION_EXPIRED, ids[3]):
        caller.apply(OpenSession(ids[3], "client", None))


@pytest.mark.parametrize("silent_s", [0.0, 9.9])
def test_those_that_were_heard_within_the_default_grace_stay(
    crowded: tuple[Caller, list[str]], silent_s: float
) -> None:
    caller, ids = crowded
    caller.pass_time(900.0)
    for session_id in ids[3:]:
        caller.apply(Heartbeat(session_id))
    caller.pass_time(silent_s)
    with caller.refuses(Reason.LIMIT_REACHED, "5 sessions are open already"):
        caller.open_session()
    assert open_ones(caller) == ids
    caller.plane.take_effects()


def test_without_need_they_live_for_their_grace(crowded: tuple[Caller, list[str]]) -> None:
    caller, ids = crowded
    caller.pass_time(900.0)
    caller.apply(CloseSession(ids[0]))
    new = caller.open_session()
    assert open_ones(caller) == [*ids[1:], new]


@pytest.mark.parametrize("wrong", [("new", 1e9), ("n" * 10_000, None)], ids=["grace", "name"])
def test_a_session_that_is_refused_makes_no_others_expire(
    crowded: tuple[Caller, list[str]], wrong: tuple[str, float | None]
) -> None:
    caller, _ = crowded
    caller.pass_time(900.0)
    with caller.refuses(Reason.INVALID_REQUEST):
        caller.apply(OpenSession("", *wrong))
