"""Tells how many steps the core machine has taken: a figure to be shown."""

from __future__ import annotations

import pytest
from tests.core.machine.checked_plane import CheckedPlane


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if CheckedPlane.steps:
        terminalreporter.write_line(f"core machine: {CheckedPlane.steps} steps, each compared with the model")
