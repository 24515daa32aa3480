"""Verbs of the client, each on a partition of its own, and how often the server has carried them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dataplane_client.client import Claim, DataPlaneClient
from dataplane_client.records.descriptions import TaskStatus

VALUE = torch.arange(40_000).to(torch.uint8)
"""What a row holds; it takes thousands of slices, and 40 s at 1 KB/s."""

Before = Callable[[DataPlaneClient, str], Any]
Call = Callable[[DataPlaneClient, str, Any, float], object]
Effects = Callable[[DataPlaneClient, str], int]


@dataclass(frozen=True)
class Verb:
    """call: with a client, a partition, what `before` returned, and a timeout in seconds. effects: how often the server
    has carried it out, in the partition. undone: whether it is undone when its caller does not take the answer.
    """

    call: Call
    effects: Effects
    before: Before = lambda _client, _partition: None
    undone: bool = False


def prepare(client: DataPlaneClient, partition: str) -> None:
    """A partition with one row of one token, and its value."""
    client.register_partition(partition, ["tokens", "value"], 0, ["train"], per_token_fields=["tokens"])
    columns = {"tokens": torch.nested.as_nested_tensor([torch.zeros(1)], layout=torch.jagged), "value": VALUE[None]}
    client.put_samples(["row"], partition, columns)


def _task(client: DataPlaneClient, partition: str) -> TaskStatus:
    return client.partition(partition).task("train")


def _claimed(client: DataPlaneClient, partition: str) -> Claim:
    return client.claim(partition, "train", ["tokens"], 1)


def _open_session(client: DataPlaneClient, partition: str) -> None:
    _claimed(client, partition).release()


def _read(client: DataPlaneClient, partition: str, _before: object, timeout_s: float) -> None:
    found = client.get_samples(["row"], partition, ["value"], timeout_s=timeout_s)["value"][0]
    assert torch.equal(found, VALUE)


VERBS = {
    "put": Verb(
        lambda client, p, _, s: client.put_samples(["new"], p, {"value": VALUE[None]}, timeout_s=s),
        lambda client, p: client.partition(p).rows_put_total - 1,
    ),
    "append": Verb(
        lambda client, p, _, s: client.append_tokens(["row"], p, {"tokens": torch.ones(1, 1)}, timeout_s=s),
        lambda client, p: (client.sample(p, "row").sequence_length or 0) - 1,
    ),
    "read": Verb(_read, lambda client, p: int(client.partition(p).read_rows_total > 0)),
    "claim": Verb(
        lambda client, p, _, s: client.claim(p, "train", ["tokens"], 1, timeout_s=s),
        lambda client, p: _task(client, p).claimed_rows,
        _open_session,
        undone=True,
    ),
    "commit": Verb(
        lambda _client, _p, claim, s: claim.commit({"value": VALUE[None]}, timeout_s=s),
        lambda client, p: _task(client, p).consumed_rows_total,
        _claimed,
    ),
    "release": Verb(
        lambda _client, _p, claim, s: claim.release(timeout_s=s),
        lambda client, p: _task(client, p).ended_deliveries.get("released", 0),
        _claimed,
    ),
    "reserve": Verb(
        lambda client, p, _, s: client.reserve_group(p, "g", ["g0"], timeout_s=s),
        lambda client, p: client.partition(p).open_groups,
        _open_session,
        undone=True,
    ),
    "clear": Verb(
        lambda client, p, _, s: client.clear_samples(None, p, timeout_s=s),
        lambda client, p: client.partition(p).rows_cleared_total,
    ),
    "extend": Verb(
        lambda client, p, _, s: client.extend_partition(p, fields=["more"], timeout_s=s),
        lambda client, p: len(client.partition(p).fields) - 2,
    ),
}
