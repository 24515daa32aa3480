"""A call whose answer is lost is repeated, and applied once: what others did meanwhile is not undone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
from tests.integration.faults.proxy import FaultProxy
from tests.waiting import eventually

from dataplane_client.client import Claim, DataPlaneClient
from dataplane_client.errors import ClaimTimeoutError, DeadlineError, NotFoundError, UnavailableError

T = TypeVar("T")
LoseAnswer = Callable[[Callable[[], T], Callable[[], object], Callable[[], object]], T]


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["a", "b"], 4, ["train"])
    client.put_samples(["w", "x", "y", "z"], "p", {"a": torch.zeros(4)})
    return client


@pytest.fixture
def lose_answer(proxy: FaultProxy, threads: ThreadPoolExecutor) -> LoseAnswer[object]:
    """Make a call whose first answer is lost; meanwhile, once it has taken effect, something else happens."""

    def lose(call: Callable[[], object], applied: Callable[[], object], meanwhile: Callable[[], object]) -> object:
        proxy.swallow = {"answers"}
        future: Future[object] = threads.submit(call)
        eventually(applied)
        meanwhile()
        assert not future.done()
        proxy.reset_connections()
        return future.result(120)

    return lose


def value(client: DataPlaneClient, sample: str) -> float:
    return float(client.get_samples([sample], "p", ["a"])["a"][0])


def test_a_put_is_applied_once(flow: DataPlaneClient, shaky: DataPlaneClient, lose_answer: LoseAnswer[object]) -> None:
    lose_answer(
        lambda: shaky.put_samples(["x", "new"], "p", {"a": torch.ones(2)}),
        lambda: value(flow, "x") == 1.0,
        lambda: (flow.put_samples(["x"], "p", {"a": torch.full((1,), 2.0)}), flow.clear_samples(["new"], "p")),
    )
    assert value(flow, "x") == 2.0
    assert (flow.partition("p").rows, flow.partition("p").rows_put_total) == (4, 5)


def test_a_claim_gets_the_same_rows(
    flow: DataPlaneClient, shaky: DataPlaneClient, lose_answer: LoseAnswer[object]
) -> None:
    with pytest.raises(ClaimTimeoutError):
        shaky.claim("p", "train", ["b"], 1, timeout_s=0)  # opens the session, whose answer is not to be lost
    claims: list[Claim] = []
    lose_answer(
        lambda: claims.append(shaky.claim("p", "train", ["a"], 2)),
        lambda: flow.partition("p").task("train").claimed_rows == 2,
        lambda: claims.append(flow.claim("p", "train", ["a"], 2)),
    )
    assert [claim.meta.sample_ids for claim in claims] == [["y", "z"], ["w", "x"]]
    assert flow.partition("p").task("train").claimed_rows == 4


def test_a_commit_is_applied_once_and_answers_as_the_first_time(
    flow: DataPlaneClient, shaky: DataPlaneClient, lose_answer: LoseAnswer[object]
) -> None:
    claim = shaky.claim("p", "train", ["a"], 2)
    consumed = lose_answer(
        lambda: claim.commit({"b": torch.ones(2)}),
        lambda: flow.partition("p").task("train").consumed_rows == 2,
        lambda: flow.put_samples(["w"], "p", {"b": torch.full((1,), 5.0)}),
    )
    assert (consumed, claim.state) == (2, "committed")
    assert flow.get_samples(["w", "x"], "p", ["b"])["b"].tolist() == [5.0, 1.0]


def test_a_commit_that_was_not_answered_in_time_can_be_made_again(
    flow: DataPlaneClient, shaky: DataPlaneClient, proxy: FaultProxy
) -> None:
    claim, group = shaky.claim("p", "train", ["a"], 2), shaky.reserve_group("p", "g", ["n"])
    group.put(["n"], {"a": torch.zeros(1)})
    proxy.swallow = {"answers"}
    while flow.partition("p").open_groups or not flow.partition("p").task("train").consumed_rows:
        for held in (claim, group):
            with pytest.raises((DeadlineError, UnavailableError)):
                held.commit(timeout_s=0.5)
    proxy.reset_connections()
    assert (claim.commit(), claim.state, group.commit(), group.state) == (2, "committed", 1, "committed")


def test_giving_up_that_was_not_answered_in_time_can_be_done_again(
    flow: DataPlaneClient, shaky: DataPlaneClient, proxy: FaultProxy
) -> None:
    claim, group = shaky.claim("p", "train", ["a"], 2), shaky.reserve_group("p", "g", ["n"])
    partial = shaky.reserve_group("p", "partial", ["k", "l", "m"])
    ends: list[Callable[[float], int]] = [
        lambda timeout_s: claim.release(reason="why", delay_s=1.0, timeout_s=timeout_s),
        lambda timeout_s: group.abort("why", timeout_s=timeout_s),
        lambda timeout_s: partial.fail(["l", "m"], "why", timeout_s=timeout_s),
    ]
    proxy.swallow = {"answers"}
    while flow.partition("p").task("train").claimed_rows or flow.partition("p").rows != 5:
        for end in ends:
            with pytest.raises((DeadlineError, UnavailableError)):
                end(0.5)
    proxy.reset_connections()
    assert [end(120.0) for end in ends] == [2, 1, 2]
    assert (claim.state, group.state, partial.meta.sample_ids) == ("released", "aborted", ["k"])
    with pytest.raises(NotFoundError):
        partial.fail(["l"], "why")


def test_a_clear_does_not_hit_rows_that_were_put_meanwhile(
    flow: DataPlaneClient, shaky: DataPlaneClient, lose_answer: LoseAnswer[object]
) -> None:
    cleared = lose_answer(
        lambda: shaky.clear_samples(None, "p"),
        lambda: flow.partition("p").rows == 0,
        lambda: flow.put_samples(["x"], "p", {"a": torch.ones(1)}),
    )
    assert cleared == 4
    assert flow.partition("p").rows == 1
