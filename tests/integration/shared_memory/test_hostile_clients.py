"""What a client does to the memory that it was given ends rows at worst, never the sharing with others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.integration.shared_memory.test_choice_of_way import works

from dataplane_client.client import connect
from dataplane_server.config import Durability, ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread


@pytest.mark.parametrize("durability", ["memory", "process", "disk"])
def test_a_client_that_overwrites_all_memory_and_takes_all_rights_to_it_keeps_it_from_no_other(
    tmp_path: Path, listen: str, durability: Durability
) -> None:
    data_dir = None if durability == "memory" else tmp_path / "data"
    limits = Limits(memory_bytes=4 << 20)
    server = ServerThread(ServerConfig(listen=(listen,), limits=limits, durability=durability, data_dir=data_dir))
    with connect(listen, transport="shm") as hostile:
        arena = hostile._transport._local.carrier.arena  # type: ignore[union-attr]
        arena.writable[:] = 0
        for descriptor in arena._descriptors:
            os.fchmod(descriptor, 0)
        with connect(listen, transport="shm") as other:
            assert works(other)
    with connect(listen, transport="shm") as later:
        assert works(later)
    server.stop()
