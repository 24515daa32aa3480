"""Tells how many steps the claim machine has taken: a figure to be shown."""

from __future__ import annotations

import pytest
from tests.core.claim_machine.checked_plane import CheckedPlane


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if CheckedPlane.steps:
        terminalreporter.write_line(f"claim machine: {CheckedPlane.steps} steps, each compared with the model")
