"""What another user of this host, who does not call honestly, gets from a server on loopback: nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.forked import FORKS
from tests.hostile.attacks.loopback import WAYS, server_on_loopback, went_through

from dataplane_server.testing import ServerThread

ATTEMPTS = 4
"""Of each way; `python -m tests.hostile.attacks.loopback` tries a thousand."""

pytestmark = [FORKS, pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with server_on_loopback() as server:
        yield server


_LATE = {"sample behind a closed call", "sample from the owners port", "put behind a closed call", "half closed put"}
_UNHEARD = {way for way in WAYS if way.split()[0] in ("closed", "half") or way.endswith("reset")}
"""They wait for no answer. When the server asks whose they are, the kernel may have forgotten, even if its own."""


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.long if way in _LATE else ()) for way in WAYS])
def test_no_attempt_of_another_user_goes_through(server: ServerThread, way: str) -> None:
    assert went_through(server, way, ATTEMPTS) == 0


@pytest.mark.parametrize("way", [way for way in WAYS if way not in _UNHEARD])
def test_attempts_of_the_servers_own_user_go_through(server: ServerThread, way: str) -> None:
    assert went_through(server, way, ATTEMPTS, os.getuid()) > 0
