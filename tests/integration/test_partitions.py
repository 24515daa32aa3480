"""Partitions as clients meet them: registered by every process, extended, closed, open to new fields, cleared by
use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import EndOfDataError, NotFoundError, PreconditionError
from dataplane_client.options import TransportChoice


@pytest.fixture
def other(address: str, transport: TransportChoice) -> Iterator[DataPlaneClient]:
    """A client of another process."""
    with connect(address, timeout_s=200.0, transport=transport) as client:
        yield client


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with fields a and b, and the tasks train and eval."""
    client.register_partition("p", ["a", "b"], 4, ["train", "eval"])
    return client


def put(client: DataPlaneClient, ids: Sequence[str], *fields: str) -> None:
    client.put_samples(ids, "p", {field: torch.zeros(len(ids)) for field in fields or ("a",)})


def test_what_a_registration_adds_is_there_at_once_and_progress_stays(
    flow: DataPlaneClient, other: DataPlaneClient
) -> None:
    put(flow, ["x"])
    held = flow.claim("p", "train", ["a"], 1)
    same = other.register_partition("p", ["a", "b"], 4, ["train", "eval"])
    assert (same.outcome, same) == ("unchanged", flow.partition("p"))
    added = other.register_partition("p", ["a", "c"], 9, ["train", "judge"], enums={"c": ["no", "yes"]})
    assert added.outcome == "extended"
    assert [field.name for field in added.fields] == ["a", "b", "c"]
    assert [task.task for task in added.tasks] == ["train", "eval", "judge"]
    assert (added.num_samples, added.enums) == (9, {"c": ("no", "yes")})
    assert held.commit({"c": torch.ones(1)}) == 1
    assert other.claim("p", "judge", ["a", "c"], 1).meta.sample_ids == ["x"]
    extended = other.extend_partition("p", fields=["tokens"], per_token_fields=["tokens"], consumer_tasks=["late"])
    assert (extended.fields[-1].name, extended.fields[-1].per_token, extended.num_samples) == ("tokens", True, 9)
    assert other.extend_partition("p", num_samples=10).num_samples == 10
    assert other.claim("p", "late", [], 1).meta.sample_ids == ["x"]
    with pytest.raises(NotFoundError, match="'nowhere'"):
        other.extend_partition("nowhere", fields=["x"])


def test_a_partition_without_a_task_is_warned_of_where_it_is_registered(client: DataPlaneClient) -> None:
    message = "partition 'p' has no task: nothing can claim its rows until extend_partition adds one"
    with pytest.warns(UserWarning, match=message) as caught:
        client.register_partition("p", ["a"], 0, [])
    assert caught[0].filename == __file__
    client.extend_partition("p", consumer_tasks=["train"])
    client.register_partition("p", ["a"], 0, [])  # has one by now
    put(client, ["x"])
    assert client.claim("p", "train", ["a"], 1).meta.sample_ids == ["x"]


def test_claims_of_every_kind_learn_of_the_end_of_data_at_once(
    flow: DataPlaneClient, threads: ThreadPoolExecutor
) -> None:
    put(flow, ["x", "y", "z"])
    flow.claim("p", "train", ["a"], 1).commit()
    waiting: list[Future[Any]] = [
        threads.submit(flow.claim, "p", "train", ["a"], 4),
        threads.submit(flow.claim_meta, "p", "train", ["a"], 4),
        threads.submit(flow.claim_shard, "p", "train", ["a"], 4, step=0, dp_rank=0, dp_world=2),
    ]
    eventually(lambda: flow.server_status().waiting_claims == 3)
    assert flow.close_partition("p") == 3
    for claim in waiting:
        with pytest.raises(EndOfDataError, match=r"2 rows .*'train', .*min_size 4") as caught:
            claim.result(200)
        assert isinstance(caught.value, EOFError)
        assert caught.value.details["left"] == "2"
    for blocking in (True, False):
        with pytest.raises(EndOfDataError, match="min_size=2"):
            flow.claim_meta("p", "train", ["a"], 4, blocking=blocking)
    assert flow.close_partition("p") == 0
    assert flow.partition("p").closed
    with flow.claim("p", "train", ["a"], 4, min_size=1) as rest:
        assert rest.meta.sample_ids == ["y", "z"]
    with pytest.raises(EndOfDataError, match="'train'"):
        flow.claim("p", "train", ["a"], 1)
    assert flow.check_consumption_status("p", ["train"])


def test_a_closed_partition_takes_no_new_rows_but_those_of_groups_that_are_reserved(flow: DataPlaneClient) -> None:
    put(flow, ["x"])
    with flow.reserve_group("p", "g", ["g1", "g2"]) as group:
        flow.close_partition("p")
        for create in (lambda: put(flow, ["x", "y"]), lambda: flow.reserve_group("p", "h", ["y"])):
            with pytest.raises(PreconditionError, match=r"'p' .*(sample 'y'|group 'h')") as caught:
                create()
            assert caught.value.reason == "PARTITION_CLOSED"
        put(flow, ["x"], "b")
        group.put(["g1", "g2"], {"a": torch.zeros(2)})
        group.commit()
    assert flow.claim("p", "train", ["a"], 4, min_size=3).meta.sample_ids == ["x", "g1", "g2"]
    with pytest.raises(NotFoundError, match="'nowhere'"):
        flow.close_partition("nowhere")
