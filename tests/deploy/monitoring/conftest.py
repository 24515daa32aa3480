"""Rules and dashboard as they are deployed, and Debian's promtool and prometheus where there are any."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.prometheus_server import find_command


@pytest.fixture(scope="session")
def promtool() -> Path:
    command = find_command("promtool")
    if command is None:
        pytest.skip("there is no promtool on PATH or in the environment, and `make test` could not fetch it")
    return command
