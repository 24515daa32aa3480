"""Clients, groups, metas and loaders as arguments of other processes, as Ray actors and spawned workers take them."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import pytest
import torch
from tests.forked import FORKS, forking

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, Group, connect
from dataplane_client.errors import ClosedError, DataPlaneError, PreconditionError
from dataplane_client.loader import ClaimLoader
from dataplane_client.options import TransportChoice
from dataplane_client.records.meta import KVBatchMeta

ROUND_TRIPS = {"pickle": pickle, "cloudpickle": cloudpickle}


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["x"], 0, ["train"])
    return client


def sent(value: Any, by: Any = pickle) -> Any:
    return pickle.loads(by.dumps(value))  # noqa: S301  # made just now


def work(client: DataPlaneClient, again: DataPlaneClient, group: Group, loader: ClaimLoader, pipe: Connection) -> None:
    """What a worker does with its arguments, in a process that has no connection yet."""
    group.put(["g0"], {"x": torch.ones(1)})
    meta = client.put_samples(["a"], "p", {"x": torch.zeros(1)})
    shares = client._session is again._session
    pipe.send((meta, client.target, client.transport, shares, repr(loader)))
    pipe.recv()
    client.close()


@FORKS
@pytest.mark.parametrize("way", ["shm"], indirect=True)
@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.long)])
def test_another_process_gets_clients_groups_and_loaders_as_arguments(
    flow: DataPlaneClient, address: str, transport: TransportChoice, method: str
) -> None:
    context: Any = forking() if method == "forkserver" else multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    group = flow.reserve_group("p", "g", ["g0"])
    loader = ClaimLoader(address, "p", "train", ["x"], 1)
    process = context.Process(target=work, args=(flow, flow, group, loader, theirs))
    process.start()
    meta, *rest = pipe.recv()
    assert rest == [address, transport, True, f"<ClaimLoader {address} p/train batches of 1 with x>"]
    assert flow.server_status().sessions == 1  # that of the group; the worker needs none to put
    assert flow.get_data(meta)["x"].tolist() == [0.0]
    assert group.commit() == 1
    pipe.send("done")
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize("way", ["shm"], indirect=True)
@pytest.mark.parametrize("by", ROUND_TRIPS)
def test_a_pickled_client_is_connected_by_its_first_call_and_shared_in_its_process(
    flow: DataPlaneClient, by: str
) -> None:
    copies = [sent(flow, ROUND_TRIPS[by]) for _ in range(2)]
    assert copies[0]._transport is copies[1]._transport is not flow._transport
    assert copies[0]._transport._opened_grpc is None
    assert (copies[0].target, copies[0]._transport.options) == (flow.target, flow._transport.options)
    claimed = copies[0].claim
    flow.put_samples(["a"], "p", {"x": torch.zeros(1)})
    with claimed("p", "train", ["x"], 1) as claim:
        assert claim.meta.sample_ids == ["a"]
    copies[0].close()
    with pytest.raises(ClosedError):
        copies[1].partitions()
    fresh = sent(flow)
    assert fresh.partition("p").rows == 1
    fresh.close()


@pytest.mark.parametrize("way", ["unix"], indirect=True)
def test_threads_that_unpickle_at_once_share_one_connection(flow: DataPlaneClient) -> None:
    packed, together = pickle.dumps(flow), threading.Barrier(16)

    def use() -> DataPlaneClient:
        together.wait(200)
        client: DataPlaneClient = pickle.loads(packed)  # noqa: S301  # made just now
        client.partitions()
        return client

    with ThreadPoolExecutor(16) as threads:
        clients = [future.result(200) for future in [threads.submit(use) for _ in range(16)]]
    assert len({id(client._transport) for client in clients}) == 1
    clients[0].close()


@pytest.mark.parametrize("way", ["shm"], indirect=True)
def test_an_asynchronous_client_is_unpickled_without_an_event_loop(
    flow: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    async def packed() -> bytes:
        async with aio.connect(address, transport=transport) as client:
            return pickle.dumps(client)

    client: aio.AsyncDataPlaneClient = pickle.loads(asyncio.run(packed()))  # noqa: S301  # made just now

    async def used() -> int:
        async with client:
            return (await client.partition("p")).rows

    assert asyncio.run(used()) == 0


@pytest.mark.parametrize("way", ["unix"], indirect=True)
def test_a_group_can_be_filled_and_ended_elsewhere_and_belongs_to_its_first_object(flow: DataPlaneClient) -> None:
    group = flow.reserve_group("p", "g", ["g0", "g1"])
    elsewhere: Group = sent(group)
    elsewhere.put(["g0", "g1"], {"x": torch.zeros(2)})
    del elsewhere
    assert flow.sample("p", "g0").hidden
    assert sent(group).commit() == 2
    with pytest.raises(DataPlaneError, match="finished"):
        group.commit()
    with pytest.raises(DataPlaneError, match="is not open"):
        pickle.dumps(group)


@pytest.mark.parametrize("way", ["unix"], indirect=True)
@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps], ids=ROUND_TRIPS)
def test_what_belongs_to_its_process_is_not_pickled_and_says_what_to_do(
    flow: DataPlaneClient, address: str, dumps: Callable[[object], object]
) -> None:
    flow.put_samples(["a"], "p", {"x": torch.zeros(1)})
    with flow.claim("p", "train", ["x"], 1) as claim:
        with pytest.raises(PreconditionError, match=r"detach\(\) .*adopt_claim"):
            dumps(claim)
        assert sent(claim.meta) == claim.meta
    with ClaimLoader(address, "p", "train", ["x"], 1) as loader:
        iterator = iter(loader)
        assert repr(iterator) == "<ClaimIterator p/train 0 batches prefetched open>"
        with pytest.raises(PreconditionError, match="ClaimLoader"):
            dumps(iterator)
    closed = connect(address)
    closed.close()
    with pytest.raises(ClosedError, match=address):
        dumps(closed)


@pytest.mark.parametrize("way", ["unix"], indirect=True)
def test_a_detached_claim_is_adopted_by_who_gets_its_id_and_meta(flow: DataPlaneClient, address: str) -> None:
    flow.put_samples(["a"], "p", {"x": torch.zeros(1)})
    claim = flow.claim("p", "train", ["x"], 1)
    claim_id, meta = sent((claim.detach(), claim.meta))
    assert isinstance(meta, KVBatchMeta)
    with pytest.raises(PreconditionError):
        claim.commit()
    with connect(address) as other:
        adopted = other.adopt_claim(claim_id, meta)
        del claim
        assert [row.sample_id for row in adopted.provenance()] == ["a"]
        assert adopted.commit() == 1
        adopted.meta.generations = None
        with pytest.raises(PreconditionError, match="generations"):
            adopted.provenance()
