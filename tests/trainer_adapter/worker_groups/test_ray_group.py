"""Workers as Ray actors, on a cluster of one node; see gloo_worker.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer_adapter.worker_groups.gloo_worker import GlooWorker

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor
from trainer_adapter.worker_groups import RayGroupOptions, RayWorkerGroup, WorkerFailed, _ray_group
from trainer_adapter.worker_groups._ray_waiting import wait_for_results

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]
ANOTHER_ACTOR = pytest.mark.soak
"""An actor takes 5 s of a core to start; `make test-soak` has the time."""
TWO_CPUS = RayGroupOptions(num_workers=2, gpus_per_worker=0, start_timeout_s=400, call_timeout_s=400, failure_grace_s=1)


@pytest.fixture(scope="module")
def start_limits() -> list[float]:
    """How long each step of the pair's start may take."""
    return []


@pytest.fixture(scope="module")
def pair(ray_cluster: None, start_limits: list[float]) -> Iterator[RayWorkerGroup]:
    """Two data-parallel ranks."""

    def wait(*arguments: Any, **limits: Any) -> list[Any]:
        start_limits.append(limits["timeout_s"])
        return wait_for_results(*arguments, **limits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ray_group, "wait_for_results", wait)
        group = RayWorkerGroup(GlooWorker, {}, TWO_CPUS)
    yield group
    group.shutdown()


def test_ranks_find_each_other_and_know_their_places(pair: RayWorkerGroup) -> None:
    found = ray.get(pair.start("environment"))
    assert [(e["RANK"], e["WORLD_SIZE"], e["LOCAL_RANK"]) for e in found] == [("0", "2", "0"), ("1", "2", "1")]
    assert {e["OMP_NUM_THREADS"] for e in found} == {"1"}
    assert len({(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in found}) == 1
    assert pair.dp_size == 2
    assert pair.is_driver
    assert pair.run_everywhere("sum_of_ranks") == 1.0


def test_the_steps_of_a_start_share_one_deadline(pair: RayWorkerGroup, start_limits: list[float]) -> None:
    address, start, layout = start_limits
    assert TWO_CPUS.start_timeout_s >= address > start > layout


def test_each_rank_works_on_its_shard_and_results_come_by_rank(pair: RayWorkerGroup) -> None:
    lengths = torch.tensor([1, 2])
    shards = [batch(input_ids=torch.full((2, 3), n), input_lengths=lengths) for n in (5, 7)]
    shards[0].micro_batch_indices = shards[1].micro_batch_indices = [[[0, 1], [1, 2]]]
    found = pair.run_on_shards("get_logprobs", {"data": shards}, micro_batch_size=None)
    assert [result["logprobs"].tolist() for result in found] == [[[n] * 3, [2 * n] * 3] for n in (5.0, 7.0)]
    assert [result["rank"].tolist() for result in found] == [[0, 0], [1, 1]]
    assert [result["microbatches"].tolist() for result in found] == [[2, 2], [2, 2]]
    assert torch.equal(shards[0]["input_ids"], torch.full((2, 3), 5))


def test_columns_of_every_kind_arrive(pair: RayWorkerGroup) -> None:
    half = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    images = PackedTensor([torch.ones(2, 3)], 0)
    shard = batch(half=half, images=images, text=["a"], flag=torch.tensor([True]))
    found = pair.run_on_shards("dtypes", {"data": [shard, shard]})
    assert found == [{"half": "bfloat16", "flag": "bool"}] * 2
    echo = pair.run_on_shards("echo", {"data": [shard, shard]})[1]
    assert torch.equal(echo["half"], half)
    assert echo["images"].as_tensor().tolist() == [[1.0] * 3] * 2
    assert echo["text"] == ["a"]


def test_a_rank_that_fails_alone_is_named_and_the_group_is_broken_but_gives_its_place_back(
    pair: RayWorkerGroup,
) -> None:
    began, told = time.monotonic(), r"rank 1 failed: KeyError: .*lost it.* \(rank\(s\) 0 did not finish\)"
    with pytest.raises(WorkerFailed, match=told) as failed:
        pair.run_everywhere("fail_alone", rank=1, others_wait=True)
    assert failed.value.rank == 1
    assert isinstance(failed.value.__cause__, KeyError)
    assert time.monotonic() - began < 200  # the collective waits for 300 s
    with pytest.raises(RuntimeError, match="fail_alone: rank 1"):
        pair.run_everywhere("nothing")
    before = reserved()
    assert not pair.shutdown()
    assert reserved() == before - 1
    with pytest.raises(RuntimeError):
        pair.start("nothing")


@ANOTHER_ACTOR
def test_ranks_of_a_broken_group_that_have_answered_shut_down_before_they_are_killed(tmp_path: Path) -> None:
    group = RayWorkerGroup(GlooWorker, {"closed": str(tmp_path)}, replace(TWO_CPUS, failure_grace_s=200))
    with pytest.raises(WorkerFailed):
        group.run_everywhere("fail_alone", rank=1, others_wait=False)
    assert not group.shutdown()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


@pytest.fixture(scope="module")
def replicas(ray_cluster: None) -> Iterator[RayWorkerGroup]:
    """Two tensor-parallel ranks."""
    group = RayWorkerGroup(GlooWorker, {"tp_size": 2}, TWO_CPUS)
    yield group
    group.shutdown()


@ANOTHER_ACTOR
def test_replicas_work_on_one_shard_and_their_leader_speaks(replicas: RayWorkerGroup) -> None:
    assert replicas.dp_size == 1
    shard = batch(input_ids=torch.full((2, 1), 4))
    (found,) = replicas.run_on_shards("seen", {"data": [shard]})
    assert found["global_loss"].tolist() == [16.0]  # 8 on each rank
    assert found["all_mb_metrics"]["rank"] == [0]


@ANOTHER_ACTOR
def test_a_rank_that_is_killed_is_named(replicas: RayWorkerGroup) -> None:
    with pytest.raises(WorkerFailed, match=r"rank 1 .*ActorDiedError"):
        replicas.run_everywhere("be_killed", rank=1)
    assert not replicas.shutdown()


def test_a_method_that_lasts_too_long_is_reported_with_its_ranks() -> None:
    sleeping = ray.remote(lambda: time.sleep(60)).options(num_cpus=0).remote()
    with pytest.raises(WorkerFailed, match=r"nap: rank\(s\) 1 .*0.2 s"):
        wait_for_results([ray.put(None), sleeping], "nap", timeout_s=0.2, grace_s=1)
    ray.cancel(sleeping, force=True)


@ANOTHER_ACTOR
def test_workers_that_cannot_be_made_leave_nothing_behind() -> None:
    before = reserved()
    with pytest.raises(ValueError, match="rank 0 does not want to be made"):
        RayWorkerGroup(GlooWorker, {"unwilling_rank": 0}, RayGroupOptions(num_workers=1, gpus_per_worker=0))
    assert reserved() == before


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (RayGroupOptions(2, gpus_per_worker=0, cpus_per_worker=5, placement_timeout_s=0.2), "2 workers of 5 CPU each"),
        (RayGroupOptions(1, placement_timeout_s=0.2), "1 workers of 1 GPU, 1 CPU each"),
    ],
)
def test_a_cluster_without_room_is_reported_in_time(options: RayGroupOptions, asked: str) -> None:
    before = reserved()
    with pytest.raises(TimeoutError, match=f"{asked} .*0.2 s; .*8 CPU"):
        RayWorkerGroup(GlooWorker, {}, options)
    assert reserved() == before


def batch(**columns: Any) -> BatchedDataDict[Any]:
    return BatchedDataDict(columns)


def reserved() -> int:
    """Placement groups that hold, or wait for, a part of the cluster."""
    return sum(group["state"] != "REMOVED" for group in ray.util.placement_group_table().values())
