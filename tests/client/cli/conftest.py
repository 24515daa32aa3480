"""Servers with known contents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dataplane_client import connect, kv_first_write
from dataplane_server.testing import running_server


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server with the partitions `train`, with rows a and b, one of them claimed, and `val`, which is empty."""
    with running_server(memory_bytes=64 << 20) as address, connect(address) as client:
        fields = ["input_ids", "input_lengths", "sample_mask", "prev_logprobs"]
        client.register_partition("train", fields, 4, ["prev_lp", "train"], per_token_fields=["input_ids"])
        with pytest.warns(UserWarning, match="'val' has no task"):
            client.register_partition("val", ["input_ids"], 0, [])
        batch = {
            "input_ids": torch.arange(6).view(2, 3),
            "input_lengths": torch.tensor([2, 3]),
            "sample_mask": torch.ones(2),
        }
        tags = [{"weight_version": 17}, {"weight_version": 18}]
        kv_first_write(batch, sample_ids=["a", "b"], dp_client=client, partition_id="train", tags=tags)
        with client.claim("train", "train", ["input_ids"], 1):
            yield address


@pytest.fixture
def troubled() -> Iterator[str]:
    """A server with partition p: row a is a dead letter of `train`, b was committed and cleared, c is new."""
    with running_server(memory_bytes=64 << 20) as address, connect(address, client_name="rollout-0") as client:
        client.register_partition("p", ["x"], 3, ["train"], max_deliveries=2)
        client.put_samples(["a"], "p", {"x": torch.zeros(1, 4)}, [{"prompt": "[red]7 :fire:"}])
        for reason in ("NaN in the loss", "out of [bold]memory"):
            client.claim("p", "train", ["x"], 1).release(reason=reason)
        client.put_samples(["b"], "p", {"x": torch.zeros(1, 4)})
        client.claim("p", "train", ["x"], 1).commit()
        client.clear_samples(["b"], "p")
        client.put_samples(["c"], "p", {"x": torch.zeros(1, 4)})
        yield address
