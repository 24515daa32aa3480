"""Events with named fields, one JSON line each, through the standard library's logger `dataplane_server`.

A program that embeds the server configures this logger with `logging`. The command writes events to stderr, and in the
same form what libraries log.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

import structlog

_NAME = "dataplane_server"


def get_log() -> structlog.stdlib.BoundLogger:
    log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(_NAME),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
    return log


def show_on_stderr(level: str) -> None:
    """Write events of this level (a name as in `logging`) and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger(_NAME)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    others = logging.StreamHandler(sys.stderr)
    others.setFormatter(_LineFormatter())
    others.setLevel(logging.WARNING)
    logging.getLogger().addHandler(others)


class _LineFormatter(logging.Formatter):
    """Entries of libraries, as JSON in one line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, timezone.utc).isoformat().replace("+00:00", "Z")
        entry = {"event": record.getMessage(), "logger": record.name, "level": record.levelname.lower(), "at": at}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)
