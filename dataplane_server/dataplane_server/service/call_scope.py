"""What happens around every call, on any transport: it is timed, counted and traced, and a failure becomes a status."""

from __future__ import annotations

import time

from google.rpc import status_pb2

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.log import get_log
from dataplane_server.observe.metrics import Metrics, Transport
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.error_table import ERROR_TABLE, internal_error, status_of


class CallScope:
    """A `with` block around one call, which begins when this is made. The block calls `end` when the call succeeds.

    The block swallows an Exception: `status` is then what to send to the caller. A defect is logged with its stack,
    which the caller does not see. metrics: None where nothing counts calls. traceparent: the client's trace context;
    empty for none.
    """

    status: status_pb2.Status

    def __init__(
        self, metrics: Metrics | None, tracing: Tracing | None, transport: Transport, verb: str, traceparent: str
    ) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._transport = transport
        self._verb = verb
        self._traceparent = traceparent
        self._ended = False
        self._began = time.monotonic()

    def end(self, code: str = "OK") -> None:
        """Count, time and trace the call. Only the first end of a call counts."""
        if self._ended:
            return
        self._ended = True
        seconds = time.monotonic() - self._began
        if self._metrics is not None:
            self._metrics.call(self._verb, self._transport, code, seconds)
        if self._tracing is not None:
            self._tracing.call(self._verb, self._transport, code, seconds, self._traceparent)

    def refused(self, reason: Reason, status: status_pb2.Status) -> None:
        """End a call that is refused. A stream that was counted when it was open is none."""
        if self._metrics is not None and not self._ended:
            self._metrics.refusal(self._verb, reason.name)
        self.status = status
        self.end(ERROR_TABLE[reason].name)

    def __enter__(self) -> CallScope:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, Refusal):
            self.refused(error.reason, status_of(error))
        elif isinstance(error, Exception):
            get_log().error("call_failed", verb=self._verb, exc_info=error)
            self.status = internal_error()
            self.end("INTERNAL")
        elif error is not None:  # the task was cancelled, or the stream closed
            self.end("CANCELLED")
        return isinstance(error, Exception)
