"""Which processes of this host reach the memory: by user and group, as the kernel tells them."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.as_user import User, user
from tests.forked import FORKS

from dataplane_client._memory.shared_arena import SharedArena
from dataplane_server.access.peers import AllowedPeers
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.plane import DataPlane
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service.local.local_endpoint import LocalEndpoint
from dataplane_server.service.shell import Shell
from dataplane_server.storage.arena import Arena

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users"),
    FORKS,
]

REFUSED = "ConnectionError: this socket serves only certain users and groups, not user {}"


@asynccontextmanager
async def serving(peers: AllowedPeers | None) -> AsyncIterator[tuple[LocalEndpoint, str, bytes]]:
    """An endpoint whose socket file all may write to, the file's path, and the nonce."""
    plane, arena = DataPlane(Limits()), Arena(4096, shared=True)
    metrics = Metrics(plane, lambda: True)
    endpoint = LocalEndpoint(Shell(plane, metrics), arena, metrics, {}, peers=peers)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101, S103  # others come in; paths are not for asynchronous functions
        endpoint.listen_beside(f"{folder}/a.sock", 0o666)
        endpoint.listen_abstract()
        yield endpoint, f"{folder}/a.sock.local", arena.nonce
        await endpoint.drain(0)
        await endpoint.close()
        arena.close()


def attach(place: str, nonce: bytes, times: int = 1) -> list[str]:
    """How attempts to attach end."""
    ends = []
    for _ in range(times):
        try:
            SharedArena(place, nonce)
        except OSError as error:  # noqa: PERF203  # that is what is looked at
            ends.append(f"{type(error).__name__}: {error}")
        else:
            ends.append("attached")
    return ends


VISITS: dict[str, tuple[AllowedPeers | None, User, bool]] = {
    "the file's rights decide": (None, user(2000), True),
    "an allowed user": (AllowedPeers(users=frozenset({2000})), user(2000), True),
    "another user": (AllowedPeers(users=frozenset({2000})), user(3000, 2000, 2000), False),
    "an allowed group": (AllowedPeers(groups=frozenset({77})), user(2000, 77), True),
    "an allowed supplementary group": (AllowedPeers(groups=frozenset({77})), user(2000, 2000, 77), True),
    "another group": (AllowedPeers(groups=frozenset({77})), user(2000, 2000, 78), False),
    "root": (AllowedPeers(frozenset(), frozenset()), user(0), True),
}


@pytest.mark.parametrize("visit", VISITS)
async def test_a_socket_file_admits_users_and_groups(visit: str) -> None:
    peers, visitor, admitted = VISITS[visit]
    async with serving(peers) as (endpoint, place, nonce):
        ends = await asyncio.to_thread(visitor.run, attach, place, nonce)
        assert ends == ["attached" if admitted else REFUSED.format(visitor.user)]
        assert endpoint.refused_peers == (not admitted)


async def test_the_abstract_socket_admits_its_user_and_root_whomever_the_files_admit() -> None:
    async with serving(AllowedPeers(users=frozenset({2000}))) as (endpoint, _, nonce):
        abstract = f"\0{endpoint.abstract_name}"
        assert await asyncio.to_thread(attach, abstract, nonce) == ["attached"]
        (end,) = await asyncio.to_thread(user(2000).run, attach, abstract, nonce)
    assert end == "ConnectionError: this socket serves only processes of the server's user and root, not user 2000"


async def test_refused_peers_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(AllowedPeers(users=frozenset({2000}))) as (endpoint, place, nonce):
        with caplog.at_level(logging.WARNING, "dataplane_server"):
            ends = await asyncio.to_thread(user(3000, 3001).run, attach, place, nonce, 20)
        assert ends == [REFUSED.format(3000)] * 20
        assert endpoint.refused_peers == 20
    (line,) = [record.getMessage() for record in caplog.records]
    assert all(part in line for part in ('"local_peer_refused"', '"uid": 3000', '"gid": 3001', '"refused": 1'))
