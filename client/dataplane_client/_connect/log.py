"""Log events of the client: one line each, `event name=value ...`, through the standard library's logger
`dataplane_client`.

The same fields are attributes of the record, for handlers that write JSON: `event` and each field by its name. Nothing
is logged for each row, and nothing for each call above DEBUG. docs/observability.md lists all events.
"""

from __future__ import annotations

import json
import logging

_logger = logging.getLogger("dataplane_client")


def log_event(level: int, event: str, **fields: object) -> None:
    """Log an event. A field must not have the name of an attribute of LogRecord, such as `name` or `process`."""
    if _logger.isEnabledFor(level):
        message = " ".join([event, *(f"{name}={_shown(str(value))}" for name, value in fields.items())])
        _logger.log(level, "%s", message, extra={"event": event, **fields}, stacklevel=2)


def _shown(value: str) -> str:
    """A value as one word: quoted if it is empty, or has characters that a parser would misread."""
    plain = value.isprintable() and value and not any(mark in value for mark in ' "=')
    return value if plain else json.dumps(value, ensure_ascii=False)
