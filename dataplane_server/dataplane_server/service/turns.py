"""The turns of calls that arrive in frames, at all endpoints of local.proto together.

The event loop reads all sockets that are ready before it looks at anything else. So if each request were served as it
is read, a thousand requests would keep everything else waiting: health, gRPC, heartbeats. Here a few are served in each
pass of the loop, and the others wait, first come, first served. A call that would wait for too long is refused, so that
its caller learns at once that it should try again later. If calls take longer than it seemed when they came, the last
ones that wait are refused then. Calls that end what others wait for are never refused.

Callers may well come all at once, as ranks do that begin a step. So the calls that arrive first may wait for longer
than those that arrive when calls have been waiting for a while without a break.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

A_PASS = 2
"""Calls that are served in one pass of the event loop."""
SHORT_A_PASS = 8
"""Calls that are refused in one pass, and connections that are greeted. Others wait for that, too, or it would leave no
time for anything else.
"""
TARGET_S, BURST_S = 0.05, 0.25
"""How long a call may wait, by how long those before it take; and how long while calls come all at once."""
PATIENCE_S = 0.1
"""Once calls have been waiting for so long without a break, they do not come all at once, but are too many."""
LEAST_WAITING = 16
"""This many may wait however long they take: so one slow call is no reason to refuse others."""
_FIRST_GUESS_S = 0.0005
_REMEMBERED = 16
"""Passes over which the time of a call is averaged."""


class Turn(Enum):
    """When a call is served."""

    NOW = auto()
    LATER = auto()
    NEVER = auto()


Serve = Callable[[Turn], None]


class _Waiting(NamedTuple):
    serve: Serve
    urgent: bool


class _Short(NamedTuple):
    """What takes little time."""

    serve: Serve
    excess: bool
    """A call to be refused, unless fewer wait by then; otherwise a greeting."""


class Pace:
    """How long calls take of late, and so whether one more may wait. Reads no clock."""

    def __init__(self) -> None:
        self._seconds = _FIRST_GUESS_S
        self._behind_s = 0.0

    def served(self, n_calls: int, seconds: float) -> None:
        """Calls that waited were served in this time, with all else that the event loop did meanwhile."""
        self._seconds += (seconds / n_calls - self._seconds) / _REMEMBERED
        self._behind_s += seconds

    def caught_up(self) -> None:
        """No call waits."""
        self._behind_s = 0.0

    def admits(self, n_waiting: int) -> bool:
        """Whether a call may wait behind so many others."""
        longest_s = BURST_S if self._behind_s < PATIENCE_S else TARGET_S
        return n_waiting < LEAST_WAITING or n_waiting * self._seconds < longest_s


class Turns:
    """Calls that have arrived. Used on one event loop."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._waiting: deque[_Waiting] = deque()
        self._short: deque[_Short] = deque()
        self._going = False  # another pass has been scheduled
        self._n_served = self._n_short = 0  # in this pass
        self._began: float | None = None  # when this pass did, if calls waited

    @property
    def n_waiting(self) -> int:
        """Calls and greetings that wait."""
        return len(self._waiting) + len(self._short)

    def enter(self, serve: Serve, *, urgent: bool) -> Turn:
        """When to serve a call. If it is LATER, `serve` is called with what it is then; otherwise the caller serves or
        refuses it. An urgent call is never refused.
        """
        if not self._waiting and self._n_served < A_PASS:
            self._go_on()
            self._n_served += 1
            return Turn.NOW
        if urgent or self._pace.admits(len(self._waiting)):
            self._waiting.append(_Waiting(serve, urgent))
            return Turn.LATER
        return self._enter_short(_Short(serve, excess=True))

    def greet(self, serve: Serve) -> Turn:
        """When to serve the first request of a connection, which may bring an urgent call: NOW or LATER."""
        return self._enter_short(_Short(serve, excess=False))

    def _enter_short(self, short: _Short) -> Turn:
        if self._short or self._n_short >= SHORT_A_PASS:
            self._short.append(short)
            return Turn.LATER
        self._go_on()
        self._n_short += 1
        return Turn.NEVER if short.excess else Turn.NOW

    def _go_on(self) -> None:
        if not self._going:
            self._going = True
            asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        self._going = False
        if self._waiting or self._began is not None:
            self._note_pace(asyncio.get_running_loop().time())
            self._find_excess()
        self._n_served, self._n_short = min(A_PASS, len(self._waiting)), min(SHORT_A_PASS, len(self._short))
        if self._n_served or self._n_short:
            self._go_on()
        for _ in range(self._n_served):
            self._waiting.popleft().serve(Turn.NOW)
        for _ in range(self._n_short):
            self._serve_short(self._short.popleft())

    def _serve_short(self, short: _Short) -> None:
        if not short.excess:
            short.serve(Turn.NOW)
        elif self._pace.admits(len(self._waiting)):
            self._waiting.append(_Waiting(short.serve, urgent=False))
        else:
            short.serve(Turn.NEVER)

    def _find_excess(self) -> None:
        """The last calls that wait would wait for too long after all."""
        while self._waiting and not self._waiting[-1].urgent and not self._pace.admits(len(self._waiting) - 1):
            self._short.append(_Short(self._waiting.pop().serve, excess=True))

    def _note_pace(self, now: float) -> None:
        if self._began is not None:
            self._pace.served(self._n_served, now - self._began)
        if self._waiting:
            self._began = now
        elif self._began is not None:
            self._began = None
            self._pace.caught_up()
