"""The stall lab in a browser: the page names the cause of each wait, with its evidence and the next step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.integration.test_stall_lab import KIB, STALLS, Lab, open_lab

from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def lab(browser: object) -> Iterator[Lab]:
    config = ServerConfig(listen=("127.0.0.1:0",), http="127.0.0.1:0", limits=Limits(memory_bytes=64 * KIB))
    with ThreadPoolExecutor() as threads, contextlib.ExitStack() as running:
        server = ServerThread(config)
        running.callback(server.stop)
        yield open_lab(server, threads, running)


@pytest.mark.parametrize(("stall", "cause", "words"), STALLS, ids=[row[0].__name__ for row in STALLS])
def test_the_page_names_the_cause_of_a_stall(
    browser: Any, lab: Lab, stall: Callable[[Lab], None], cause: str, words: str
) -> None:
    stall(lab)
    with contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(f"http://{lab.server.http_address}")
        page.wait_for_selector("#waits li", timeout=20_000)
        told = page.inner_text("#waits")
    assert cause.replace("_", " ") in told
    assert words.removesuffix(" 0.") in told  # ages have grown meanwhile
    assert "Next:" in told
