"""Readers that hold rows for a long time cost the others nothing but the memory of those rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.waiting import eventually

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import OutOfSpaceError
from dataplane_client.records.meta import KVBatchMeta
from dataplane_server.testing import ServerThread

ROW_BYTES = 256 << 10
ROWS = 16
BUDGET = 4 * ROWS * ROW_BYTES


@pytest.fixture
def server(start_server: Callable[..., ServerThread]) -> ServerThread:
    return start_server(memory_bytes=BUDGET)


@pytest.fixture
def flow(server: ServerThread) -> Iterator[DataPlaneClient]:
    with connect(server.addresses[0], transport="shm", timeout_s=200.0) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        yield client


def put(client: DataPlaneClient, mark: int) -> KVBatchMeta:
    """Rows that hold their mark and nothing else."""
    ids = [f"{mark}_{row}" for row in range(ROWS)]
    return client.put_samples(ids, "p", {"x": torch.full((ROWS, ROW_BYTES // 8), mark)})


def read(client: DataPlaneClient, meta: KVBatchMeta) -> BatchedDataDict[torch.Tensor]:
    return client.read_columns(meta, ["x"], layout="jagged")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("held_for_s", [1.0, pytest.param(150.0, marks=pytest.mark.soak)])
def test_rows_go_through_while_readers_hold_others_that_were_cleared(flow: DataPlaneClient, held_for_s: float) -> None:
    held = [(mark, read(flow, put(flow, mark))) for mark in (1, 2)]
    flow.clear_samples(None, "p")
    least = 2 * ROWS * ROW_BYTES
    until, mark = time.monotonic() + held_for_s, 3
    while time.monotonic() < until:
        meta = put(flow, mark)
        assert (read(flow, meta)["x"] == mark).all()
        assert least <= flow.server_status().memory_used_bytes <= BUDGET
        assert flow.clear_samples(meta.sample_ids, "p") == ROWS
        mark += 1
    for number, batch in held:
        assert (batch["x"] == number).all()
    held.clear()
    del batch
    eventually(lambda: flow.server_status().memory_used_bytes == 0)


def test_a_put_waits_for_the_memory_that_a_reader_holds_and_for_nothing_else(flow: DataPlaneClient) -> None:
    held = [read(flow, put(flow, mark)) for mark in (1, 2, 3)]
    flow.clear_samples(None, "p")
    put(flow, 4)
    with pytest.raises(OutOfSpaceError):
        flow.put_samples(["late"], "p", {"x": torch.zeros(1, ROW_BYTES // 8, dtype=torch.int64)}, timeout_s=0.05)
    stored = threading.Thread(target=put, args=(flow, 5))
    stored.start()
    eventually(lambda: flow.server_status().waiting_puts == 1)
    held.pop(0)
    stored.join(200)
    assert flow.partition("p").rows == 2 * ROWS
    assert [int(batch["x"].max()) for batch in held] == [2, 3]
