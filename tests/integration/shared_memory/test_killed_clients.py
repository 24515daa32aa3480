"""Clients that are killed at any moment, or end with daemon threads at work, leave nothing behind, and nobody ever sees
bytes that are not a row's own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
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


ENDING = """
import sys, threading, weakref
import torch
from dataplane_client._verbs._sync import carriers
from dataplane_client.client import connect
from dataplane_client.records.meta import KVBatchMeta

def fill(*_):
    begun.set()
    threading.Event().wait()

def last():
    print("ends", flush=True)
    sys.stdin.readline()

begun = threading.Event()
weakref.finalize(begun, last)  # the oldest of them all is called last
carriers.fill_runs = fill
client = connect(sys.argv[1], transport="shm")
view = client.read_columns(KVBatchMeta("p", None, ["a"]), ["x"], layout="jagged")["x"]
put = ["b"], "p", {"x": torch.ones(view.shape, dtype=torch.uint8)}
threading.Thread(target=client.put_samples, args=put, daemon=True).start()
begun.wait()
"""


def test_a_process_that_ends_keeps_what_its_daemon_threads_still_use(start_server: Callable[..., ServerThread]) -> None:
    """Such a thread may be copying until the process is gone."""
    server, value_bytes = start_server(memory_bytes=64 << 20), 4 << 20
    with connect(server.addresses[0], timeout_s=200.0) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["a"], "p", {"x": torch.ones(1, value_bytes, dtype=torch.uint8)})
        command = [sys.executable, "-c", ENDING, server.addresses[0]]
        with commands.begin(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ends\n"
            client.clear_samples(["a"], "p")  # the view's lease keeps the bytes
            used = [client.server_status().memory_used_bytes for _ in range(3)]
            process.stdin.write("\n")
            process.stdin.close()
            assert process.wait(200) == 0
        assert used == [2 * value_bytes] * 3
        eventually(lambda: client.server_status().memory_used_bytes == 0)
    server.check_invariants()
