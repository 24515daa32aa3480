"""Connections that break, servers that are late or never come: what is retried, for how long, and what stays behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.integration.faults.proxy import FaultProxy
from tests.scraping import total
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import (
    DataPlaneError,
    InvalidArgumentError,
    NotFoundError,
    OutOfSpaceError,
    UnavailableError,
)
from dataplane_server.testing import ServerThread, running_server

MIB = 1 << 20


def values(rows: int) -> dict[str, torch.Tensor]:
    return {"a": torch.arange(rows * MIB).to(torch.uint8).reshape(rows, MIB)}


IDS = [f"s{row}" for row in range(8)]


def test_a_put_cut_in_mid_chunk_is_repeated_and_arrives_whole(
    client: DataPlaneClient, shaky: DataPlaneClient, proxy: FaultProxy
) -> None:
    client.register_partition("p", ["a"], 0, ["train"])
    proxy.cut_after, proxy.cuts_left = {"requests": 3 * MIB + 1000}, 2
    shaky.put_samples(IDS, "p", values(8))
    assert proxy.cuts_left == 0
    assert torch.equal(client.get_samples(IDS, "p", ["a"])["a"], values(8)["a"])
    assert client.server_status().memory_used_bytes == 8 * MIB


def test_a_put_that_is_cut_again_and_again_leaves_nothing_behind(
    client: DataPlaneClient, shaky: DataPlaneClient, proxy: FaultProxy
) -> None:
    client.register_partition("p", ["a"], 0, ["train"])
    proxy.cut_after, proxy.cuts_left = {"requests": 3 * MIB + 1000}, 1_000_000
    with pytest.raises(UnavailableError):
        shaky.put_samples(IDS, "p", values(8), timeout_s=3.0)
    eventually(lambda: client.server_status().memory_used_bytes == 0)
    assert client.partition("p").rows == 0


def test_a_read_cut_in_mid_chunk_is_repeated_and_arrives_whole(
    client: DataPlaneClient, shaky: DataPlaneClient, proxy: FaultProxy
) -> None:
    client.register_partition("p", ["a"], 0, ["train"])
    client.put_samples(IDS, "p", values(8))
    proxy.cut_after, proxy.cuts_left = {"answers": 3 * MIB + 1000}, 2
    assert torch.equal(shaky.get_samples(IDS, "p", ["a"])["a"], values(8)["a"])
    assert proxy.cuts_left == 0
    client.clear_samples(None, "p")
    eventually(lambda: client.server_status().memory_used_bytes == 0)


def test_a_client_whose_connection_breaks_as_it_is_closed_gives_its_rows_back_over_another(
    client: DataPlaneClient, shaky: DataPlaneClient, proxy: FaultProxy
) -> None:
    client.register_partition("p", ["a"], 0, ["train"])
    client.put_samples(IDS, "p", values(8))
    shaky.claim("p", "train", ["a"], 8)
    proxy.cut_after, proxy.cuts_left = {"requests": 1}, 1
    shaky.close()
    assert proxy.cuts_left == 0
    claim = client.claim("p", "train", ["a"], 8)
    assert claim.deliveries == [1] * 8  # its session was closed; when one expires, that counts


def test_a_claim_whose_connection_breaks_while_it_waits_goes_on_waiting(
    client: DataPlaneClient,
    shaky: DataPlaneClient,
    proxy: FaultProxy,
    threads: ThreadPoolExecutor,
) -> None:
    client.register_partition("p", ["a"], 0, ["train"])
    claim = threads.submit(shaky.claim, "p", "train", ["a"], 1)
    for _ in range(3):
        eventually(lambda: client.server_status().waiting_claims == 1)
        proxy.reset_connections()
        eventually(lambda: client.server_status().waiting_claims == 0)
    eventually(lambda: client.server_status().waiting_claims == 1)
    client.put_samples(["s"], "p", {"a": torch.zeros(1)})
    assert claim.result(120).meta.sample_ids == ["s"]


def test_connect_waits_for_a_server_that_comes_late(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    listen = f"unix://{tmp_path}/late.sock"
    connecting = threads.submit(connect, listen, connect_timeout_s=120.0)
    time.sleep(0.3)
    assert not connecting.done()
    with running_server(listen=listen), connecting.result(120) as client:
        assert client.partitions() == []


REFUSED: dict[str, tuple[str, Callable[[DataPlaneClient], object], type[DataPlaneError]]] = {
    "INVALID_ARGUMENT": ("PutSamples", lambda c: c.put_samples(["a", "a"], "p"), InvalidArgumentError),
    "NOT_FOUND": ("GetPartition", lambda c: c.partition("nope"), NotFoundError),
    "RESOURCE_EXHAUSTED": ("RegisterPartition", lambda c: c.register_partition("q", ["a"], 0, ["t"]), OutOfSpaceError),
}


@pytest.mark.parametrize("code", REFUSED)
def test_a_refused_call_is_made_once(start_server: Callable[..., ServerThread], code: str) -> None:
    verb, call, kind = REFUSED[code]
    server = start_server(http="127.0.0.1:0", max_partitions=1)
    with connect(server.addresses[0], transport="grpc") as client:
        client.register_partition("p", ["a"], 0, ["train"])
        with pytest.raises(kind):
            call(client)
    assert total(server, "dataplane_calls_total", verb=verb, code=code, transport="grpc") == 1
