"""How a process tells what it does: a line before each call, a line after it, in a file of its own.

Each line is one write to a file opened for appending, so a process that is killed leaves whole lines, and at most one
half at the end.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.histories.history import PULSES_A_GRACE

from dataplane_client.errors import (
    ClaimFencedError,
    ClaimNotFoundError,
    ClaimTimeoutError,
    ClosedError,
    DataPlaneError,
    DeadlineError,
    GroupFencedError,
    OutOfSpaceError,
    SessionExpiredError,
    UnavailableError,
)

Facts = dict[str, Any]

_OUTCOMES: tuple[tuple[tuple[type[DataPlaneError], ...], str], ...] = (
    ((ClaimFencedError, GroupFencedError), "fenced"),
    ((ClaimNotFoundError,), "gone"),
    ((ClaimTimeoutError, OutOfSpaceError, SessionExpiredError), "refused"),
    ((DeadlineError, UnavailableError, ClosedError), "unknown"),
)


def outcome_of(error: DataPlaneError) -> str:
    """An Outcome, or "unexpected" for an error that no process should meet."""
    return next((outcome for kinds, outcome in _OUTCOMES if isinstance(error, kinds)), "unexpected")


class Recorder:
    """The history of one process. expected: errors that say that a call was refused, beside those that always do."""

    def __init__(self, folder: Path, process: str, expected: tuple[type[DataPlaneError], ...] = ()) -> None:
        self.process = process
        self._expected = expected
        self._file = os.open(folder / f"{process}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._calls = 0

    def note(self, what: str, **facts: object) -> None:
        """Write one line. From any thread."""
        line = json.dumps({"at": time.monotonic_ns(), "what": what, **facts})
        os.write(self._file, f"{line}\n".encode())

    def begin(self, what: str, **facts: object) -> int:
        """Note that a call is about to be made; its number."""
        self._calls += 1
        self.note(what, call=self._calls, **facts)
        return self._calls

    @contextmanager
    def call(self, what: str, **facts: object) -> Iterator[Facts]:
        """Note that a call is about to be made, and how it ended. What it answered goes into the yielded dict."""
        number = self.begin(what, **facts)
        answer: Facts = {}
        try:
            yield answer
        except DataPlaneError as error:
            text = f"{type(error).__name__}: {error}"
            outcome = outcome_of(error)
            if outcome == "unexpected" and isinstance(error, self._expected):
                outcome = "refused"
            self.note("end", call=number, outcome=outcome, error=text)
            raise
        self.note("end", call=number, outcome="done", **answer)


class Pulse:
    """A thread that notes that its process runs, PULSES_A_GRACE times in a grace, as long as the process does."""

    def __init__(self, record: Recorder, grace_s: float) -> None:
        self._record = record
        self._pause_s = grace_s / PULSES_A_GRACE
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def _beat(self) -> None:
        while True:
            self._record.note("pulse")
            time.sleep(self._pause_s)
