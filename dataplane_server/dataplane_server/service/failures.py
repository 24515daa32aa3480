"""How a failed call is counted, logged and told: the same for every transport."""

from __future__ import annotations

from google.rpc import status_pb2

from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.observe.log import get_log
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service.error_table import ERROR_TABLE, internal_error, status_of


class Failures:
    """Turns exceptions of calls into statuses."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._log = get_log()

    def status(self, verb: str, error: Exception) -> tuple[str, status_pb2.Status]:
        """The code's name and what to tell the caller. A defect is logged with its stack and told without it."""
        if isinstance(error, Refusal):
            self._metrics.refusal(verb, error.reason.name)
            return ERROR_TABLE[error.reason].name, status_of(error)
        self._log.error("call_failed", verb=verb, exc_info=error)
        return "INTERNAL", internal_error()
