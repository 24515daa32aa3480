"""The memory that real server processes share: found while they live, gone or taken over when they do not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests import commands
from tests.integration.command.conftest import Start
from tests.integration.conftest import Eventually

from dataplane_client.client import DataPlaneClient, connect

SIZE = 1 << 20


@pytest.fixture
def listen(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/dataplane.sock"


def works(client: DataPlaneClient) -> bool:
    """Whether a row goes there and back."""
    sent = torch.randint(0, 256, (1, SIZE), dtype=torch.uint8)
    client.register_partition("p", ["x"], 0, ["train"])
    client.put_samples(["s"], "p", {"x": sent})
    return torch.equal(client.get_samples(["s"], "p", ["x"])["x"], sent)


def test_a_server_that_was_killed_is_followed_by_another_at_the_same_place(
    start_command: Start, listen: str, tmp_path: Path
) -> None:
    command = start_command("--listen", listen)
    with connect(listen, timeout_s=30.0, transport="shm") as client:
        assert works(client)
        view = client.read_columns(client.claim_meta("p", "train", ["x"], 1), ["x"], layout="jagged")["x"]
        before = view.clone()
        assert command.end(signal.SIGKILL) == -signal.SIGKILL
        assert (tmp_path / "dataplane.sock.local").is_socket()
        start_command("--listen", listen)
        assert (client.transport, works(client), client.transport) == ("shm", True, "shm")
        assert torch.equal(view, before)  # the memory of a server outlives it


def test_a_client_that_is_killed_lets_go_of_all_that_it_held(
    start_command: Start, listen: str, eventually: Eventually
) -> None:
    start_command("--listen", listen)
    code = """
import sys
from dataplane_client.client import connect
client = connect(sys.argv[1], transport="shm")
meta = client.claim_meta("p", "train", ["x"], 1)
view = client.read_columns(meta, ["x"], layout="jagged")["x"]
client.clear_samples(None, "p")
print("held", flush=True)
sys.stdin.read()
"""
    with connect(listen, transport="grpc") as client:
        assert works(client)
        command = [sys.executable, "-c", code, listen]
        with commands.begin(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "held\n"
            assert client.server_status().memory_used_bytes == SIZE
            reader.kill()
        eventually(lambda: client.server_status().memory_used_bytes == 0)
