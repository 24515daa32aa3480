"""Rows with a value for each token, as a rollout makes them."""

from __future__ import annotations

import pytest
import torch
from torch.nested import nested_tensor

from dataplane_client.client import DataPlaneClient

FIELDS = ["tokens", "logprobs", "experts", "reward"]
Columns = dict[str, torch.Tensor]


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with three per-token fields (experts: 8 a token in each of 2 layers), reward, and the task train."""
    client.register_partition("p", FIELDS, 4, ["train"], per_token_fields=FIELDS[:3])
    return client


def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return nested_tensor(rows, layout=torch.jagged)


def generated(lengths: list[int], seed: int = 0) -> Columns:
    """Random values of rows of so many tokens."""
    torch.manual_seed(seed)
    return {
        "tokens": jagged([torch.randint(0, 1 << 40, (n,)) for n in lengths]),
        "logprobs": jagged([torch.randn(n) for n in lengths]),
        "experts": jagged([torch.randint(0, 255, (n, 2, 8), dtype=torch.uint8) for n in lengths]),
    }


def assert_rows(got: object, expected: Columns) -> None:
    for name, rows in expected.items():
        for row, wanted in zip(got[name].unbind(), rows.unbind(), strict=True):  # type: ignore[index]
            assert torch.equal(row, wanted), name
