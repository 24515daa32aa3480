"""The trainer of the asynchronous loop: claims whole groups as soon as enough are there, and never waits for a
generator in particular.

torchrun starts one process for each rank; the driver alone claims and commits. The policy of the task bounds how stale
the rollouts of a step are, and drops groups whose rewards are all equal, which teach nothing. Log-probabilities are
recomputed under the current weights and written back; the loss corrects for the older weights that sampled a token.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from async_flow import LEARNING_FIELDS, READY_FIELDS, REWARDS
from async_weights import WeightSender
from controller import StepResult
from dataplane_client import connect
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.client import Claim
from flow import REPORT, ROLLOUTS, STEPS, while_driver_lives
from policy_steps import PolicySteps, known
from problem_file import load_problems
from processes import end_with_parent
from settings import GrpoSettings
from tiny_model import load_tokenizer
from token_batch import TokenBatch, count_tokens
from trainer_adapter.losses import NLLLoss
from trainer_adapter.policy import DataPlanePolicy
from trainer_adapter.refit import generation_parameters
from trainer_adapter.worker import AutomodelPolicyWorker
from trainer_adapter.worker_groups import TorchrunWorkerGroup
from trainer_config import policy_config
from warmup import warmup_batches

_WAIT_S = 60.0
"""Until the wait for the rollouts of a step is repeated."""
_TRUNCATED_RATIO = 2.0
_WARM_UP_REPORTS = 10


class Worker(AutomodelPolicyWorker):
    """A worker that can hand out its weights."""

    def whole_weights(self) -> dict[str, Tensor]:
        """A copy of all weights; a collective call."""
        parameters = generation_parameters(self._policy.model, torch.float32)
        return {name: value.clone() for name, value in parameters}


class AsyncTrainer(PolicySteps):
    """The loop over steps. client: used by the driver only."""

    _sender: WeightSender | None = None
    _reward = 0.0

    def warm_up(self, batches: Iterator[TokenBatch]) -> None:
        """Take a supervised step on each batch."""
        for index, batch in enumerate(batches, 1):
            columns = {"input_ids": batch.input_ids, "token_mask": batch.token_mask}
            lengths = {"input_lengths": batch.input_lengths, "sample_mask": torch.ones(len(batch.input_lengths))}
            update = self._update(BatchedDataDict(**columns, **lengths), NLLLoss(), count_tokens(batch.token_mask))
            if index % _WARM_UP_REPORTS == 0:
                self._tell(f"w{index}", {"warm_up": index, "loss": update["loss"]})

    def learn(self, steps: int) -> None:
        """Take the GRPO steps, then close the partitions. Returns when no generator needs weights any more."""
        if self._group.is_driver:
            self._sender = WeightSender(self._client)
        self._publish(0)
        self._tell("begin", {})
        for step in range(1, steps + 1):
            self._take(step)
        if self._sender is not None:
            self._client.close_partition(ROLLOUTS)
            self._client.close_partition(STEPS)
            self._sender.join()

    def _take(self, step: int) -> None:
        began = time.monotonic()
        claim = self._claim() if self._group.is_driver else None
        meta = known(self._group.from_driver(None if claim is None else claim.meta))
        with nullcontext() if claim is None else claim:
            self._policy.prepare_for_lp_inference()
            self._policy.get_logprobs_from_meta(meta)
            tags = meta.tags or []
            learned = self._learn_in_parts(
                replace(meta, fields=list(LEARNING_FIELDS)), sum(float(tag["tokens"] or 0) for tag in tags)
            )
        self._publish(step)
        if claim is not None:
            self._tell(f"s{step}", _report(step, claim, self._mean_reward(), learned, time.monotonic() - began))

    def _claim(self) -> Claim:
        """Claim the rollouts of a step."""
        groups = self._settings.prompts_per_step
        return while_driver_lives(
            lambda: self._client.claim(ROLLOUTS, "train", READY_FIELDS, groups, whole_groups=True, timeout_s=_WAIT_S)
        )

    def _mean_reward(self) -> float:
        """Of the groups that were finished since it was asked for last, or else as before; those that were dropped
        count as well.
        """
        told = self._client.list_samples(REWARDS).meta
        self._client.clear_samples(told.sample_ids, REWARDS, generations=told.generations)
        if told.tags:
            self._reward = fmean(float(tag["mean"] or 0) for tag in told.tags)
        return self._reward

    def _publish(self, version: int) -> None:
        weights = self._group.run_everywhere("whole_weights")
        if self._sender is not None:
            self._sender.publish(version, weights)
            self._client.set_weight_version(ROLLOUTS, version)

    def _tell(self, name: str, report: dict[str, Any]) -> None:
        if self._group.is_driver:
            self._client.put_samples([name], STEPS, {REPORT: [report]})


def _report(step: int, claim: Claim, reward: float, learned: dict[str, float], seconds: float) -> dict[str, Any]:
    lengths = claim.sequence_lengths
    result = StepResult(
        step=step,
        reward=reward,
        trained_rows=claim.meta.size,
        dropped_rows=0,  # the runner asks the server
        **learned,
        seconds=seconds,
        mean_tokens=fmean(lengths),
        longest_tokens=max(lengths),
    )
    return {"result": asdict(result), "staleness": dict(Counter(claim.staleness))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--no-warmup", action="store_true")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    end_with_parent()
    torch.set_num_threads(1)
    settings = GrpoSettings()
    config = policy_config(args.model, settings, "dynamic", 1, args.steps, not args.no_warmup)
    arguments = {"config": config, "data_plane": args.server, "init_reference_model": False}
    group = TorchrunWorkerGroup(Worker, arguments)
    policy = DataPlanePolicy(config, group)
    try:
        with connect(args.server, client_name="trainer") as client:
            trainer = AsyncTrainer(client, group, policy, settings, _TRUNCATED_RATIO)
            if not args.no_warmup:
                known_questions = {problem.question for problem in load_problems(args.prompts)}
                tokenizer = load_tokenizer(args.model)
                batches = warmup_batches(tokenizer, settings.warmup_batch_size, args.seed, known_questions)
                trainer.warm_up(islice(batches, settings.warmup_steps))
            trainer.learn(args.steps)
    finally:
        policy.shutdown()


if __name__ == "__main__":
    main()
    os._exit(0)  # threads that exchange weights may still wait for the other side; Python cannot end them
