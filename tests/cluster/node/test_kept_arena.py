"""A node actor that starts again finds the values of its node, as in the next life of a cluster with a directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from xxhash import xxh3_128_digest

from dataplane_server.cluster.node import actor
from dataplane_server.cluster.node.actor import NodeActor, NodeOptions

MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no coordinator."""
    monkeypatch.setattr(actor, "this_node", lambda: "node")
    monkeypatch.setattr(actor, "this_address", lambda: "127.0.0.1")
    monkeypatch.setattr(NodeActor, "_live", lambda node: asyncio.Event().wait())


@pytest.mark.parametrize("cache_bytes", [4 * MIB, 2 * MIB, 8 * MIB])
async def test_values_that_were_kept_are_there_whatever_the_cache_is_to_be(tmp_path: Path, cache_bytes: int) -> None:
    folder = tmp_path / "node"
    await NodeActor(NodeOptions("coordinator", MIB, 4 * MIB, folder=str(folder))).stop(keep=True)
    with (folder / "arena").open("r+b") as file:
        file.write(b"values")
    again = NodeActor(NodeOptions("coordinator", MIB, cache_bytes, folder=str(folder)))
    assert await again.digests(np.array([0]), np.array([6])) == xxh3_128_digest(b"values")
    await again.stop()
    assert not folder.exists()
