"""A server for each test, and rows whose values name the row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration.conftest import ways
from torch.nested import nested_tensor

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.loader import ClaimLoader

Loader = Callable[..., ClaimLoader]
"""The fixture `loader`."""

FIELDS = ["tokens", "number", "text"]
GRACE_S = 20.0


@pytest.fixture(params=ways("shm"))
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(address: str) -> Iterator[DataPlaneClient]:
    with connect(address, timeout_s=200.0) as client:
        yield client


def announce(client: DataPlaneClient, num_samples: int) -> None:
    """Register partition p for this number of rows."""
    client.register_partition("p", [*FIELDS, "advantage"], num_samples, ["train"], per_token_fields=["tokens"])


def put(client: DataPlaneClient, numbers: Sequence[int]) -> None:
    """Put rows of these numbers: row 7 is s7, has 7 as all of its values, and 1 + 7 % 5 tokens."""
    tokens = nested_tensor([torch.full((1 + number % 5,), number) for number in numbers], layout=torch.jagged)
    text = np.array([{"number": number} for number in numbers], object)
    columns = {"tokens": tokens, "number": torch.tensor(numbers), "text": text}
    client.put_samples([f"s{number}" for number in numbers], "p", columns)


def fill(client: DataPlaneClient, count: int) -> None:
    """Register partition p for count rows and put rows 0 to count - 1."""
    announce(client, count)
    for first in range(0, count, 1000):
        put(client, range(first, min(first + 1000, count)))


def claimed(client: DataPlaneClient) -> int:
    """How many rows of p are claimed."""
    return client.partition("p").task("train").claimed_rows


@pytest.fixture
def loader(address: str) -> Iterator[Loader]:
    """Make a loader of partition p by its batch size and settings; it is closed at the end of the test."""
    with contextlib.ExitStack() as closing:

        def make(batch_size: int, **settings: Any) -> ClaimLoader:
            options = {"session_grace_s": GRACE_S, "timeout_s": 20.0}
            named = {"idle_timeout_s": 200.0, "client_options": options, **settings}
            made = ClaimLoader(address, "p", "train", FIELDS, batch_size, **named)
            closing.callback(made.close)
            return made

        yield make
