"""The threads that exchange weights outlive a server that is away for a while."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

from tests.waiting import eventually
from torch import nn

from async_weights import WeightInbox, WeightSender
from dataplane_client.errors import NotFoundError, UnavailableError


def test_a_server_that_is_away_ends_neither_side(tmp_path: Path) -> None:
    away_and_then_at_its_end = [UnavailableError("away"), NotFoundError("the partition is dropped")]
    client = Mock()
    client.claim.side_effect = client.put_samples.side_effect = away_and_then_at_its_end
    WeightSender(client).join()
    assert client.claim.call_count == 2
    WeightInbox(client, nn.Linear(1, 1), tmp_path)
    eventually(lambda: client.put_samples.call_count == 2)
