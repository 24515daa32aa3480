"""One call on its way: the transport tells it what happens, and it tells the observers.

The one hook for counters, spans and whatever else. Where nobody observes, the transport tells it to an object that does
nothing, which costs less than a microsecond a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dataplane_client.observe import _messages
from dataplane_client.observe._observers import Observer, active, drop

if TYPE_CHECKING:
    from dataplane_client._placement import PlacedColumn
    from dataplane_client.columns_layout import WireColumn
    from dataplane_client.errors import DataPlaneError

T = TypeVar("T")


class UnobservedCall:
    """A call as the transport tells of it, here to nobody."""

    traceparent = ""
    """The W3C trace context that travels with the call; "" for none."""

    def __enter__(self) -> UnobservedCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def attempted(self, transport: Literal["shm", "grpc"]) -> None:
        """An attempt is made on this way."""

    def writes(self, columns: Sequence[WireColumn]) -> None:
        """The call carries these columns."""

    def reads(self, columns: Sequence[PlacedColumn], n_rows: int) -> None:
        """The call has brought these columns."""

    def retried(self, error: DataPlaneError) -> None:
        """The attempt has failed and will be repeated."""

    def answered(self, response: T) -> T:
        """The call has an answer, which is returned."""
        return response


class Call(UnobservedCall):
    """A call, as observers see it. What it holds beyond its beginning is complete when it has ended.

    verb: as in the contract, such as PutSamples. target: the server's address. transport: how the last attempt
    travelled. sent_bytes, received_bytes: bytes of values. seconds: from the beginning to the end, waits, pauses and
    all attempts included. error: with what it ended, None while it is under way and when it went well. kept: what
    observers keep with the call, each under itself.
    """

    def __init__(self, verb: str, target: str, request: object, observers: tuple[Observer, ...]) -> None:
        self.verb = verb
        self.target = target
        self.transport: Literal["shm", "grpc"] = "grpc"
        self.sent_bytes = 0
        self.received_bytes = 0
        self.seconds = 0.0
        self.error: BaseException | None = None
        self.kept: dict[Observer, Any] = {}
        self._request = request
        self._response: object = None
        self._observers = observers
        self._began = time.perf_counter()

    @property
    def code(self) -> str:
        """OK, or the name of the exception's class."""
        return "OK" if self.error is None else type(self.error).__name__

    @property
    def partition(self) -> str:
        """The partition that the call names; "" where it names none."""
        return _messages.partition_of(self._request)

    @property
    def task(self) -> str:
        """The task that the call names; "" where it names none."""
        return _messages.task_of(self._request)

    @property
    def rows(self) -> int | None:
        """Rows that the call names, or was answered with; None where it is not about rows."""
        return _messages.rows_of(self._request, self._response)

    @property
    def producers(self) -> dict[str, int]:
        """Trace contexts of those who put the rows that a claim was answered with, and how many rows each."""
        return _messages.producers_in(self._response)

    def mark_rows(self, traceparent: str) -> None:
        """Write a trace context into the tags of the rows that are first put here."""
        _messages.mark_rows(self._request, traceparent)

    # -- told by the transport -----------------------------------------------------------------------------------------

    def __enter__(self) -> Call:
        self._tell(lambda observer: observer.began(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        self.error = error
        self._tell(lambda observer: observer.ended(self))

    def attempted(self, transport: Literal["shm", "grpc"]) -> None:
        self.transport = transport

    def writes(self, columns: Sequence[WireColumn]) -> None:
        self.sent_bytes = sum(column.size_bytes for column in columns)

    def reads(self, columns: Sequence[PlacedColumn], n_rows: int) -> None:
        self.received_bytes = sum(column.layout.size_of(n_rows) for column in columns)

    def retried(self, error: DataPlaneError) -> None:
        self._tell(lambda observer: observer.retried(self, error))

    def answered(self, response: T) -> T:
        self._response = response
        return response

    def _tell(self, tell: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                tell(observer)
            except Exception as error:  # noqa: BLE001, PERF203  # whatever an observer does, the call goes on
                drop(observer, error)


_UNOBSERVED = UnobservedCall()


def begun(verb: str, target: str, request: object) -> UnobservedCall:
    """A call that is about to be made; to be entered as a context manager."""
    observers = active()
    return Call(verb, target, request, observers) if observers else _UNOBSERVED
