"""Events with named fields, one JSON line each, through the standard library's logger `dataplane_server`.

A program that embeds the server configures this logger with `logging`. The command writes events to stderr.
"""

from __future__ import annotations

import logging
import sys

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
