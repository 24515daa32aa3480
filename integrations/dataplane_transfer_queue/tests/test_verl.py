"""verl's replay buffer."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import dataplane_transfer_queue as tq
from dataplane_client.client import DataPlaneClient
from dataplane_transfer_queue.verl import DataPlaneReplayBuffer

pytestmark = pytest.mark.usefixtures("started")


def issue(uid: str, status: str = "pending") -> None:
    tq.kv_put(uid, "train", tag={"is_prompt": True, "status": status, "global_steps": 3})


def roll_out(uid: str, sessions: int, steps: int = 3, *, indexes: int = 1, status: str = "finished") -> None:
    """All trajectories of a prompt, the last session first; then the prompt has ended."""
    tq.kv_put(uid, "train", tag={"status": "running"})
    for session in reversed(range(sessions)):
        keys = [f"{uid}_{session}_{index}" for index in range(indexes)]
        fields = {"responses": torch.ones(indexes, 2)}
        tq.kv_batch_put(keys, "train", fields, [{"min_global_steps": steps, "max_global_steps": steps}] * indexes)
    tq.kv_put(uid, "train", tag={"status": status})


def test_a_sample_waits_for_prompts_that_have_ended_and_has_their_trajectories() -> None:
    buffer = DataPlaneReplayBuffer("what", verl="takes")
    for uid in ("a", "b_1", "c"):
        issue(uid)
    with ThreadPoolExecutor(1) as threads:
        sampled = threads.submit(buffer.sample, 5, "train", 2)
        roll_out("c", 11)
        assert buffer.get_sampleable_count(partition_id="train") == 1
        roll_out("b_1", 2, 4, indexes=2, status="failure")
        meta, figures = sampled.result()
    assert meta.keys[:12] == [*(f"c_{session}_0" for session in range(11)), "b_1_0_0"]
    assert meta.keys[12:] == ["b_1_0_1", "b_1_1_0", "b_1_1_1"]
    assert (meta.partition_id, meta.fields, meta.tags[0]["max_global_steps"]) == ("train", ["responses"], 3)
    assert tq.kv_batch_get_by_meta(meta).batch_size == torch.Size([15])
    assert figures == {
        "replay_buffer/prompts": 2,
        "replay_buffer/failed_prompts": 1,
        "replay_buffer/trajectories": 15,
        "replay_buffer/staleness_max": 2,
    }


def test_a_prompt_is_sampled_once_and_consumed_when_the_next_batch_is_asked_for(client: DataPlaneClient) -> None:
    buffer = DataPlaneReplayBuffer()
    for uid in ("a", "b"):
        issue(uid)
        roll_out(uid, 1)
    assert buffer.sample(3, "train", 1)[0].keys == ["a_0_0"]
    assert client.partition("train").tasks[0].claimed_rows == 1
    tq.kv_clear("a_0_0", "train")
    assert buffer.sample(3, "train", 1)[0].keys == ["b_0_0"]
    assert (client.partition("train").tasks[0].consumed_rows, buffer.get_sampleable_count()) == (1, 0)


def test_prompts_of_a_trainer_that_dies_in_its_step_can_be_sampled_again(address: str) -> None:
    issue("a")
    roll_out("a", 1)
    DataPlaneReplayBuffer().sample(3, "train", 1)
    tq.close()
    tq.init({"backend": {"RLDataPlane": {"address": address}}})
    assert DataPlaneReplayBuffer().sample(3, "train", 1)[0].keys == ["a_0_0"]


def test_waiting_takes_nothing() -> None:
    buffer = DataPlaneReplayBuffer()
    assert not buffer.wait_for_sampleable(partition_id="train", timeout_s=0.05)
    assert buffer.get_sampleable_count() == 0
    issue("a")
    roll_out("a", 1)
    assert buffer.wait_for_sampleable(3, "train", 1)
    assert buffer.get_sampleable_count() == 1


def test_partitions_are_sampled_apart_and_a_prompt_may_have_no_trajectory() -> None:
    buffer = DataPlaneReplayBuffer()
    tq.kv_put("v", "val", tag={"is_prompt": True, "status": "failure"})
    issue("a")
    roll_out("a", 1)
    meta, figures = buffer.sample(3, "val", 1)
    assert (meta.keys, meta.fields, figures["replay_buffer/staleness_max"]) == ([], [], 0)
    assert buffer.sample(3, "train", 1)[0].keys == ["a_0_0"]


def test_a_subclass_may_leave_failed_prompts_out() -> None:
    class OnlyWhole(DataPlaneReplayBuffer):
        statuses = ("finished",)

    issue("a", "failure")
    assert [DataPlaneReplayBuffer().get_sampleable_count(), OnlyWhole().get_sampleable_count()] == [1, 0]


def test_a_long_wait_is_logged_with_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    class Impatient(DataPlaneReplayBuffer):
        wait_s = 0.02

    issue("a")
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(1) as threads:
        sampled = threads.submit(Impatient().sample, 3, "train", 1)
        while "1 ready rows wanted" not in caplog.text:
            time.sleep(0.002)
        roll_out("a", 1)
        assert sampled.result()[0].keys == ["a_0_0"]
