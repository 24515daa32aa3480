"""Events with named fields, one JSON line each, through the standard library's logger `dataplane_server`.

A program that embeds the server configures this logger with `logging`. The command writes events to stderr, and with
them what libraries log: a plain line for each on a terminal, otherwise JSON.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

_NAME = "dataplane_server"
_LIBRARY_MESSAGES = 60
_LIBRARY_EVERY_S = 60.0
_LIBRARY_CHARACTERS = 2000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class EventLog:
    """Writes events. exc_info: an exception, whose stack becomes the field `exception`."""

    def debug(self, event: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, *, exc_info: BaseException | None = None, **fields: object) -> None:
        if exc_info is not None:
            fields["exception"] = "".join(traceback.format_exception(exc_info)).rstrip()
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, object]) -> None:
        logger = logging.getLogger(_NAME)
        if logger.isEnabledFor(level):
            logger.log(level, event_line({**fields, "event": event}, logging.getLevelName(level), time.time()))


def get_log() -> EventLog:
    return EventLog()


def show_on_stderr(level: str) -> None:
    """Write events of this level (a name as in `logging`) and above to stderr, and warnings of libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines() if sys.stderr.isatty() else JsonLines())
    handler.addFilter(FewOfLibraries())
    logging.getLogger().addHandler(handler)
    logging.getLogger(_NAME).setLevel(level.upper())
    logging.captureWarnings(capture=True)


class FewOfLibraries(logging.Filter):
    """Lets 60 messages of libraries through in a minute: gRPC writes one for each odd header that a caller sends. The
    next that passes tells as `dropped` how many did not.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ends = 0.0
        self._passed = self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == _NAME:
            return True
        if not self._ends - _LIBRARY_EVERY_S <= record.created < self._ends:  # also if the clock was set back
            self._ends, self._passed = record.created + _LIBRARY_EVERY_S, 0
        if self._passed == _LIBRARY_MESSAGES:
            self._dropped += 1
            return False
        self._passed += 1
        record.dropped, self._dropped = self._dropped, 0
        return True


class JsonLines(logging.Formatter):
    """Each record as a line of JSON with `event`, `level` and `at`."""

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if record.name == _NAME else self._of_library(record)

    def _of_library(self, record: logging.LogRecord) -> str:
        message = record.getMessage()[:_LIBRARY_CHARACTERS]
        event: dict[str, Any] = {"event": "library_message", "library": record.name, "message": message}
        if dropped := getattr(record, "dropped", 0):
            event["dropped"] = dropped
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return event_line(event, record.levelname, record.created)


class PlainLines(JsonLines):
    """The same, for readers: time (UTC), level, event, other fields; then the stack of an exception. Control characters
    are escaped: callers choose some of the names.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = json.loads(super().format(record))
        stack = fields.pop("exception", None)
        words = [fields.pop("at")[11:19], f"{fields.pop('level'):7}", fields.pop("event")]
        words += [f"{name}={value}" for name, value in fields.items()]
        lines = ["  ".join(words), *([] if stack is None else stack.split("\n"))]
        return "\n".join(_CONTROL.sub(lambda found: repr(found[0])[1:-1], line) for line in lines)


def event_line(event: Mapping[str, object], level: str, at_s: float) -> str:
    """An event as a line of JSON, with its level and its time (at_s: since 1970)."""
    at = datetime.fromtimestamp(at_s, timezone.utc).isoformat().replace("+00:00", "Z")
    return json.dumps({**event, "level": level.lower(), "at": at}, default=repr)
