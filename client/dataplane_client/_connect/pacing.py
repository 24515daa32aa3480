"""How many calls of a client may be under way at a server that refuses calls because it has too many.

A refusal costs the server a tenth of a call, so ten callers that only repeat refused calls leave it no time for others.
Callers have to slow down together:

- At first four calls of a verb may be under way; the others wait here, first come, first served. Each call that
  succeeds makes room for one more besides its own, while others wait: so the bound doubles in each round, until a
  refusal (TCP's slow start). Many clients may begin at once, each call with a connection of its own if it goes in
  frames, and a server that could only refuse most of them would be busy with that.
- When the server refuses a call, half as many may be under way as were. A refused call keeps its place while it pauses.
- From then on, while calls wait, the bound grows by one for each round of calls that succeed (as TCP's window does). It
  grows twofold for each second without a refusal, so that calls that wait at the server for long, as puts do for space,
  do not keep others out. It returns to four whether or not calls wait.

A call that would not end before its deadline, by the time that others took of late, does not begin: it would take the
place of one that can still succeed.

Verbs are bounded one by one: a read must not wait for puts that wait for the read's rows to be cleared. Never held here
are calls that end what others wait for, and calls that wait at the server for rows: those are few for each caller, and
how long they take says nothing about the server.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future

from dataplane_client._connect.deadline import URGENT_VERBS, WAITING_VERBS, Deadline

_LOOK_AGAIN_S = 1.0
"""How often calls that wait look whether a second without a refusal has passed."""
_ROUND_S = 0.05
"""Refusals so close to each other are answers to the same calls, and halve the bound once."""
_FREE = URGENT_VERBS | WAITING_VERBS
_FIRST_BOUND = 4.0
_REMEMBERED = 8
"""Calls over which the time of a call is averaged."""
_LONGEST_S = 1.0
"""A put that took longer waited for space."""


class Turn(Future[bool]):
    """True once a call may begin; False once it is too late to begin."""

    def __init__(self, deadline: Deadline, n_before: int) -> None:
        """n_before: calls whose turn comes before. All that wait look again a hundred times a second at most."""
        super().__init__()
        self.deadline = deadline
        self.look_again_s = _LOOK_AGAIN_S + n_before / 100
        self.set_running_or_notify_cancel()  # from now on, only `Pacing` ends it


class Pacing:
    """Who may call now. Thread-safe; never blocks for longer than a few additions."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """now: a clock, in seconds."""
        self._lock = threading.Lock()
        self._verbs: defaultdict[str, _Verb] = defaultdict(lambda: _Verb(now))

    def enter(self, verb: str, deadline: Deadline) -> Turn | None:
        """Begin a call, or get its turn. Each call that begins calls `leave` at its end."""
        if verb in _FREE:
            return None
        with self._lock:
            return self._verbs[verb].enter(deadline)

    def look_again(self, verb: str) -> None:
        """Begin calls that may begin because time has passed."""
        with self._lock:
            self._verbs[verb].admit()

    def give_up(self, verb: str, turn: Turn) -> None:
        """End the wait of a call that `enter` made wait, whether or not its turn has come by now."""
        with self._lock:
            self._verbs[verb].give_up(turn)

    def refused(self, verb: str) -> None:
        """The server has refused a call because it has too many."""
        if verb not in _FREE:
            with self._lock:
                self._verbs[verb].refused()

    def leave(self, verb: str, seconds: float | None) -> None:
        """End a call that has begun. seconds: how long it took, if it succeeded."""
        if verb not in _FREE:
            with self._lock:
                self._verbs[verb].leave(seconds)


class _Verb:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._bound = _FIRST_BOUND
        self._was_refused = False
        self._under_way = 0
        self._seconds = 0.0  # that a call takes of late
        self._waiting: deque[Turn] = deque()
        self._refused_at = -math.inf  # when that last halved the bound
        self._changed_at = -math.inf  # when the bound was halved or doubled, or calls began to wait

    def enter(self, deadline: Deadline) -> Turn | None:
        if self._waiting or self._bound < _FIRST_BOUND:
            self._grow_with_time()
        if self._under_way + 1 <= self._bound and not self._waiting:
            self._under_way += 1
            return None
        if not self._waiting:
            self._changed_at = self._now()
        turn = Turn(deadline, len(self._waiting))
        self._waiting.append(turn)
        return turn

    def admit(self) -> None:
        """Begin the calls that wait and may."""
        if self._waiting:
            self._grow_with_time()
        while self._waiting and self._under_way + 1 <= self._bound:
            turn = self._waiting.popleft()
            begins = turn.deadline.left_s > self._seconds
            self._under_way += begins
            turn.set_result(begins)

    def give_up(self, turn: Turn) -> None:
        if not turn.done():
            self._waiting.remove(turn)
        elif turn.result():
            self.leave(None)

    def refused(self) -> None:
        self._was_refused = True
        now = self._now()
        if now - self._refused_at >= _ROUND_S:
            self._bound = max(1.0, min(self._bound, self._under_way) / 2)
            self._refused_at = self._changed_at = now

    def leave(self, seconds: float | None) -> None:
        self._under_way -= 1
        if seconds is not None:
            if self._waiting or self._bound < _FIRST_BOUND:
                self._bound += 1 / self._bound if self._was_refused else 1
            self._seconds += (min(seconds, _LONGEST_S) - self._seconds) / _REMEMBERED
        if self._waiting:
            self.admit()

    def _grow_with_time(self) -> None:
        if (now := self._now()) - self._changed_at >= _LOOK_AGAIN_S:
            self._bound, self._changed_at = 2 * self._bound, now
