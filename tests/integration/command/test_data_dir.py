"""The command with --data-dir: what its users see of a restart, a checkpoint, and a directory that cannot be used."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.integration.command.conftest import Command, Start
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.options import TransportChoice
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread


@pytest.fixture
def start(start_command: Start, tmp_path: Path) -> Callable[..., Command]:
    """Start a server on the directory `data` and the socket `s`, with 1 MiB of memory."""

    def begin(*flags: str) -> Command:
        paths = ("--listen", f"unix://{tmp_path}/s", "--data-dir", str(tmp_path / "data"))
        return start_command(*paths, "--memory", "1MiB", *flags)

    return begin


def events(command: Command) -> dict[str, dict[str, object]]:
    """The last log event of each name."""
    return {entry["event"]: entry for entry in map(json.loads, command.log.splitlines())}


def put(client: DataPlaneClient, sample_id: str) -> None:
    client.put_samples([sample_id], "p", {"x": [torch.arange(100_000, dtype=torch.uint8)]})


@pytest.mark.parametrize(("transport", "how"), [("shm", signal.SIGKILL), ("grpc", signal.SIGTERM)])
def test_a_client_notices_no_more_than_a_pause(
    start: Start, tmp_path: Path, transport: TransportChoice, how: signal.Signals
) -> None:
    first = start()
    with connect(f"unix://{tmp_path}/s", transport=transport) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        put(client, "a")
        put(client, "b")
        claim = client.claim("p", "train", ["x"], 1)
        first.end(how)
        second = start()
        assert claim.commit() == 1
        read = client.get_samples(["a", "b"], "p", ["x"])["x"].unbind()
        assert all(torch.equal(row, torch.arange(100_000, dtype=torch.uint8)) for row in read)
        with client.claim("p", "train", ["x"], 1) as rest:
            assert rest.meta.sample_ids == ["b"]
    assert events(second)["recovered"]["rows"] == 2


@pytest.mark.parametrize(("transport", "durability"), [("shm", "process"), ("grpc", "disk")])
def test_values_put_once_are_one_and_whole_after_a_kill(
    start: Start, tmp_path: Path, transport: TransportChoice, durability: str
) -> None:
    images = torch.arange(200_000, dtype=torch.int32).view(torch.uint8).view(2, -1)[:, :100_000]

    def put_images(client: DataPlaneClient, epoch: int) -> None:
        client.put_samples([f"{epoch}-0", f"{epoch}-1"], "p", {"x": images}, once=["x"])

    server = start("--durability", durability)
    with connect(f"unix://{tmp_path}/s", transport=transport) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        for epoch in range(3):
            put_images(client, epoch)
            client.clear_samples([f"{epoch - 1}-0"], "p")
            server.end(signal.SIGKILL)
            server = start("--durability", durability)
            put_images(client, epoch)
            assert client.partition("p").size_bytes == images.nbytes
        ids = ["0-1", "1-1", "2-0", "2-1"]
        assert torch.equal(client.get_samples(ids, "p", ["x"])["x"], images[[1, 1, 0, 1]])
        client.clear_samples(None, "p")
        assert client.partition("p").size_bytes == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("cleared", ["before", "after"])
def test_a_view_of_the_former_servers_memory_keeps_its_values(
    start: Start, tmp_path: Path, how: signal.Signals, cleared: str
) -> None:
    first = start()
    with connect(f"unix://{tmp_path}/s", transport="shm") as client:
        client.register_partition("p", ["x"], 0, ["train"])
        put(client, "a")
        meta = client.claim("p", "train", ["x"], 1).meta
        view = client.read_columns(meta, ["x"], layout="jagged")["x"]
        if cleared == "before":
            client.clear_samples(None, "p")
        first.end(how)
        second = start()
        assert events(second)["recovered"]["held"] is True
        client.clear_samples(None, "p")
        for number in range(9):  # more than fits, if the view's bytes were given away
            put(client, f"other {number}")
        assert torch.equal(view[0], torch.arange(100_000, dtype=torch.uint8))
        assert client.server_status().memory_used_bytes == 1_000_000
        del view
        eventually(lambda: client.server_status().memory_used_bytes <= 900_000)
    assert "former_clients_gone" in events(second)


def test_what_becomes_due_after_a_restart_needs_no_other_call(start: Start, tmp_path: Path) -> None:
    server = start()
    with connect(f"unix://{tmp_path}/s") as client:
        client.register_partition("p", ["x"], 0, ["train"])
        put(client, "a")
    for delay_s in (3.0, 12.0, 48.0):  # until the restart is quicker
        with connect(f"unix://{tmp_path}/s") as client:
            client.claim("p", "train", ["x"], 1).release(delay_s=delay_s)
        server.end(signal.SIGKILL)
        server = start()
        with connect(f"unix://{tmp_path}/s") as client:
            was_delayed = client.partition("p").task("train").delayed_rows == 1
            eventually(lambda: client.partition("p").task("train").untaken_rows == 1)
        if was_delayed:
            return
    pytest.fail("no restart took less than 48 s")


def test_another_life_with_other_flags_is_refused_in_words(start: Start, tmp_path: Path) -> None:
    start().end(signal.SIGKILL)
    with pytest.raises(pytest.fail.Exception, match="ended with 1") as caught:
        start("--max-rows", "5")
    assert "max_rows 4000000 (now 5)" in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.long
def test_checkpoints_replace_the_log_while_the_server_serves(tmp_path: Path) -> None:
    listen, data = (f"unix://{tmp_path}/s",), tmp_path / "d"
    limits = Limits(memory_bytes=1 << 20)
    config = ServerConfig(
        listen, limits=limits, durability="process", data_dir=data, checkpoint_calls=40, log_history_bytes=0
    )
    thread = ServerThread(config)
    with connect(thread.addresses[0]) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        eventually(lambda: client.put_samples(["a"], "p", {"x": [1.0]}) and list(data.glob("checkpoint-*[0-9]")))
        put_total = client.partition("p").rows_put_total
    thread.stop()
    checkpoint = max(data.glob("checkpoint-*[0-9]"))
    thread = ServerThread(config)
    with connect(thread.addresses[0]) as client:
        assert (client.partition("p").rows, client.partition("p").rows_put_total) == (1, put_total)
    thread.stop()
    assert int(checkpoint.name.partition("-")[2]) >= 40
