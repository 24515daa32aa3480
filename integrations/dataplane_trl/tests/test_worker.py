"""The rollout worker: what TRL's trainer gets, and what becomes of it when the trainer is done with it, or is not."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration.failpoints.lives import Lives

from dataplane_client.client import Claim, DataPlaneClient, connect
from dataplane_client.errors import EndOfDataError, InvalidArgumentError, PreconditionError
from dataplane_client.records.flow import FlowPolicy
from dataplane_trl import DataPlaneRolloutWorker, add_rollouts, put_rollouts, register_rollouts
from dataplane_trl._feed import Feed
from dataplane_trl.tests.conftest import sample
from dataplane_trl.tests.plain_trainer import Loader, PlainTrainer, name_of

NewWorker = Callable[..., DataPlaneRolloutWorker]
Put = Callable[..., list[str]]


def rows(client: DataPlaneClient) -> int:
    return client.partition("rollouts").rows


# -- what the trainer gets ---------------------------------------------------------------------------------------------


def test_a_sample_comes_back_as_it_was_put(client: DataPlaneClient, new_worker: NewWorker) -> None:
    began = time.time()
    given = sample("a", model_version=3)
    put_rollouts(client, "rollouts", [given])
    trainer = PlainTrainer(new_worker())
    got = trainer.worker.rollout_buffer.get(timeout=100.0)
    for name in ("input_ids", "completion_mask", "old_log_probs"):
        value: np.ndarray[tuple[int], np.dtype[np.generic]] = getattr(got, name)
        assert value.dtype == getattr(given, name).dtype
        assert value.tolist() == getattr(given, name).tolist()
    assert (got.prompt, got.completion, got.advantage) == (given.prompt, given.completion, given.advantage)
    assert (got.model_version, got.metrics) == (3, given.metrics)
    assert got.enqueued_at is not None
    assert began <= got.enqueued_at <= time.time()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"input_ids": [5, 6.5, 7]}, "input_ids must be a list of integers"),
        ({"old_log_probs": [0.0, "x", 0.0]}, "old_log_probs must be a list of numbers"),
        ({"input_ids": [5, 1 << 40, 7]}, "input_ids: entry 1 is 1099511627776; it must be a finite int32"),
        ({"old_log_probs": [0.0, 0.0, float("-inf")]}, "old_log_probs: entry 2 is -inf"),
        ({"completion_mask": [0, 0, 0]}, "completion_mask has no 1"),
        ({"advantage": float("nan")}, "the advantage is nan"),
        ({"metrics": {"reward": None}}, "metrics 'reward' must be a number, got None"),
        ({"metrics": None}, "metrics must be a mapping, got None"),
    ],
)
def test_a_sample_that_the_trainer_would_stumble_over_is_refused(
    client: DataPlaneClient, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"sample 1 of group 'g': {message}"):
        put_rollouts(client, "rollouts", [sample("a"), replace(sample("b"), **wrong)], group="g")
    assert rows(client) == 0


def test_a_version_that_its_producer_does_not_know_counts_as_0(client: DataPlaneClient, new_worker: NewWorker) -> None:
    """Before the first trainer has begun there is none."""
    samples = [sample("a"), replace(sample("b"), model_version=client.partition("rollouts").weight_version)]
    put_rollouts(client, "rollouts", samples)
    buffer = PlainTrainer(new_worker()).worker.rollout_buffer
    assert [buffer.get(timeout=100.0).model_version for _ in samples] == [1, 0]


def test_tensors_of_any_float_type_can_be_put(client: DataPlaneClient) -> None:
    logprobs: Any = torch.tensor([0.0, -0.5, -0.25], dtype=torch.bfloat16)
    put_rollouts(client, "rollouts", [replace(sample("a"), old_log_probs=logprobs)])
    assert rows(client) == 1


def test_samples_of_a_prompt_come_together_and_have_one_number(client: DataPlaneClient, new_worker: NewWorker) -> None:
    buffer = PlainTrainer(new_worker(claim_rows=2)).worker.rollout_buffer
    with client.reserve_group("rollouts", "slow") as slow:
        add_rollouts(slow, [sample("slow")])
        put_rollouts(client, "rollouts", [sample("a"), sample("a"), sample("a")], group="a")
        add_rollouts(slow, [sample("slow")])
    put_rollouts(client, "rollouts", [sample("b"), sample("b")])
    got = [buffer.get(timeout=100.0) for _ in range(7)]
    assert sorted(name for name, _ in groupby(map(name_of, got))) == ["a", "b", "slow"]
    numbers = [one.group_id for one in got]
    assert len(set(numbers)) == 3
    assert numbers == sorted(numbers, key=numbers.index)
    with pytest.raises(PreconditionError, match="'a'"):  # a producer that repeats a prompt
        put_rollouts(client, "rollouts", [sample("a")], group="a")


def test_samples_that_threads_add_after_one_has_failed_write_over_none(client: DataPlaneClient) -> None:
    with client.reserve_group("rollouts", "g") as group, ThreadPoolExecutor(4) as threads:
        add_rollouts(group, [sample("a")] * 3)
        group.fail(["g/1"])
        list(threads.map(lambda _: add_rollouts(group, [sample("b")]), range(20)))
    assert rows(client) == 22


def test_samples_can_be_added_after_others_were_refused(client: DataPlaneClient, new_worker: NewWorker) -> None:
    with client.reserve_group("rollouts", "g") as group:
        with pytest.raises(InvalidArgumentError, match="must have the same length"):
            add_rollouts(group, [replace(sample("a"), completion_mask=[1])])  # type: ignore[arg-type]
        add_rollouts(group, [sample("a"), sample("b")])
    buffer = PlainTrainer(new_worker()).worker.rollout_buffer
    assert [buffer.get(timeout=100.0).prompt for _ in range(2)] == [sample("a").prompt] * 2


def test_the_buffer_is_a_queue(client: DataPlaneClient, new_worker: NewWorker, put: Put) -> None:
    buffer = PlainTrainer(new_worker(claim_rows=3)).worker.rollout_buffer
    for waits in ({"timeout": 0.01}, {"block": False}):
        with pytest.raises(queue.Empty):
            buffer.get(**waits)
    names = put(["a", "b"])
    assert name_of(buffer.get()) == names[0]
    assert buffer.qsize() == 3
    buffer.put_nowait(sample("c"))
    assert [name_of(buffer.get(timeout=100.0)) for _ in range(4)] == [*names[1:], "c"]
    client.set_policies("rollouts", flow=FlowPolicy(max_rows=5))
    with pytest.raises(queue.Full):
        buffer.put_nowait(sample("d"))


def test_the_buffer_is_empty_while_a_durable_server_is_away(durable: Lives) -> None:
    with connect(durable.address, timeout_s=200.0) as client:
        register_rollouts(client)
        put_rollouts(client, "rollouts", [sample("a")])
        worker = PlainTrainer(DataPlaneRolloutWorker(durable.address, timeout_s=200.0)).worker
        durable.end()
        with pytest.raises(queue.Empty):
            worker.rollout_buffer.get(timeout=0.5)
        with pytest.raises(queue.Empty):
            worker.rollout_buffer.get(block=False)
        worker.check_health(stale_after_s=500.0)
        assert durable.begin() is None, durable.log
        assert name_of(worker.rollout_buffer.get(timeout=200.0)) == "a"
        worker.stop()


def test_the_end_of_the_data_is_an_error_since_trl_knows_no_end(client: DataPlaneClient, new_worker: NewWorker) -> None:
    buffer = PlainTrainer(new_worker()).worker.rollout_buffer
    client.close_partition("rollouts")
    with pytest.raises(EndOfDataError):
        buffer.get(timeout=100.0)


def test_a_worker_is_healthy_while_samples_come_or_a_producer_is_at_work(
    client: DataPlaneClient, new_worker: NewWorker
) -> None:
    worker = PlainTrainer(new_worker()).worker
    with pytest.raises(queue.Empty):
        worker.rollout_buffer.get(timeout=0.01)
    worker.check_health(stale_after_s=60.0)
    with client.reserve_group("rollouts", "g") as group:
        worker.check_health(stale_after_s=0.0)
        add_rollouts(group, [sample("a")])
    with pytest.raises(RuntimeError, match=r"'rollouts', and no producer .* 1 ready rows wanted"):
        worker.check_health(stale_after_s=0.0)


def test_the_worker_needs_its_callback_and_a_known_way_to_commit(new_worker: NewWorker) -> None:
    worker = new_worker()
    for call in (worker.start, worker.rollout_buffer.get, lambda: worker.check_health(1.0)):
        with pytest.raises(RuntimeError, match=r"callbacks=\[worker.callback\]"):
            call()
    with pytest.raises(InvalidArgumentError, match="'save', 'step'"):
        new_worker(commit_on="epoch")


def test_only_the_first_rank_uses_its_worker() -> None:
    worker = DataPlaneRolloutWorker("unix:///nowhere")
    args, state = SimpleNamespace(save_strategy="steps"), SimpleNamespace(global_step=0, is_world_process_zero=False)
    worker.callback.on_train_begin(args, state, None, train_dataloader=Loader())
    for event in ("on_substep_end", "on_step_end", "on_save"):
        getattr(worker.callback, event)(args, state, None)
    worker.stop()


# -- what becomes of samples -------------------------------------------------------------------------------------------


def test_only_samples_of_steps_are_done_with_though_more_were_handed_out(
    client: DataPlaneClient, new_worker: NewWorker, put: Put
) -> None:
    names = put("abcdefgh")
    trainer = PlainTrainer(new_worker(claim_rows=5))
    assert trainer.run(2) == names[:8]
    trainer.run_half()
    trainer.worker.stop()
    trainer.worker.stop()
    assert client.claims("rollouts").open == []
    assert PlainTrainer(new_worker(), step=2).run() == names[8:12]
    assert rows(client) == 8


CASES = [  # commit_on, save_strategy, steps run, saved after, steps after that; what a run from the checkpoint gets
    ("save", "steps", 2, True, 0, range(8, 20)),
    ("save", "steps", 2, True, 1, range(8, 20)),
    ("save", "steps", 2, False, 1, range(20)),
    ("step", "steps", 2, True, 1, range(12, 20)),
    ("save", "no", 2, False, 1, range(12, 20)),
]


@pytest.mark.parametrize(("commit_on", "strategy", "before", "saves", "after", "left"), CASES)
def test_a_run_that_resumes_gets_what_its_checkpoint_was_not_trained_on(
    client: DataPlaneClient,
    new_worker: NewWorker,
    put: Put,
    commit_on: str,
    strategy: str,
    before: int,
    saves: bool,
    after: int,
    left: range,
) -> None:
    names = put("abcdefghij")
    killed = PlainTrainer(new_worker(commit_on=commit_on, claim_rows=3), save_strategy=strategy)
    killed.run(before)
    if saves:
        killed.save()
    killed.run(after)
    killed.run_half()
    step = before if saves else 0
    resumed = PlainTrainer(new_worker(), step=step)  # the server does not know that the other one is dead
    assert resumed.run(len(left) // 4 - 1) == [names[index] for index in left[:-4]]
    assert rows(client) == len(left)


def test_samples_are_removed_when_the_trainer_saves(client: DataPlaneClient, new_worker: NewWorker, put: Put) -> None:
    put("abcdefghij")
    trainer = PlainTrainer(new_worker())
    trainer.run(2)
    assert rows(client) == 20
    trainer.save()
    assert rows(client) == 12
    trainer.run()
    trainer.save()
    assert rows(client) == 8
    assert [claim.rows for claim in client.claims("rollouts").open] == [8]


def test_samples_that_the_trainer_dropped_are_done_with_at_the_end_of_the_step(
    client: DataPlaneClient, new_worker: NewWorker, put: Put
) -> None:
    put("a", model_version=0)
    names = put("bcdef", model_version=1)
    trainer = PlainTrainer(new_worker(), max_staleness=0)
    assert trainer.run() == names[:4]
    trainer.save()
    assert rows(client) == 6


def test_the_server_drops_what_is_too_stale_by_versions_that_go_on_after_a_resume(
    client: DataPlaneClient, new_worker: NewWorker, put: Put
) -> None:
    trainer = PlainTrainer(new_worker(max_staleness=2), step=7)
    assert client.partition("rollouts").weight_version == 8
    trainer.worker.update_model_version(2)
    put("a", model_version=6)
    fresh = put("b", model_version=7)
    got = trainer.worker.rollout_buffer.get(timeout=100.0)
    assert (name_of(got), got.model_version) == (fresh[0], 0)
    assert rows(client) == 2


def test_samples_whose_claim_the_server_has_ended_are_not_handed_out_twice(
    client: DataPlaneClient, new_worker: NewWorker, put: Put
) -> None:
    names = put("abcdefgh")
    trainer = PlainTrainer(new_worker(claim_rows=5))
    got = trainer.run()
    client.reset("rollouts", "train")  # as when the session expires
    got += trainer.run()
    client.reset("rollouts", "train")
    got += trainer.run()
    assert sorted(got) == names[:12]
    trainer.save()
    assert rows(client) == 4


def test_samples_that_are_cleared_while_the_trainer_has_them_do_not_stop_it(
    client: DataPlaneClient, new_worker: NewWorker, put: Put
) -> None:
    names = put("abcdef")
    trainer = PlainTrainer(new_worker())
    trainer.run_half()
    client.clear_samples(names[:3], "rollouts")
    trainer.run()  # of three micro-batches
    trainer.save()
    assert rows(client) == len(names) - 6


class Clearing:
    """A client whose first claim has a row that is cleared as soon as it is granted."""

    def __init__(self, client: DataPlaneClient) -> None:
        self._client = client
        self.cleared: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def claim(self, *args: Any, **kwargs: Any) -> Claim:
        claim = self._client.claim(*args, **kwargs)
        if not self.cleared:
            self.cleared = claim.meta.sample_ids[:1]
            self._client.clear_samples(self.cleared, "rollouts")
        return claim


def test_samples_that_are_cleared_before_they_are_read_are_left_out(client: DataPlaneClient, put: Put) -> None:
    names = put("ab")
    feed = Feed(Clearing(client), "rollouts", "train", base=0, claim_rows=4, keeps=True)  # type: ignore[arg-type]
    assert [name_of(feed.next(timeout_s=10.0)) for _ in range(3)] == names[1:]
    feed.close()


def test_each_step_reports_the_seconds_that_the_trainer_waited_and_that_rows_took(
    new_worker: NewWorker, put: Put
) -> None:
    put("abcdef")
    worker = new_worker()
    PlainTrainer(worker).run(2)
    seconds = [worker.metrics_queue.get_nowait() for _ in range(2)]
    assert [sorted(step) for step in seconds] == [["data_plane/waiting_s", "data_plane/working_s"]] * 2
    assert seconds[0]["data_plane/working_s"] > 0


def test_trl_s_own_samples_can_be_put(client: DataPlaneClient, new_worker: NewWorker) -> None:
    theirs = SimpleNamespace(**{**vars(sample("theirs")), "input_ids": [1, 2, 3]})
    put_rollouts(client, "rollouts", [theirs])
    got = PlainTrainer(new_worker()).worker.rollout_buffer.get(timeout=100.0)
    assert got.input_ids.tolist() == [1, 2, 3]
