"""The memory that real server processes share: found while they live, gone or taken over when they do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
import torch

from dataplane_client.client import DataPlaneClient, connect

SIZE = 1 << 20


class Command(Protocol):
    log: str
    addresses: list[str]

    def end(self, number: signal.Signals = ...) -> int: ...


Start = Callable[..., Command]


@pytest.fixture
def listen(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/dataplane.sock"


def works(client: DataPlaneClient) -> bool:
    """Whether a row goes there and back."""
    sent = torch.randint(0, 256, (1, SIZE), dtype=torch.uint8)
    client.register_partition("p", ["x"], 0, ["train"])
    client.put_samples(["s"], "p", {"x": sent})
    return torch.equal(client.get_samples(["s"], "p", ["x"])["x"], sent)


def test_a_server_that_is_told_to_end_leaves_no_socket(start_command: Start, listen: str, tmp_path: Path) -> None:
    command = start_command("--listen", listen, "--grace", "10")
    assert {path.name for path in tmp_path.iterdir()} == {"dataplane.sock", "dataplane.sock.local"}
    with connect(listen, transport="shm") as client:
        assert works(client)
        assert command.end() == 0
    assert list(tmp_path.iterdir()) == []


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
    start_command: Start, listen: str, eventually: Callable[[Callable[[], object]], None]
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
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "held\n"
            assert client.server_status().memory_used_bytes == SIZE
            reader.kill()
        eventually(lambda: client.server_status().memory_used_bytes == 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_processes_of_another_user_are_not_served_at_the_abstract_socket(start_command: Start) -> None:
    server = start_command("--listen", "127.0.0.1:0")
    code = """
import os, socket, sys
os.setuid(65533)
with socket.socket(socket.AF_UNIX) as peer:
    peer.settimeout(20)
    peer.connect(chr(0) + sys.argv[1])
    print(peer.recv(1000)[8:].decode(errors="replace"))
"""
    with connect(server.addresses[0], transport="shm") as client:
        arena = client._transport._local._arena  # type: ignore[union-attr]
        assert arena is not None
        name = arena.address.removeprefix("\0")
    assert f"@{name}" in Path("/proc/net/unix").read_text()
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True)
    assert "this socket serves only processes of the server's user and root, not user 65533" in done.stdout
    assert '"event": "local_peer_refused"' in server.log
