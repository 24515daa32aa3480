"""Calls of this process's clients, and the observers that are notified of them.

The transport writes the results of a call into a Call object, which notifies the observers. Counters and spans are two
observers. When there is none, that costs about a microsecond a call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from dataplane_client._connect.log import log_event
from dataplane_client.observe import _messages

if TYPE_CHECKING:
    from dataplane_client.errors import DataPlaneError
from dataplane_client._connect.options import TransportName

T = TypeVar("T")


class Observer:
    """Notified of every call. Subclasses override the methods that they need.

    The thread that makes the call, or its event loop, runs these methods, so they must not block. An observer that
    raises is removed; the call goes on, and the event `observer_failed` is logged.
    """

    def began(self, call: Call) -> None:
        """A call begins; nothing has been sent."""

    def retried(self, call: Call, error: DataPlaneError) -> None:
        """An attempt has failed and will be repeated after a pause."""

    def ended(self, call: Call) -> None:
        """A call has ended, with or without an error. All attributes of the call are set."""


class Call:
    """A call as observers see it. Its results are complete when it has ended. As a context manager it notifies them.

    verb: as in the contract, such as PutSamples. target: the server's address. transport: that of the last attempt.
    sent_bytes, received_bytes: bytes of values. seconds: from the beginning to the end, including waits, pauses and all
    attempts. error: the exception that ended the call; None while it runs and after a success. kept: state of
    observers, each under itself as the key. traceparent: the W3C trace context that is sent with the call; "" for none.
    """

    def __init__(self, verb: str, target: str, request: object, observers: tuple[Observer, ...] | None = None) -> None:
        """observers: None for those of the process."""
        self.verb = verb
        self.target = target
        self.traceparent = ""
        self.transport: TransportName = "grpc"
        self.sent_bytes = 0
        self.received_bytes = 0
        self.seconds = 0.0
        self.error: BaseException | None = None
        self.kept: dict[Observer, Any] = {}
        self.response: object = None
        self._request = request
        self._observers = _active if observers is None else observers
        self._began = time.perf_counter() if self._observers else 0.0

    @property
    def is_observed(self) -> bool:
        return bool(self._observers)

    @property
    def code(self) -> str:
        """OK, or the name of the exception's class."""
        return "OK" if self.error is None else type(self.error).__name__

    @property
    def partition(self) -> str:
        """The partition that the call names; "" for none."""
        return str(getattr(self._request, "partition_id", ""))

    @property
    def task(self) -> str:
        """The task that the call names; "" for none."""
        return str(getattr(self._request, "task", ""))

    @property
    def rows(self) -> int | None:
        """Rows in the response, else rows that the request names; None if neither has rows."""
        return _messages.rows_of(self._request, self.response)

    @property
    def producers(self) -> dict[str, int]:
        """For the response of a claim: the trace contexts of the puts of its rows, and the number of rows of each."""
        return _messages.producers_in(self.response)

    def mark_rows(self, traceparent: str) -> None:
        """Write a trace context into the tags of the rows that this call puts for the first time."""
        _messages.mark_rows(self._request, traceparent)

    # -- called by the transport ---------------------------------------------------------------------------------------

    def __enter__(self) -> Call:
        if self._observers:
            self._notify(lambda observer: observer.began(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._observers:
            self.seconds = time.perf_counter() - self._began
            self.error = error
            self._notify(lambda observer: observer.ended(self))

    def retried(self, error: DataPlaneError) -> None:
        self._notify(lambda observer: observer.retried(self, error))

    def _notify(self, notify: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                notify(observer)
            except Exception as error:  # noqa: BLE001, PERF203  # an observer's error must not end the call
                _drop(observer, error)


_active: tuple[Observer, ...] = ()
_made: dict[tuple[object, object], Observer] = {}
_changing = threading.Lock()


def add(observer: Observer) -> None:
    """Notify an observer of every call of every client of this process that begins from now on.

    Adding it twice has no effect.
    """
    global _active
    with _changing:
        if observer not in _active:
            _active = (*_active, observer)


def add_one(kind: Callable[[T], Observer], sink: T) -> Observer:
    """Add the observer of this kind for a registry or provider. A process makes one for each."""
    with _changing:
        observer = _made.get((kind, sink))
        if observer is None:
            observer = _made[kind, sink] = kind(sink)
    add(observer)
    return observer


def remove(observer: Observer) -> None:
    """Stop notifying an observer of new calls. It is still notified of calls that have begun.

    Removing an observer that was not added has no effect.
    """
    global _active
    with _changing:
        _active = tuple(other for other in _active if other is not observer)


def _drop(observer: Observer, error: Exception) -> None:
    """Remove an observer that has raised, and log it once."""
    if observer in _active:
        log_event(logging.ERROR, "observer_failed", observer=type(observer).__name__, error=repr(error))
    remove(observer)
