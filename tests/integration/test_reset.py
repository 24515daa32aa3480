"""Rows that a task gets again: released with a delay or a reason, given up after too many deliveries, reset."""

from __future__ import annotations

import pytest
import torch
from tests.integration.conftest import Eventually

from dataplane_client.answers.descriptions import DeadLetter
from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ClaimFencedError, ClaimTimeoutError, InvalidArgumentError


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


def fail(client: DataPlaneClient, rows: int, times: int = 1) -> None:
    for _ in range(times):
        client.claim("p", "train", ["a"], rows, timeout_s=0).release(reason="out of memory")


def test_released_rows_are_held_back_for_the_delay(flow: DataPlaneClient, eventually: Eventually) -> None:
    flow.claim("p", "train", ["a"], 1).release(delay_s=0.2)
    assert states(flow) == {"untaken": 1, "delayed": 1}
    assert flow.claim("p", "train", ["a"], 2, timeout_s=20.0).meta.sample_ids == ["x", "y"]


@pytest.mark.parametrize("delay_s", [-1.0, float("nan"), float("inf"), 100_000.0], ids=str)
def test_a_delay_that_makes_no_sense_is_refused_and_the_claim_stays_open(flow: DataPlaneClient, delay_s: float) -> None:
    claim = flow.claim("p", "train", ["a"], 1)
    with pytest.raises(InvalidArgumentError, match="delay"):
        claim.release(delay_s=delay_s)
    assert (claim.state, states(flow)) == ("open", {"untaken": 1, "claimed": 1})


def test_rows_that_failed_as_often_as_they_may_are_dead_letters(flow: DataPlaneClient) -> None:
    fail(flow, 2)
    assert flow.dead_letters("p", "train") == []
    claim = flow.claim("p", "train", ["a"], 1)
    assert claim.deliveries == [2]
    claim.release(reason="no reward")
    assert flow.dead_letters("p", "train") == [DeadLetter("x", 2, "no reward")]
    assert states(flow) == {"untaken": 1, "dead": 1}
    assert flow.claim("p", "train", ["a"], 2, min_size=1).meta.sample_ids == ["y"]


def test_an_exception_in_the_block_is_the_reason(flow: DataPlaneClient) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), flow.claim("p", "train", ["a"], 2):
            raise ZeroDivisionError
    assert [letter.reason for letter in flow.dead_letters("p", "train")] == ["ZeroDivisionError"] * 2


def test_an_asked_for_reset_gives_dead_letters_another_chance(flow: DataPlaneClient) -> None:
    fail(flow, 2, times=2)
    assert states(flow) == {"dead": 2}
    assert flow.reset("p", "train", ["y", "unknown"]) == 1
    assert flow.claim("p", "train", ["a"], 1, timeout_s=0).deliveries == [1]


def test_a_reset_of_all_rows_starts_the_task_from_the_beginning(flow: DataPlaneClient) -> None:
    flow.claim("p", "train", ["a"], 1).commit()
    held = flow.claim("p", "train", ["a"], 1)
    assert flow.reset("p", "train") == 2
    again = flow.claim("p", "train", ["a"], 2, timeout_s=0)
    assert (again.meta.sample_ids, again.deliveries) == (["x", "y"], [1, 1])
    with pytest.raises(ClaimFencedError, match="reset"):
        held.commit()
    assert held.state == "fenced"
    assert again.commit() == 2


def test_a_reset_of_no_rows_changes_nothing(flow: DataPlaneClient) -> None:
    with flow.claim("p", "train", ["a"], 2):
        assert flow.reset("p", "train", []) == 0


def test_leaving_a_block_whose_claim_was_fenced_raises(flow: DataPlaneClient) -> None:
    with pytest.raises(ClaimFencedError), flow.claim("p", "train", ["a"], 2):
        flow.reset("p", "train")
    with pytest.raises(ClaimTimeoutError):
        flow.claim("p", "train", ["a"], 3, timeout_s=0)
    assert states(flow) == {"untaken": 2}
