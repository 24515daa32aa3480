"""The session of a client: a stream of heartbeats, sent by a thread of its own.

Everything that the server grants to a client belongs to the client's session. The session stays open as long as its
heartbeats arrive. They have their own thread and channel, so they go on while the caller's event loop or its other
threads are busy. They end when the process ends, is stopped, or cannot reach the server. The session then expires, and
its rows go to other clients. A forked child shares nothing with its parent: it opens its own session.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import weakref
from concurrent.futures import Future

from dataplane_client._connect.deadline import Deadline
from dataplane_client._connect.locator import new_future
from dataplane_client._connect.options import ClientOptions
from dataplane_client._connect.session_thread import CLOSE_S, Close, SessionThread, Undo, Waiter, own_threads
from dataplane_client.errors import ClosedError, DataPlaneError

__all__ = ["CLOSE_S", "LivenessSession", "Undo", "live_sessions"]


class LivenessSession:
    """The session of one client, opened when it is first needed. Thread-safe."""

    def __init__(self, target: str, options: ClientOptions) -> None:
        self._target = target
        self._options = options
        self._threads: dict[int, SessionThread] = {}  # by process id

    @property
    def session_id(self) -> str:
        """The id of the session that is open as far as the client knows; empty if there is none."""
        thread = self._threads.get(os.getpid())
        return "" if thread is None else thread.session_id

    @property
    def failure(self) -> DataPlaneError | None:
        """Why the last attempt to open the session that callers wait for failed; None if there is no such attempt."""
        thread = self._threads.get(os.getpid())
        return None if thread is None else thread.failure

    def open_session(self, stale: str, deadline: Deadline) -> Future[str]:
        """The id of an open session, which is opened if there is none. stale: the id of an expired session, which
        is not returned.

        At the deadline the future gets an UnavailableError, if the server was found not to answer by then.
        """
        waiter = Waiter(stale, deadline, new_future())
        if not self._thread().post(waiter):
            waiter.session_id.set_exception(ClosedError(f"session at {self._target}: the client was closed"))
        return waiter.session_id

    def undo(self, undo: Undo) -> None:
        """Undo a grant now, or when the server can be reached again. It ends with the session at the latest. Does not
        block.
        """
        self._thread().post(undo)

    def undo_from_finalizer(self, undo: Undo) -> None:
        """As undo, but takes no lock and starts no thread: without a session there is nothing to undo."""
        thread = self._threads.get(os.getpid())
        if thread is not None:
            thread.mailbox.put(undo)

    def close(self) -> Future[None]:
        """End the session; the server releases at once what the session held. The future is done when the thread has
        ended, within about CLOSE_S seconds.
        """
        return self._thread().close()

    def _thread(self) -> SessionThread:
        pid = os.getpid()
        thread = self._threads.get(pid)
        if thread is None:
            thread = self._threads.setdefault(pid, SessionThread(self._target, self._options))
            weakref.finalize(self, thread.mailbox.put, Close()).atexit = False  # for clients that are never closed
        return thread


def live_sessions() -> int:
    """How many sessions of this process are open, as far as it knows."""
    return sum(bool(thread.session_id) for thread in own_threads())


@atexit.register
def _close_all() -> None:
    """Close the sessions of clients that were not closed, before the interpreter ends their threads."""
    closing = [thread.close() for thread in own_threads()]
    concurrent.futures.wait(closing, CLOSE_S)
