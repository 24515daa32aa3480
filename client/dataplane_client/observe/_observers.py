"""Who is told of the calls of this process's clients."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dataplane_client._log import log_event

if TYPE_CHECKING:
    from dataplane_client.errors import DataPlaneError
    from dataplane_client.observe._call import Call

T = TypeVar("T")


class Observer:
    """Told of every call; a subclass says what it wants to hear of.

    Its methods are called by the thread that makes the call, or on its event loop: they must not block. One that raises
    is told nothing more; the call goes on, and the log has the event `observer_failed`.
    """

    def began(self, call: Call) -> None:
        """A call begins; nothing has been sent."""

    def retried(self, call: Call, error: DataPlaneError) -> None:
        """An attempt has failed, and after a pause there will be another one."""

    def ended(self, call: Call) -> None:
        """A call has ended, well or not: the call has all that there is to know."""


_active: tuple[Observer, ...] = ()
_made: dict[tuple[object, object], Observer] = {}
_changing = threading.Lock()


def active() -> tuple[Observer, ...]:
    """The observers of calls that begin now."""
    return _active


def add(observer: Observer) -> None:
    """Tell an observer of every call that begins from now on, of every client of this process. Twice is fine."""
    global _active
    with _changing:
        if observer not in _active:
            _active = (*_active, observer)


def add_one(kind: Callable[[T], Observer], feeds: T) -> Observer:
    """Add the observer of a kind that feeds a registry or provider, of which a process has one."""
    with _changing:
        observer = _made.get((kind, feeds))
        if observer is None:
            observer = _made[kind, feeds] = kind(feeds)
    add(observer)
    return observer


def remove(observer: Observer) -> None:
    """Tell an observer of no more calls; of those under way it still hears. One that is not there is fine."""
    global _active
    with _changing:
        _active = tuple(other for other in _active if other is not observer)


def drop(observer: Observer, error: Exception) -> None:
    """Remove one that has failed."""
    if observer in _active:
        log_event(logging.ERROR, "observer_failed", observer=type(observer).__name__, error=repr(error))
    remove(observer)
