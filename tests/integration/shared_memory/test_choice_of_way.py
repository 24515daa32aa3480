"""Which way values travel: through memory where a client can prove that it is the server's, over gRPC elsewhere."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import PreconditionError
from dataplane_client.options import TransportChoice
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

MIB = 1 << 20
Start = Callable[..., ServerThread]


def works(client: DataPlaneClient) -> bool:
    """Whether a row of 1 MiB goes there and back."""
    sent = torch.randint(0, 256, (1, MIB), dtype=torch.uint8)
    client.register_partition("w", ["x"], 0, ["train"])
    client.put_samples(["s"], "w", {"x": sent})
    same = torch.equal(client.get_samples(["s"], "w", ["x"])["x"], sent)
    client.drop_partition("w")
    return same


async def test_the_asynchronous_client_chooses_alike(server: ServerThread, listen: str) -> None:
    choices: list[tuple[TransportChoice, str]] = [("auto", "shm"), ("shm", "shm"), ("grpc", "grpc")]
    for transport, expected in choices:
        async with await aio.connect(listen, transport=transport) as client:
            assert client.transport == expected


def test_memory_is_found_behind_a_tcp_address(start_server: Start) -> None:
    server = start_server(("127.0.0.1:0",), memory_bytes=8 * MIB)
    with connect(server.addresses[0], transport="shm") as client:
        assert (client.transport, works(client)) == ("shm", True)


def test_memory_is_found_at_another_path_of_the_same_socket(server: ServerThread, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(tmp_path / "dataplane.sock")
    with connect(f"unix://{tmp_path}/elsewhere", transport="shm") as client:
        assert works(client)


def test_where_nothing_is_shared_who_insists_is_refused_and_who_does_not_uses_grpc_and_says_so_once(
    listen: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = ServerThread(ServerConfig(listen=(listen,), share_memory=False, limits=Limits(memory_bytes=8 * MIB)))
    assert [path.name for path in tmp_path.iterdir()] == ["dataplane.sock"]
    with pytest.raises(PreconditionError, match=listen):
        connect(listen, transport="shm")
    with caplog.at_level(logging.INFO, "dataplane_client"), connect(listen) as client:
        assert (client.transport, works(client)) == ("grpc", True)
    assert [record.getMessage() for record in caplog.records] == [
        f'memory_not_shared server={listen} why="the server shares no memory"'
    ]
    server.stop()


def local_socket(tmp_path: Path, name: str) -> Path:
    return tmp_path / f"{name}.sock.local"


def test_the_memory_of_another_server_is_not_used(
    start_server: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = start_server((f"unix://{tmp_path}/other.sock",), memory_bytes=8 * MIB)
    unix, tcp = f"unix://{tmp_path}/this.sock", "127.0.0.1:0"
    start_server((unix, tcp), memory_bytes=8 * MIB)
    local_socket(tmp_path, "this").unlink()
    local_socket(tmp_path, "this").symlink_to(local_socket(tmp_path, "other"))
    with connect(unix, transport="shm") as client:  # the abstract socket still leads to the right one
        assert works(client)
    other.check_invariants()
    with connect(other.addresses[0]) as others:
        assert others.server_status().memory_used_bytes == 0


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def abandoned_socket(place: Path) -> None:
    """A socket file as a killed server leaves it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(str(place))


@pytest.mark.parametrize("left", ["an abandoned socket", "a full backlog", "a stalled server", "nothing"])
@pytest.mark.parametrize("transport", ["auto", "shm"])
def test_a_client_that_comes_as_a_server_ends_shares_the_memory_of_the_next(
    start_server: Start,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    stack: contextlib.ExitStack,
    transport: TransportChoice,
    left: str,
) -> None:
    place, kept = local_socket(tmp_path, "this"), tmp_path / "kept"
    server = start_server((f"unix://{tmp_path}/this.sock",), memory_bytes=8 * MIB)
    place.rename(kept)  # the server answers as if it were the one that ends, and later the next one
    if left == "an abandoned socket":
        abandoned_socket(place)
    elif left != "nothing":
        listener, other = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        listener.bind(str(place))
        listener.listen(0)
        if left == "a full backlog":
            other.connect(str(place))

    class Next(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "its memory cannot be shared" in record.getMessage() and kept.exists():
                kept.replace(place)

    monkeypatch.setattr(logging.getLogger("dataplane_client"), "handlers", [Next()])
    caplog.set_level(logging.DEBUG, "dataplane_client")
    with connect(server.addresses[0], transport=transport) as client:
        assert (client.transport, works(client)) == ("shm", True)


@pytest.mark.parametrize("what", ["another server", "a silent socket", "an abandoned socket", "a file", "nothing"])
def test_without_a_way_to_the_right_memory_values_travel_over_grpc(
    start_server: Start, tmp_path: Path, what: str
) -> None:
    start_server((f"unix://{tmp_path}/other.sock",), memory_bytes=8 * MIB)
    unix, place = f"unix://{tmp_path}/this.sock", local_socket(tmp_path, "this")
    server = start_server((unix,), memory_bytes=8 * MIB)
    server.server.servicer._shared_memory.abstract_socket = "rl-dataplane-nowhere"  # type: ignore[union-attr]
    place.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        if what == "another server":
            place.symlink_to(local_socket(tmp_path, "other"))
        elif what == "a silent socket":
            silent.bind(str(place))
            silent.listen()
        elif what == "an abandoned socket":
            abandoned_socket(place)
        elif what == "a file":
            place.write_text("data")
        with connect(unix) as client:
            assert (client.transport, works(client)) == ("grpc", True)
        with pytest.raises(PreconditionError, match=r"this\.sock\.local: .*; @rl-dataplane-nowhere: "):
            connect(unix, transport="shm")
    if place.exists():
        assert what != "nothing"
        place.unlink()


def test_a_socket_whose_path_has_no_room_for_a_second_is_served_over_grpc(start_server: Start, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    path = folder / ("s" * (105 - len(os.fsencode(folder)) - 1))
    folder.mkdir()
    start_server((f"unix://{path}",), memory_bytes=8 * MIB)
    with connect(f"unix://{path}") as client:
        assert (client.transport, works(client)) == ("grpc", True)


def abstract_sockets() -> int:
    """How many sockets of servers this process has that every process of its network namespace may find."""
    own = {str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_socket()}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return sum(f"socket:[{words[6]}]" in own for words in lines if words[-1].startswith("@"))


@pytest.mark.parametrize(("listen", "expected"), [(("unix",), 0), (("tcp",), 1), (("unix", "tcp"), 1)])
def test_only_a_server_with_a_port_has_an_abstract_socket(
    start_server: Start, tmp_path: Path, listen: tuple[str, ...], expected: int
) -> None:
    before = abstract_sockets()  # of servers that other tests share
    addresses = {"unix": f"unix://{tmp_path}/a.sock", "tcp": "127.0.0.1:0"}
    start_server(tuple(addresses[kind] for kind in listen), memory_bytes=8 * MIB)
    assert abstract_sockets() - before == expected


def test_behind_a_port_without_an_abstract_socket_values_travel_by_the_direct_port(start_server: Start) -> None:
    server = start_server(("127.0.0.1:0",), memory_bytes=8 * MIB)
    server.server.servicer._shared_memory.abstract_socket = ""  # type: ignore[union-attr]
    with pytest.raises(PreconditionError, match="Unix socket"):
        connect(server.addresses[0], transport="shm")
    with connect(server.addresses[0]) as client:
        assert (client.transport, works(client)) == ("direct", True)
