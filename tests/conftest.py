"""What holds at the end of every test: the laws of the core, conservation among them, in every server that runs then.

A server that a test stops is checked as it stops, by `ServerThread.stop`; cores without a server by `tests/core`, and
servers in processes of their own by the counters that they tell their clients (`tests/integration/command`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def laws_hold() -> Iterator[None]:
    """Check every server of this process when the test is over."""
    yield
    testing = sys.modules.get("dataplane_server.testing")  # not imported here: the core is tested without gRPC
    if testing is not None:
        testing.check_running_servers()
