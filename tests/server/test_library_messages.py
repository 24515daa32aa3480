"""What libraries log: callers can make gRPC log a line for each of their calls, and that must not fill a disk."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest

from dataplane_server.log import FewOfLibraries, JsonLines, PlainLines, event_line

Log = Callable[[str, float], None]


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(stream: io.StringIO) -> Iterator[Log]:
    """Log a message of 100,000 characters by a logger, at a time in seconds."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    handler.addFilter(FewOfLibraries())

    def write(name: str, at_s: float) -> None:
        message = json.dumps({"event": "x" * 100_000})
        record = logging.LogRecord(name, logging.ERROR, "", 0, message, None, None)
        record.created = at_s
        handler.handle(record)

    yield write
    handler.close()


def test_a_minute_has_60_short_messages_of_libraries_and_the_next_tells_how_many_were_dropped(
    log: Log, stream: io.StringIO
) -> None:
    for number in range(100):
        log("grpc", 1000.0 + number / 10)
    log("grpc", 1060.0)
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event.get("dropped") for event in events] == [None] * 60 + [40]
    assert len(stream.getvalue()) < 61 * 2200


def test_a_clock_that_is_set_back_silences_no_library(log: Log, stream: io.StringIO) -> None:
    for _ in range(61):
        log("grpc", 100_000.0)
    log("grpc", 1000.0)
    assert len(stream.getvalue().splitlines()) == 61


def test_events_of_the_server_are_all_written_whole(log: Log, stream: io.StringIO) -> None:
    for number in range(100):
        log("dataplane_server", 1000.0 + number / 10)
    assert [len(json.loads(line)["event"]) for line in stream.getvalue().splitlines()] == [100_000] * 100


def test_a_plain_line_of_a_terminal_is_one_line_without_control_characters() -> None:
    event = {"event": "session_expired", "client": "ä\n12:00:00  info\x1b[2J\x9b", "exception": "Traceback:\n  in f"}
    record = logging.LogRecord("dataplane_server", logging.INFO, "", 0, event_line(event, "info", 0.0), None, None)
    line = r"00:00:00  info     session_expired  client=ä\n12:00:00  info\x1b[2J\x9b"
    assert PlainLines().format(record) == f"{line}\nTraceback:\n  in f"
