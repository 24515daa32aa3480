"""What holds at the end of every test: the laws of the core, conservation among them, in every server that runs then.

A server that a test stops is checked as it stops, by `ServerThread.stop`; cores without a server by `tests/core`, and
servers in processes of their own by the counters that they tell their clients (`tests/integration/command`).

Tests that start ranks are one group, `xdist_group("ranks")`: their processes keep all cores busy, so one worker runs
them one after the other, from the beginning, beside another whose tests wait for graces and deadlines half of the time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first."""
    items.sort(key=lambda item: not any("ranks" in mark.args for mark in item.iter_markers("xdist_group")))


@pytest.fixture(autouse=True)
def laws_hold() -> Iterator[None]:
    """Check every server of this process when the test is over."""
    yield
    testing = sys.modules.get("dataplane_server.testing")  # not imported here: the core is tested without gRPC
    if testing is not None:
        testing.check_running_servers()
