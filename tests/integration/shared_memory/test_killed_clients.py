"""Clients killed at any moment leave nothing behind, and nobody ever sees bytes that are not a row's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import commands
from tests.waiting import eventually

from dataplane_client.client import connect
from dataplane_server.testing import ServerThread

SCRIPT = Path(__file__).parent / "doomed_clients.py"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [15, pytest.param(500, marks=pytest.mark.soak)])
def test_killed_clients_leave_no_byte_behind_and_spoil_no_row(
    start_server: Callable[..., ServerThread], kills: int
) -> None:
    server = start_server(memory_bytes=64 << 20)
    with connect(server.addresses[0], transport="shm") as client:
        client.register_partition("p", ["tokens", "score"], 0, ["train"], per_token_fields=["tokens"])
        command = [sys.executable, str(SCRIPT), server.addresses[0], str(kills), str(kills)]
        ended = commands.run(command)
        ends = json.loads(ended.stdout or "{}")
        assert sum(ends.values()) == kills + 1, ended.stderr
        assert [end for end in ends if not end.startswith("-9 ") and end != "-15 survivor"] == [], (ends, ended.stderr)
        assert {end.removeprefix("-9 ") for end in ends} >= {"any moment", "reserved", "filling", "filled", "leased"}
        client.clear_samples(None, "p")
        eventually(lambda: client.server_status().memory_used_bytes == 0)
    server.check_invariants()
