"""Our replay buffers are verl's own, of the installed verl, in everything but the waiting."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.integration.failpoints.lives import Lives
from tests.waiting import eventually

import dataplane_transfer_queue as tq
from dataplane_client.client import connect

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore"),  # of verl's imports
    pytest.mark.usefixtures("started"),
]

Make = Callable[..., Any]
SYNC, ASYNC = "DataPlaneReplayBuffer", "DataPlaneReplayBufferAsync"


@pytest.fixture
def make() -> Make:
    """Makes a buffer as verl's trainer makes a custom sampler."""
    pytest.importorskip("verl", reason="verl is not installed")
    load_extern_type = importlib.import_module("verl.utils.import_utils").load_extern_type

    def build(name: str, mode: str = "", threshold: int | None = None, strategy: str = "drop", **more: Any) -> Any:
        given: dict[str, Any] = {
            "trainer_mode": mode or ("sync" if name == SYNC else "separate_async"),
            "trainer_config": {},
            "max_off_policy_threshold": threshold,
            "max_off_policy_strategy": strategy,
            "sampler_kwargs": {},
            "refill_fn": lambda count: issue(
                *(f"fresh{number}" for number in range(count)), steps=12, status="finished"
            ),
        }
        return load_extern_type("pkg://dataplane_transfer_queue.verl", name)(**{**given, **more})

    return build


def issue(*uids: str, steps: int = 3, status: str = "pending", reward: float = 1.0) -> None:
    """Prompts of a step; those that have ended have two trajectories, of rewards that differ by `reward`."""
    for uid in uids:
        if status not in ("pending", "running"):
            scores = {"rm_scores": torch.tensor([[0.0], [reward]])}
            tq.kv_batch_put([f"{uid}_0_0", f"{uid}_1_0"], "train", scores, [{"status": "finished"}] * 2)
        tq.kv_put(uid, "train", tag={"is_prompt": True, "status": status, "global_steps": steps})


def left() -> set[str]:
    return set(tq.kv_list("train")["train"])


@pytest.mark.parametrize("name", [SYNC, ASYNC])
def test_a_sample_waits_for_prompts_that_end_and_removes_their_rows(make: Make, name: str) -> None:
    buffer = make(name, poll_interval=0.0)
    buffer.wait_s = 500.0  # so a listing comes because a prompt has ended
    issue("a", "b", "c")
    with ThreadPoolExecutor(1) as threads:
        sampled = threads.submit(buffer.sample, 3, "train", 2)
        issue("c", status="finished")
        issue("a", status="finished")
        meta, figures = sampled.result(60.0)
    assert (sorted(meta.keys), meta.partition_id, figures) == (["a_0_0", "a_1_0", "c_0_0", "c_1_0"], "train", {})
    assert left() == {"b", *meta.keys}


def test_a_sample_outlasts_a_durable_server_that_is_away_for_longer_than_a_wait(
    make: Make, durable: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    tq.close()
    monkeypatch.setenv("DATAPLANE_SERVER", durable.address)
    tq.init()
    buffer = make(ASYNC, poll_interval=0.0)
    buffer.wait_s = 2.0
    issue("a")
    with connect(durable.address) as client, ThreadPoolExecutor(1) as threads:
        sampled = threads.submit(buffer.sample, 3, "train", 1)
        eventually(lambda: client.server_status().waiting_claims == 1)
        durable.end()
        time.sleep(buffer.wait_s + 1.0)
        assert durable.begin() is None, durable.log
        issue("a", status="finished")
        assert sampled.result(200.0)[0].keys == ["a_0_0", "a_1_0"]
    tq.close()


def test_what_is_too_old_is_dropped_and_refilled(make: Make) -> None:
    buffer = make(ASYNC, threshold=1)
    issue("old", steps=3, status="finished")
    uids, figures = buffer.wait_for_sampleable(global_steps=12, partition_id="train", target_count=1)
    assert uids == {"fresh0"}
    assert figures["training/off_policy/evicted_samples"] == 1
    assert not {"old", "old_0_0", "old_1_0"} & left()


def test_a_wait_for_what_is_in_flight_ends_with_it(make: Make) -> None:
    buffer = make(ASYNC, threshold=2, strategy="wait")
    buffer.wait_s = 500.0
    issue("new", steps=3, status="finished")
    issue("slow", steps=2)
    with ThreadPoolExecutor(1) as threads:
        sampled = threads.submit(buffer.sample, 3, "train", 1)
        issue("slow", steps=2, status="finished")
        assert sampled.result(60.0)[0].keys == ["slow_0_0", "slow_1_0"]  # the oldest first


def test_groups_that_failed_or_teach_nothing_are_refilled(make: Make) -> None:
    buffer = make(ASYNC, sampler_kwargs={"filter_groups_metric": "reward"})
    issue("same", status="finished", reward=0.0)
    issue("failed", status="failure")
    meta, _ = buffer.sample(3, "train", 2)
    assert sorted(meta.keys) == ["fresh0_0_0", "fresh0_1_0", "fresh1_0_0", "fresh1_1_0"]
    assert buffer.get_sampleable_count(3, "train") == 0


@pytest.mark.parametrize(("name", "mode"), [(SYNC, "separate_async"), (ASYNC, "sync")])
def test_the_class_of_another_mode_is_refused_by_name(make: Make, name: str, mode: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is for trainer_mode .*not '{mode}'"):
        make(name, mode)
