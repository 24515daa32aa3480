"""What a client of this host holds, over a real core: kept until it is released, whatever overtakes what."""

from __future__ import annotations

import numpy as np
import pytest

from dataplane_server.core.calls.answers import CommitResult, PutResult, Reservation
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import BeginRead, ClearSamples, FinishWrite, PutSamples, RegisterPartition
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.plane import DataPlane
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service.local_session import Lease, LocalSession, SharedReservation
from dataplane_server.service.shell import Shell
from rl_dataplane.v1 import local_pb2 as pb

BUDGET = 100


class Plane:
    """A data plane of BUDGET bytes with partition p, on which a session holds things."""

    def __init__(self) -> None:
        self.plane = DataPlane(Limits(memory_bytes=BUDGET))
        self.shell = Shell(self.plane, Metrics(self.plane, lambda: True))
        self.session = LocalSession(self.shell)
        self.plane.apply(RegisterPartition("r", Definition("p", ("x",), ("train",))), 0.0)
        self._puts = 0

    @property
    def used(self) -> int:
        self.plane.check_invariants()
        return self.plane.totals().memory_used_bytes

    def room(self, size_bytes: int) -> SharedReservation:
        """Room for a row of size_bytes."""
        self._puts += 1
        column = ColumnSpec("x", Shape("jagged", "uint8", ()), np.array([size_bytes], np.int64))
        begun = self.plane.apply(PutSamples(f"put-{self._puts}", "p", [f"s{self._puts}"], [column]), 0.0)
        assert isinstance(begun, Reservation)
        return SharedReservation(begun, _answer)

    def lease(self, size_bytes: int) -> Lease:
        """A lease of a row of size_bytes that has been cleared: its bytes are in use by the lease alone."""
        self.plane.apply(FinishWrite(self.room(size_bytes).reservation.ticket), 0.0)
        plan = self.plane.apply(BeginRead("p", [f"s{self._puts}"], ["x"]), 0.0)
        self.plane.apply(ClearSamples(f"clear-{self._puts}", "p", None), 0.0)
        return Lease(plan.ticket)


def _answer(result: PutResult | CommitResult, size_bytes: int) -> pb.LocalWriteResponse:
    return pb.LocalWriteResponse()


@pytest.fixture
def plane() -> Plane:
    return Plane()


def refused(plane: Plane, handle: int, held: Lease | SharedReservation) -> str:
    with pytest.raises(Refusal) as caught:
        plane.session.hold(handle, held)
    assert caught.value.reason is Reason.INVALID_REQUEST
    return caught.value.message


def test_what_is_held_is_held_until_it_is_released(plane: Plane) -> None:
    plane.session.hold(1, plane.lease(10))
    plane.session.hold(2, plane.room(20))
    assert (plane.used, plane.session.writes) == (30, 1)
    plane.session.release([1])
    assert (plane.used, plane.session.writes) == (20, 1)
    plane.session.release([2])
    assert (plane.used, plane.session.writes) == (0, 0)


def test_a_handle_that_was_released_before_holds_nothing(plane: Plane) -> None:
    plane.session.release([1, 2])
    assert refused(plane, 1, plane.lease(10)) == "handle 1 was released"
    assert refused(plane, 2, plane.room(20)) == "handle 2 was released"
    assert plane.used == 0


def test_a_handle_that_is_held_is_not_taken_again_and_stays_held(plane: Plane) -> None:
    plane.session.hold(1, plane.room(10))
    assert refused(plane, 1, plane.room(20)) == "handle 1 is in use already"
    assert plane.used == 10
    plane.session.release([1])
    assert plane.used == 0


def test_a_handle_that_was_held_and_released_may_be_used_again(plane: Plane) -> None:
    for _ in range(2):
        plane.session.hold(1, plane.lease(10))
        plane.session.release([1])
    assert plane.used == 0


@pytest.mark.parametrize("handles", [[], [7], [7, 7], [0, (1 << 64) - 1]], ids=str)
def test_releasing_what_is_not_held_changes_nothing(plane: Plane, handles: list[int]) -> None:
    plane.session.hold(1, plane.room(10))
    plane.session.release(handles)
    assert plane.used == 10


def test_room_that_is_taken_to_be_finished_is_no_longer_held(plane: Plane) -> None:
    room = plane.room(10)
    plane.session.hold(1, room)
    assert plane.session.take_reservation(1) is room
    plane.session.release([1])
    plane.session.end()
    assert isinstance(plane.plane.apply(FinishWrite(room.reservation.ticket), 0.0), PutResult)
    assert plane.used == 10


@pytest.mark.parametrize("handle", [1, 2], ids=["a lease", "nothing"])
def test_what_is_no_room_is_not_taken(plane: Plane, handle: int) -> None:
    plane.session.hold(1, plane.lease(10))
    with pytest.raises(Refusal, match=f"handle {handle} holds no reservation"):
        plane.session.take_reservation(handle)
    assert plane.used == 10


def test_the_end_gives_everything_back_and_nothing_is_held_afterwards(plane: Plane) -> None:
    plane.session.hold(1, plane.lease(10))
    plane.session.hold(2, plane.room(20))
    plane.session.end()
    assert plane.used == 0
    assert refused(plane, 3, plane.room(30)) == "handle 3 was released"
    assert plane.used == 0


def test_room_that_returns_wakes_who_waits_for_it(plane: Plane) -> None:
    plane.session.hold(1, plane.room(BUDGET))
    column = ColumnSpec("x", Shape("jagged", "uint8", ()), np.array([10], np.int64))
    waiting = plane.plane.apply(PutSamples("waits", "p", ["w"], [column]), 0.0)
    assert not isinstance(waiting, (Reservation, PutResult))
    plane.session.release([1])
    assert plane.plane.holds_reservation(waiting.ticket)
    assert plane.plane.take_effects() == []  # they were carried out


def test_handles_released_early_are_remembered_up_to_a_bound(plane: Plane) -> None:
    plane.session.release(range(1_000_000))
    assert len(plane.session._released) == 4096
    assert refused(plane, 999_999, plane.room(10)) == "handle 999999 was released"


def test_sessions_have_names_that_nobody_guesses(plane: Plane) -> None:
    tokens = {LocalSession(plane.shell).token for _ in range(100)}
    assert {len(token) for token in tokens} == {16}
    assert len(tokens) == 100
