"""Write-backs under a claim: seen at once, accepted only while the claim is open, and applied once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dataplane_client.client import Claim, DataPlaneClient
from dataplane_client.errors import (
    ClaimFencedError,
    ClaimNotFoundError,
    InvalidArgumentError,
    NotFoundError,
    PreconditionError,
    ReplacedError,
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


@pytest.mark.parametrize("end", [Claim.commit, Claim.release], ids=["committed", "released"])
def test_under_a_claim_that_has_ended_nothing_is_written(
    flow: DataPlaneClient, claim: Claim, end: Callable[[Claim], int]
) -> None:
    other = flow.adopt_claim(claim.claim_id, claim.meta)
    end(claim)
    with pytest.raises(PreconditionError, match=claim.state):
        claim.write({"b": torch.ones(2)})
    with pytest.raises(ClaimNotFoundError):
        other.write({"b": torch.ones(2)})
    assert flow.partition("p").fields[1].rows == 0


@pytest.mark.parametrize("put_again", [False, True], ids=["cleared", "cleared and put again"])
def test_a_row_that_is_gone_is_not_written_to_and_not_created(
    flow: DataPlaneClient, claim: Claim, put_again: bool
) -> None:
    flow.clear_samples(["y"], "p")
    if put_again:
        flow.put_samples(["y"], "p", {"a": torch.ones(1)})
    with pytest.raises(ReplacedError if put_again else NotFoundError, match="'y'"):
        claim.write({"b": torch.ones(2)})
    assert flow.partition("p").rows == 1 + put_again
    assert flow.partition("p").fields[1].rows == 0
    assert claim.commit() == 1


def test_columns_of_another_number_of_rows_are_refused(claim: Claim) -> None:
    with pytest.raises(InvalidArgumentError, match=r"write under claim .* 3 rows"):
        claim.write({"b": torch.ones(3)})
    assert claim.state == "open"


@pytest.mark.fresh_server
def test_a_commit_that_is_repeated_by_its_name_answers_as_the_first_time(flow: DataPlaneClient, claim: Claim) -> None:
    other = flow.adopt_claim(claim.claim_id, claim.meta)
    assert claim.commit({"b": torch.tensor([1.0, 2.0])}, request_id="step 7") == 2
    assert other.commit({"b": torch.tensor([8.0, 9.0])}, request_id="step 7") == 2
    assert flow.get_samples(["x", "y"], "p", ["b"])["b"].tolist() == [1.0, 2.0]
    with pytest.raises(ClaimNotFoundError):
        flow.adopt_claim(claim.claim_id, claim.meta)


@pytest.mark.fresh_server
def test_the_story_of_a_sample_tells_who_wrote_what(flow: DataPlaneClient, claim: Claim) -> None:
    claim.write({"b": torch.ones(2)})
    claim.commit()
    story = flow.sample("p", "x")
    assert (story.resident, story.fields) == (True, ("a", "b"))
    assert [(task.task, task.state, task.deliveries) for task in story.tasks] == [
        ("reward", "consumed", 1),
        ("train", "untaken", 0),
    ]
    what = [event.what for event in story.events]
    assert [name for name in what if name != "ready"] == ["put", "claimed", "wrote_back", "committed"]
    wrote = story.events[what.index("wrote_back")]
    assert (wrote.claim_id, wrote.fields) == (claim.claim_id, ("b",))
    assert {event.who for event in story.events if event.what == "put"} == {flow._transport.options.caller}
