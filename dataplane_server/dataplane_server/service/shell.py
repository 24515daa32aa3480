"""Applies calls to the core and wakes the callers that they concern.

Every part of the service applies its calls here, on one event loop, so each call is atomic.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from dataplane_server.core.calls.answers import (
    CommitResult,
    Drawn,
    Grant,
    PutResult,
    Reservation,
    Reserved,
    SessionExpired,
    Stored,
    Waiting,
)
from dataplane_server.core.calls.refusal import Refusal, draining, superseded
from dataplane_server.core.calls.requests import (
    AbandonClaim,
    AbortWrite,
    Advance,
    Call,
    Drain,
    EndRead,
    GiveUpClaim,
    GiveUpWrite,
    MergeFreeRanges,
    StoreValues,
)
from dataplane_server.core.calls.values import Run
from dataplane_server.core.plane import DataPlane
from dataplane_server.durability.group_commit import GroupCommit
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service.endless import EndlessCalls
from dataplane_server.service.session_streams import SessionStreams
from dataplane_server.service.ticker import Ticker
from dataplane_server.service.turns import Turns
from dataplane_server.service.waiters import Waiters

A = TypeVar("A")
T = TypeVar("T", Grant, Reserved, Drawn)

_MERGE_PAUSE_S = 0.0002


class Shell:
    """The core and the callers that wait for it."""

    def __init__(
        self,
        plane: DataPlane,
        metrics: Metrics,
        now: Callable[[], float] = time.monotonic,
        commits: GroupCommit | None = None,
    ) -> None:
        """now: the time of calls, in seconds; it never goes back, also not from one life of a server to the next.
        commits: where answers wait until their calls are on stable storage.
        """
        self.plane = plane
        self._commits = commits
        if commits is not None:
            commits.start(self.apply)
        self.now = now
        self._metrics = metrics
        self._waiters = Waiters()
        self.endless = EndlessCalls()
        self.turns = Turns()
        self.sessions = SessionStreams(self.endless)
        self._ticker = Ticker(plane, self._advance, now)
        self._merges = False

    def resume(self) -> None:
        """Start the clock: what a former life left becomes due even if nobody calls."""
        self._ticker.start_if_needed()

    def apply(self, call: Call[A]) -> A:
        """Apply a call and wake the callers that it concerns, even if it is refused: it may have superseded an earlier
        attempt.
        """
        try:
            return self._expected(self.plane.apply(call, self.now()))
        finally:
            self._carry_out_effects()

    def store(
        self, call: StoreValues, fill: Callable[[Sequence[Run]], None]
    ) -> Stored | Reservation | Waiting | PutResult | CommitResult:
        """As `apply`, of a write whose values are at hand; see `DataPlane.store`."""
        try:
            return self._expected(self.plane.store(call, self.now(), fill))
        finally:
            self._carry_out_effects()

    def _expected(self, answer: A) -> A:
        if isinstance(answer, Waiting):
            self._waiters.expect(answer.ticket)
        return answer

    def unstable(self) -> Awaitable[None] | None:
        """What every answer waits for before it leaves, so that it tells of nothing that a crash could undo. None if
        there is nothing to wait for.
        """
        pending = None if self._commits is None else self._commits.unstable()
        return None if pending is None else asyncio.shield(pending)

    async def stable(self) -> None:
        """Wait for that."""
        if (pending := self.unstable()) is not None:
            await pending

    def drain(self) -> None:
        """Shut down: end every call that waits, and every endless call."""
        self._ticker.stop()
        with _until_the_log_ends():
            self.apply(Drain())
        self.endless.end_all(draining())

    # -- calls that wait -----------------------------------------------------------------------------------------------

    async def reservation(self, begun: Reservation | Waiting, wait_s: float) -> Reservation:
        """The reservation of a write that has begun, at once or within wait_s. Aborts the write if this raises."""
        if isinstance(begun, Reservation):
            return begun
        began = time.monotonic()
        try:
            with self.aborted_on_error(begun.ticket):
                reservation: Reservation = await self._waiters.wait(begun.ticket, wait_s, self._give_up_write)
                if not self.plane.holds_reservation(begun.ticket):  # it has ended before its caller went on
                    raise superseded()
                return reservation
        finally:
            self._metrics.put_waited(time.monotonic() - began)

    @contextlib.contextmanager
    def aborted_on_error(self, ticket: int) -> Iterator[None]:
        """A block that carries out a write; the write is aborted if the block raises or is cancelled."""
        try:
            yield
        except BaseException:
            self._waiters.forget(ticket)
            self.give_back(AbortWrite(ticket))
            raise

    async def answer(self, begun: T | Waiting, wait_s: float) -> T:
        """The answer of a claim, a group or a draw, at once or within wait_s.

        A caller that disconnects while it waits may repeat the request (same request_id): it then waits again, or gets
        the rows granted meanwhile. Otherwise the rows return by ReleaseClaim, or when the caller's session expires.
        """
        if not isinstance(begun, Waiting):
            return begun
        try:
            answer: T = await self._waiters.wait(begun.ticket, wait_s, self._give_up_claim)
            return answer
        except asyncio.CancelledError:
            self.give_back(AbandonClaim(begun.ticket))
            raise

    def give_back(self, held: AbandonClaim | AbortWrite | EndRead) -> None:
        """End what a caller holds or waits for. Once the log has ended there is nothing left to end."""
        with _until_the_log_ends():
            self.apply(held)

    def _give_up_write(self, ticket: int) -> Exception:
        return self.apply(GiveUpWrite(ticket))

    def _give_up_claim(self, ticket: int) -> Exception:
        return self.apply(GiveUpClaim(ticket))

    # -- effects -------------------------------------------------------------------------------------------------------

    def _carry_out_effects(self) -> None:
        for effect in self.plane.take_effects():
            if isinstance(effect, SessionExpired):
                self.sessions.expired(effect)
            else:
                self._waiters.wake(effect)
        self._ticker.start_if_needed()
        if self._commits is not None:
            self._commits.write_if_due()
        if self.plane.has_deferred_frees and not self._merges:
            self._merges = True
            asyncio.get_running_loop().call_later(_MERGE_PAUSE_S, self._merge_free_ranges)

    def _advance(self, now: float, stalled_s: float) -> None:
        with _until_the_log_ends():
            self.plane.apply(Advance(stalled_s), now)
        self._carry_out_effects()

    def _merge_free_ranges(self) -> None:
        """Merge a few free ranges, and schedule the next ones; other calls run between."""
        self._merges = False
        with _until_the_log_ends():
            self.apply(MergeFreeRanges())


def _until_the_log_ends() -> contextlib.AbstractContextManager[None]:
    """A block that applies a call that nobody waits for. It is refused once the server goes on from a snapshot."""
    return contextlib.suppress(Refusal)
