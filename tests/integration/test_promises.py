"""What rollouts must not suffer on their way: no silent loss, mix-up, cast or starvation."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tests.integration.conftest import DIRECT
from torch.nested import nested_tensor

from dataplane_client.client import DataPlaneClient
from dataplane_client.options import TransportChoice


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["a", "b"], 0, ["train", "eval"])
    return client


@pytest.mark.parametrize("way", ["shm", DIRECT], indirect=True)
def test_a_forked_child_and_its_parent_read_no_answer_of_each_other(
    flow: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    flow.put_samples([f"s{number}" for number in range(200)], "p", {"a": torch.arange(200)})
    code = f"""
import os
from dataplane_client import connect
client = connect({address!r}, transport={transport!r}, timeout_s=60.0)
client.server_status()
child = os.fork()
for number in range(100 if child else 0, 200 if child else 100):
    assert client.get_samples([f"s{{number}}"], "p", ["a"])["a"].tolist() == [number], number
if not child:
    client.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert client.partition("p").rows == 200
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("way", ["shm", DIRECT], indirect=True)
def test_a_claim_that_is_cancelled_after_a_fork_takes_no_rows(
    flow: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    code = f"""
import asyncio, os
import numpy as np
from dataplane_client import aio

async def train(client):
    return (await client.partition("p")).task("train")

async def main():
    async with aio.connect({address!r}, transport={transport!r}, timeout_s=100.0) as client:
        await client.server_status()
        parent_ends, in_parent = os.pipe()
        if not os.fork():
            os.close(in_parent)
            os.read(parent_ends, 1)
            os._exit(0)
        claim = asyncio.create_task(client.claim_meta("p", "train", ["a"], 1, timeout_s=200.0))
        await asyncio.sleep(0)  # it takes the connection that the child has, too
        while not (await train(client)).waiting_claims:
            await asyncio.sleep(0.01)
        claim.cancel()
        await asyncio.wait([claim])
        assert claim.cancelled()
        calls = 0
        while (await train(client)).waiting_claims and calls < 100:  # within the first ones, the server ends it
            calls += 1
            await asyncio.sleep(0.01)
        await client.put_samples(["s"], "p", {{"a": np.zeros(1)}})
        assert (await train(client)).untaken_rows == 1

asyncio.run(asyncio.wait_for(main(), 90.0))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def test_a_field_that_has_become_jagged_stays_jagged_where_all_rows_have_one_length(flow: DataPlaneClient) -> None:
    flow.put_samples(["x", "y"], "p", {"a": torch.arange(6.0).reshape(2, 3)})
    assert not flow.get_samples(["x", "y"], "p", ["a"])["a"].is_nested
    flow.put_samples(["z"], "p", {"a": nested_tensor([torch.arange(5.0)], layout=torch.jagged)})
    got = flow.get_samples(["x", "y"], "p", ["a"])["a"]
    assert got.is_nested
    assert [row.tolist() for row in got.unbind()] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    flow.clear_samples(["z"], "p")
    flow.put_samples(["w"], "p", {"a": torch.zeros(1, 3)})
    assert flow.get_samples(["w"], "p", ["a"])["a"].is_nested
    assert flow.partition("p").fields[0].kind == "jagged"


def test_a_dense_field_widens_where_dense_rows_of_another_width_come(flow: DataPlaneClient) -> None:
    flow.put_samples(["x"], "p", {"a": torch.ones(1, 2, 4)})
    flow.put_samples(["y"], "p", {"a": torch.ones(1, 5, 4)})
    got = flow.get_samples(["y", "x"], "p", ["a"])["a"]
    assert [tuple(row.shape) for row in got.unbind()] == [(5, 4), (2, 4)]
