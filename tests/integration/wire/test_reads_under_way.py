"""A read keeps what it began with: a clear or put that comes later neither waits for it nor shows in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient
from dataplane_server.service.messages.frames import SENT_CHUNK_BYTES
from rl_dataplane.v1 import data_plane_pb2 as pb

SIZE = 16 << 20
"""Bytes of a row: far more than gRPC takes ahead of a slow reader while it does not probe the connection's speed."""


@pytest.fixture
def slow_read(client: DataPlaneClient, stub: Any) -> Any:
    """A read of rows a and b whose reader has taken one frame."""
    client.register_partition("p", ["x"], 0, ["train"])
    for name, value in (("a", 1), ("b", 2)):
        client.put_samples([name], "p", {"x": torch.full((1, SIZE), value, dtype=torch.uint8)})
    read = stub.ReadColumns(pb.ReadColumnsRequest(partition_id="p", sample_ids=["a", "b"], fields=["x"]), timeout=60)
    assert len(next(read).chunk.data) == SENT_CHUNK_BYTES
    return read


def rest_is_as_it_was(read: Iterable[pb.ReadColumnsResponse]) -> bool:
    """Whether the frames after the first hold what the rows held when the read began."""
    held = b"\x01" * SIZE + b"\x02" * SIZE
    return b"".join(frame.chunk.data for frame in read) == held[SENT_CHUNK_BYTES:]


def test_a_clear_does_not_wait_for_a_slow_reader_and_frees_the_bytes_when_it_is_done(
    client: DataPlaneClient, slow_read: Any
) -> None:
    assert client.clear_samples(None, "p") == 2
    assert client.partition("p").rows == 0
    assert client.server_status().memory_used_bytes == 2 * SIZE
    assert rest_is_as_it_was(slow_read)
    eventually(lambda: client.server_status().memory_used_bytes == 0)


def test_a_put_over_rows_that_are_being_read_does_not_show_in_the_read(client: DataPlaneClient, slow_read: Any) -> None:
    client.put_samples(["b"], "p", {"x": torch.full((1, SIZE), 9, dtype=torch.uint8)})
    assert rest_is_as_it_was(slow_read)
    assert client.get_samples(["b"], "p", ["x"])["x"][0, 0] == 9
    eventually(lambda: client.server_status().memory_used_bytes == 2 * SIZE)


def test_a_dropped_partition_is_read_to_the_end(client: DataPlaneClient, slow_read: Any) -> None:
    client.drop_partition("p")
    client.register_partition("p", ["x"], 0, ["train"])
    client.put_samples(["a"], "p", {"x": torch.zeros(1, SIZE, dtype=torch.uint8)})
    assert rest_is_as_it_was(slow_read)
    eventually(lambda: client.server_status().memory_used_bytes == SIZE)


def test_a_reader_that_goes_away_lets_go_of_its_rows(client: DataPlaneClient, slow_read: Any) -> None:
    client.clear_samples(None, "p")
    slow_read.cancel()
    eventually(lambda: client.server_status().memory_used_bytes == 0)
