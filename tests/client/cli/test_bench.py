"""`dataplane bench`: what it measures, and that it leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest
import torch
from tests import commands
from tests.client.cli.reading import DATAPLANE, read, run, run_json
from tests.waiting import eventually

from dataplane_client import DataPlaneClient, connect
from dataplane_server.testing import running_server

SHORT = ["--rows", "4", "--tokens", "16", "--seconds", "0.1"]


@pytest.fixture
def client() -> Iterator[DataPlaneClient]:
    """Of a server with partition p, which has a row."""
    with running_server(memory_bytes=1 << 20) as address, connect(address) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["a"], "p", {"x": torch.zeros(1, 4)})
        yield client
        (left,) = client.partitions()
        assert (left.partition_id, left.rows, left.read_rows_total, left.task("train").claims_total) == ("p", 1, 0, 0)


def begun(client: DataPlaneClient) -> str:
    """The partition of a bench, as soon as rows were put."""
    return eventually(
        lambda: next((p.partition_id for p in client.partitions() if p.partition_id != "p" and p.rows_put_total), "")
    )


@pytest.mark.parametrize("clients", [1, 3])
def test_each_kind_of_call_is_measured(client: DataPlaneClient, clients: int) -> None:
    code, text = run("bench", "-s", client.target, *SHORT, "--clients", str(clients))
    assert code == 0
    named = f"{clients} client{'s' if clients > 1 else ''}, batches of 4 rows of 16 tokens, values through shm"
    assert text.startswith(f"{client.target}: {named}\n")
    assert [line.split("  ")[0] for line in read(text)[2:]] == [
        "what",
        "memory copy",
        "put",
        "claim + commit",
        "read",
        "small call",
    ]


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_json_output_has_the_same_figures(client: DataPlaneClient, transport: str) -> None:
    told = run_json("bench", "-s", client.target, *SHORT, "--transport", transport)
    assert (told["transport"], told["rows"], told["tokens"], told["clients"]) == (transport, 4, 16, 1)
    copy, put, *_, small = told["measured"]
    assert put["gb_per_s"] == pytest.approx(put["calls_per_s"] * 4 * 16 * 12 / 1e9)
    assert put["of_memory_copy"] == pytest.approx(put["gb_per_s"] / copy["gb_per_s"])
    assert (copy["of_memory_copy"], small["gb_per_s"], small["of_memory_copy"]) == (None, None, None)
    assert all(0 < one["p50_ms"] <= one["p99_ms"] for one in told["measured"])


def test_what_does_not_fit_is_refused(client: DataPlaneClient) -> None:
    code, text = run("bench", "-s", client.target, "--rows", "64", "--tokens", "1024")
    assert code == 1
    assert "the bench needs 1.0 MiB for 64 rows, and takes at most half of what the server has free (1024.0 KiB" in text
    assert "choose fewer --rows, --tokens or --clients" in text


@pytest.mark.long
def test_after_ctrl_c_nothing_is_left(client: DataPlaneClient) -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child inherits an ignored signal
    try:
        command = [DATAPLANE, "bench", "-s", client.target, *SHORT, "--seconds", "2", "--clients", "2"]
        with commands.begin(command, stdout=subprocess.PIPE) as process:
            begun(client)
            process.send_signal(signal.SIGINT)
            assert process.wait(300) != 0
    finally:
        signal.signal(signal.SIGINT, handler)
