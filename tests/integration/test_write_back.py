"""Write-backs under a claim: seen at once, accepted only while the claim is open, and applied once."""

from __future__ import annotations

import pytest
import torch

from dataplane_client.client import Claim, DataPlaneClient
from dataplane_client.errors import (
    ClaimFencedError,
    InvalidArgumentError,
)


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with rows x and y and the tasks reward and train."""
    client.register_partition("p", ["a", "b", "c"], 2, ["reward", "train"])
    client.put_samples(["x", "y"], "p", {"a": torch.zeros(2)})
    return client


@pytest.fixture
def claim(flow: DataPlaneClient) -> Claim:
    return flow.claim("p", "reward", ["a"], 2)


@pytest.mark.parametrize("n_floats", [1, 50_000], ids=["small", "large"])
def test_what_is_written_under_a_claim_is_seen_at_once_and_the_claim_stays_open(
    flow: DataPlaneClient, claim: Claim, n_floats: int
) -> None:
    values = torch.randn(2, n_floats)
    claim.write({"b": values})
    assert torch.equal(flow.get_samples(["x", "y"], "p", ["b"])["b"], values)
    assert flow.claim("p", "train", ["b"], 2, timeout_s=0).meta.sample_ids == ["x", "y"]
    assert claim.state == "open"
    claim.write({"c": values})
    assert claim.commit() == 2


def test_under_a_claim_that_was_fenced_nothing_is_written(flow: DataPlaneClient, claim: Claim) -> None:
    flow.reset("p", "reward")
    for late in (claim.write, claim.commit, claim.write):
        with pytest.raises(ClaimFencedError):
            late({"b": torch.ones(2)})
        assert claim.state == "fenced"
    with pytest.raises(ClaimFencedError):
        claim.commit()
    assert flow.partition("p").fields[1].rows == 0


def test_columns_of_another_number_of_rows_are_refused(claim: Claim) -> None:
    with pytest.raises(InvalidArgumentError, match="3 rows"):
        claim.write({"b": torch.ones(3)})
    assert claim.state == "open"
