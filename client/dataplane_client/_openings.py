"""How many connections of one client are being opened.

A connection carries one call at a time, and opening one costs the server more than a short call. So few are opened at a
time. A call that finds no idle connection waits until it may open one, or takes one that another call gives back. A
server that has more calls than it can take is so not asked for a connection for each of them, too.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import Generic, TypeVar

AT_ONCE = 4
Connection = TypeVar("Connection")


class Openings(Generic[Connection]):
    """Who may open a connection. Thread-safe; never blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._waiting: deque[Future[Connection | None]] = deque()

    def enter(self) -> Future[Connection | None] | None:
        """Begin to open a connection, which ends with `leave`; or get the wait for one: it ends with a connection that
        was given back, or with None, when this call may begin to open one.
        """
        with self._lock:
            if self._under_way < AT_ONCE:
                self._under_way += 1
                return None
            turn: Future[Connection | None] = Future()
            turn.set_running_or_notify_cancel()  # from now on, only this object ends it
            self._waiting.append(turn)
            return turn

    def leave(self) -> None:
        """A connection has been opened, or could not be."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set_result(None)
            else:
                self._under_way -= 1

    def give(self, connection: Connection) -> bool:
        """Give a connection to the call that has been waiting for longest. False if none waits."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set_result(connection)
                return True
        return False

    def give_up(self, turn: Future[Connection | None]) -> Connection | None:
        """End a wait. Returns the connection that the call was given meanwhile."""
        with self._lock:
            if not turn.done():
                self._waiting.remove(turn)
                return None
        given = turn.result()
        if given is None:
            self.leave()
        return given
