"""What a client of this host holds, over a real core, where calls overtake each other.

Handles that clients see are shown by `tests/integration/wire/test_local_handles.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import cast

import numpy as np
import pytest

from dataplane_server.arena_streams import to_its_end
from dataplane_server.core.calls.answers import CommitResult, PutResult, Reservation
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import BeginRead, ClearSamples, FinishWrite, PutSamples, RegisterPartition
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.plane import DataPlane
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service.local.local_calls import LocalCalls
from dataplane_server.service.local.local_session import Lease, LocalSession, SharedReservation
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import ArenaValues
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import local_pb2 as pb


class Plane:
    """A data plane with partition p, on which a session holds things."""

    def __init__(self) -> None:
        self.plane = DataPlane(Limits(memory_bytes=100))
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


def check_released(plane: Plane, handle: int) -> None:
    """Nothing is held by this handle, which was released before."""
    with pytest.raises(Refusal, match=f"handle {handle} was released") as caught:
        plane.session.hold(handle, plane.room(30))
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert plane.used == 0


def test_a_handle_that_was_held_and_released_may_be_used_again(plane: Plane) -> None:
    for _ in range(2):
        plane.session.hold(1, plane.lease(10))
        plane.session.release([1])
    assert plane.used == 0


def test_the_end_gives_everything_back_and_nothing_is_held_afterwards(plane: Plane) -> None:
    plane.session.hold(1, plane.lease(10))
    plane.session.hold(2, plane.room(20))
    assert (plane.used, plane.session.writes) == (30, 1)
    plane.session.end()
    assert (plane.used, plane.session.writes) == (0, 0)
    check_released(plane, 3)


def test_handles_released_early_are_remembered_up_to_a_bound(plane: Plane) -> None:
    plane.session.release(range(1_000_000))
    assert len(plane.session._released) == 4096
    check_released(plane, 999_999)


def test_sessions_have_names_that_nobody_guesses(plane: Plane) -> None:
    tokens = {LocalSession(plane.shell).token for _ in range(100)}
    assert {len(token) for token in tokens} == {16}
    assert len(tokens) == 100


class SlowValues(ArenaValues):
    """Whose digests take until `done`."""

    def __init__(self, plane: DataPlane) -> None:
        super().__init__(plane, Arena(100))
        self.done = asyncio.Event()

    def digests(self, reservation: Reservation) -> Awaitable[bytes]:  # type: ignore[override]  # as of a cluster
        return self._digests()

    async def _digests(self) -> bytes:
        await to_its_end(self.done.wait())
        return b""


async def test_a_write_that_is_being_finished_outlives_its_session() -> None:
    """Its bytes may be read and copied meanwhile, so their places must not be given to another row."""
    held = Plane()
    values = SlowValues(held.plane)
    calls = LocalCalls(held.shell, values, Metrics(held.plane, lambda: True))
    held.session.hold(1, held.room(40))
    answer = calls.finish_write(pb.FinishWriteRequest(handle=1), held.session)
    finishing = asyncio.ensure_future(cast("Awaitable[object]", answer))
    await asyncio.sleep(0)
    held.session.end()
    finishing.cancel()
    await asyncio.sleep(0.01)
    assert held.used == 40
    values.done.set()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    assert held.used == 0
