"""A coordinator with a log that stops: what clients of nodes may still use is as after a crash."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from tests.cluster.node.conftest import Node, read
from tests.waiting import soon

from dataplane_client.client import DataPlaneClient

ROW_BYTES = 8000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def test_memory_that_clients_read_is_free_only_when_they_are_gone(node: Node, producer: DataPlaneClient) -> None:
    orphan = await node.attach()
    views = [await read(orphan, 0, views=True)]
    cast("asyncio.Transport", node.gateway._line._transport).abort()  # type: ignore[union-attr]  # it is linked
    await soon(lambda: len(node.orphans) == 1)
    await node.gateway.link()
    client = await node.attach()
    views.append(await read(client, 1, views=True))
    await asyncio.to_thread(producer.clear_samples, None, "p")
    await node.server.stop(0.0)
    assert node.server.plane.totals().memory_used_bytes == len(views) * ROW_BYTES
