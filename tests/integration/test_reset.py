"""Rows that a task gets again: released with a delay or a reason, given up after too many deliveries, reset."""

from __future__ import annotations

import pytest
import torch

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ClaimFencedError, ClaimTimeoutError


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with rows x and y, which are delivered twice at most."""
    client.register_partition("p", ["a"], 2, ["train"], max_deliveries=2)
    client.put_samples(["x", "y"], "p", {"a": torch.zeros(2)})
    return client


def states(client: DataPlaneClient) -> dict[str, int]:
    """Rows by state, those that there are."""
    status = client.partition("p").task("train")
    counts = {name: getattr(status, f"{name}_rows") for name in ("untaken", "claimed", "consumed", "delayed", "dead")}
    return {name: count for name, count in counts.items() if count}


def test_released_rows_are_held_back_for_the_delay(flow: DataPlaneClient) -> None:
    flow.claim("p", "train", ["a"], 1).release(delay_s=0.2)
    assert states(flow) == {"untaken": 1, "delayed": 1}
    assert flow.claim("p", "train", ["a"], 2, timeout_s=20.0).meta.sample_ids == ["x", "y"]


def test_a_reset_of_all_rows_starts_the_task_from_the_beginning(flow: DataPlaneClient) -> None:
    flow.claim("p", "train", ["a"], 1).commit()
    held = flow.claim("p", "train", ["a"], 1)
    assert flow.reset("p", "train") == 2
    again = flow.claim("p", "train", ["a"], 2, timeout_s=0)
    assert (again.meta.sample_ids, again.deliveries) == (["x", "y"], [1, 1])
    with pytest.raises(ClaimFencedError, match="reset"):
        held.commit()
    assert held.state == "fenced"
    again.release(reason="failed")
    assert flow.reset("p", "train") == 0
    assert flow.claim("p", "train", ["a"], 2, timeout_s=0).deliveries == [1, 1]


def test_leaving_a_block_whose_claim_was_fenced_raises(flow: DataPlaneClient) -> None:
    with pytest.raises(ClaimFencedError), flow.claim("p", "train", ["a"], 2):
        flow.reset("p", "train")
    with pytest.raises(ClaimTimeoutError):
        flow.claim("p", "train", ["a"], 3, timeout_s=0)
    assert states(flow) == {"untaken": 2}
