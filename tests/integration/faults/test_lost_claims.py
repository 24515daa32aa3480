"""Claims whose answer nobody takes: their rows go back to the task (of a shard: to their step), as if not delivered.
Likewise reservations: their groups are removed, as if not tried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import torch
from tests.integration.faults.proxy import FaultProxy
from tests.waiting import soon

from dataplane_client import aio
from dataplane_client.client import Claim, DataPlaneClient
from dataplane_client.errors import DataPlaneError


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with rows x, y and z."""
    client.register_partition("p", ["a"], 3, ["train"])
    client.put_samples(["x", "y", "z"], "p", {"a": torch.zeros(3)})
    return client


def given_up(client: DataPlaneClient, how: str = "abandoned") -> bool:
    """Whether two rows were delivered, never taken, and are there again."""
    status = client.partition("p").task("train")
    return (status.untaken_rows, status.ended_deliveries.get(how)) == (2, 2)


def claimed(client: DataPlaneClient) -> int:
    return client.partition("p").task("train").claimed_rows


def repeat_until(holds: Callable[[DataPlaneClient], bool], client: DataPlaneClient, call: Callable[[], object]) -> None:
    """Make a call whose answer does not come in time, until one has reached the server and something holds there."""
    deadline = time.monotonic() + 200.0
    while not holds(client):
        assert time.monotonic() < deadline, "it never happened"
        with pytest.raises(DataPlaneError):
            call()


def test_a_shard_whose_answer_does_not_come_in_time_stays_with_its_step_and_can_be_asked_for_again(
    flow: DataPlaneClient, shaky: DataPlaneClient, proxy: FaultProxy
) -> None:
    held = shaky.claim("p", "train", ["a"], 1)
    proxy.swallow = {"answers"}

    def claim_shard(timeout_s: float) -> Claim:
        return shaky.claim_shard("p", "train", ["a"], 2, step=0, dp_rank=0, dp_world=1, timeout_s=timeout_s)

    repeat_until(lambda client: claimed(client) == 3, flow, lambda: claim_shard(0.1))
    proxy.reset_connections()
    again = claim_shard(120.0)
    assert (again.meta.sample_ids, again.deliveries) == (["y", "z"], [1, 1])
    assert (again.commit(), held.commit()) == (2, 1)


@pytest.mark.parametrize("ended", ["abandoned", "released"], ids=["made", "adopted"])
async def test_rows_of_a_claim_that_is_cancelled_go_back(
    flow: DataPlaneClient, async_shaky: aio.AsyncDataPlaneClient, proxy: FaultProxy, ended: str
) -> None:
    held = await async_shaky.claim("p", "train", ["a"], 1)
    detached = flow.claim("p", "train", ["a"], 2) if ended == "released" else None
    proxy.swallow = {"answers"}
    if detached is None:
        claim = asyncio.ensure_future(async_shaky.claim("p", "train", ["a"], 2))
    else:
        claim = asyncio.ensure_future(async_shaky.adopt_claim(detached.detach(), detached.meta))
    last = ("claimed" if detached is None else "adopted", 3)
    await soon(lambda: (flow.sample("p", "z").events[-1].what, claimed(flow)) == last)
    claim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claim
    await soon(lambda: given_up(flow, ended))
    proxy.reset_connections()
    assert await held.commit() == 1


async def test_a_reservation_that_is_cancelled_is_no_failed_generation(
    flow: DataPlaneClient, async_shaky: aio.AsyncDataPlaneClient, proxy: FaultProxy
) -> None:
    held = await async_shaky.reserve_group("p", "held")  # opens the session
    proxy.swallow = {"answers"}
    reservation = asyncio.ensure_future(async_shaky.reserve_group("p", "g", ["n"], max_regenerations=0))
    await soon(lambda: flow.partition("p").open_groups == 2)
    reservation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reservation
    proxy.reset_connections()
    await soon(lambda: flow.partition("p").open_groups == 1)
    group = await async_shaky.reserve_group("p", "g", ["n"], max_regenerations=0)
    assert (await group.abort(), await held.abort()) == (1, 0)
