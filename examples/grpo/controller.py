"""The driver of the loop: puts prompts and steps, turns rewards into advantages, accounts for every row.

Generation runs one step ahead of training, so generators and trainers work at the same time: while the trainers learn
from step k, the generators sample step k + 1 with the weights after step k - 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from advantages import group_advantages, spread_over_tokens
from dataplane_client import DataPlaneClient, KVBatchMeta, kv_first_write, pack_per_token_field, read_columns
from dataplane_client.errors import ClaimTimeoutError
from dataplane_client.meta import Tag
from flow import PROMPTS, REPORT, ROLLOUT_FIELDS, ROLLOUTS, STEPS, WARMUP
from problem_file import Problem, prompt_ids
from settings import GrpoSettings
from token_batch import TokenBatch

_LOOK_S = 2.0
_WAIT_S = 300.0


@dataclass(frozen=True)
class StepResult:
    """One step: mean reward of its rollouts (0 to 1), rows trained and dropped, loss, gradient norm before clipping,
    response tokens trained, seconds since the previous step, mean and longest sample in tokens.
    """

    step: int
    reward: float
    trained_rows: int
    dropped_rows: int
    loss: float
    grad_norm: float
    tokens: float
    seconds: float
    mean_tokens: float
    longest_tokens: int


class Controller:
    """Drives one run.

    check: called while the controller waits; raises if a process of the run has died. instruction: text appended to
    every question.
    """

    def __init__(
        self,
        client: DataPlaneClient,
        settings: GrpoSettings,
        tokenizer: PreTrainedTokenizerBase,
        check: Callable[[], None],
        instruction: str = "",
    ) -> None:
        self._client = client
        self._settings = settings
        self._tokenizer = tokenizer
        self._check = check
        self._instruction = instruction
        self._prompts_made = 0
        self._steps_ordered = 0
        self.trained_rows = 0
        self.dropped_rows = 0

    # -- warm-up -------------------------------------------------------------------------------------------------------

    def warm_up(self, batches: Iterator[TokenBatch], steps: int, ahead: int = 4) -> Iterator[float]:
        """Run supervised steps through the data plane; yield each step's loss. ahead: steps queued in advance."""
        waiting: list[KVBatchMeta] = []
        for index, batch in enumerate(islice(batches, steps)):
            waiting.append(self._order_warm_up(batch, index, steps))
            if len(waiting) >= ahead:
                yield self._finish_warm_up(waiting.pop(0))
        for meta in waiting:
            yield self._finish_warm_up(meta)

    def _order_warm_up(self, batch: TokenBatch, index: int, steps: int) -> KVBatchMeta:
        rows = len(batch.input_lengths)
        meta = kv_first_write(
            {
                "input_ids": batch.input_ids,
                "token_mask": batch.token_mask,
                "input_lengths": batch.input_lengths,
                "sample_mask": torch.ones(rows),
            },
            sample_ids=[f"w{index}_{row}" for row in range(rows)],
            dp_client=self._client,
            partition_id=WARMUP,
        )
        is_last = index == steps - 1
        self._order("warmup", rows, _tokens(batch.token_mask), publish=0 if is_last else None)
        return meta

    def _finish_warm_up(self, meta: KVBatchMeta) -> float:
        loss = self._report()["loss"]
        self._client.clear_samples(meta.sample_ids, WARMUP)
        return loss

    def publish_untrained(self) -> None:
        """Publish the initial weights; block until they are published."""
        self._order("train", 0, 0, publish=0)
        self._report()

    # -- reinforcement learning ----------------------------------------------------------------------------------------

    def learn(self, problems: Iterator[Sequence[Problem]], steps: int) -> Iterator[StepResult]:
        """Run GRPO steps; yield each step's result. Prompts are always put one step ahead, as in an endless run."""
        self._hand_out(next(problems), weight_version=0)
        began = time.monotonic()
        for step in range(1, steps + 1):
            meta = self._patiently(self._claim_rollouts)
            self._hand_out(next(problems), weight_version=step - 1)
            kept, reward, tokens = self._judge(meta)
            self._order("train", kept.size, tokens, publish=step)
            report = self._report()
            if kept.size:
                self._client.clear_samples(kept.sample_ids, ROLLOUTS)
            self.trained_rows += kept.size
            now = time.monotonic()
            yield _result(step, meta, kept, reward, report, now - began)
            began = now

    def _hand_out(self, problems: Sequence[Problem], weight_version: int) -> None:
        """Put prompts; generators answer them with weights of at least this version."""
        ids = np.empty(len(problems), dtype=object)
        ids[:] = [prompt_ids(self._tokenizer, problem.question, self._instruction) for problem in problems]
        answers = np.empty(len(problems), dtype=object)
        answers[:] = [str(problem.answer) for problem in problems]
        names = [f"p{self._prompts_made + index}" for index in range(len(problems))]
        self._prompts_made += len(problems)
        tags = [{"weight_version": weight_version}] * len(problems)
        self._client.put_samples(names, PROMPTS, {"prompt_ids": ids, "answer": answers}, tags)

    def _claim_rollouts(self) -> KVBatchMeta:
        rows = self._settings.prompts_per_step * self._settings.group_size
        return self._client.claim_meta(ROLLOUTS, "advantages", ROLLOUT_FIELDS, rows, timeout_s=_LOOK_S)

    def _judge(self, meta: KVBatchMeta) -> tuple[KVBatchMeta, float, int]:
        """Write advantages for the groups that teach something, and clear the others.

        Returns the kept rows, and the mean reward and response tokens of all rows.

        Generators put whole groups, and a claim takes rows in the order in which they were put. So the groups of a step
        are complete, and the rows of a group are adjacent.
        """
        batch = read_columns(self._client, meta, ["reward", "token_mask", "input_lengths"])
        rewards = batch["reward"].view(-1, self._settings.group_size)
        teaches = (rewards.amax(1) > rewards.amin(1)).repeat_interleave(self._settings.group_size)
        kept = meta.subset(torch.nonzero(teaches).flatten().tolist())
        if kept.size:
            spread = spread_over_tokens(group_advantages(rewards).flatten(), batch["token_mask"])
            column = pack_per_token_field(spread[teaches], batch["input_lengths"][teaches])
            self._client.put_samples(kept.sample_ids, ROLLOUTS, {"advantages": column})
        dropped = meta.without(kept)
        self.dropped_rows += self._client.clear_samples(dropped.sample_ids, ROLLOUTS)
        return kept, float(rewards.mean()), _tokens(batch["token_mask"])

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _order(self, kind: str, rows: int, tokens: int, publish: int | None) -> None:
        """Order a training step over `rows` rows, with a loss that is a mean over `tokens` tokens.

        publish: version under which the trainer publishes the weights after the step; None: it does not.
        """
        self._steps_ordered += 1
        tags: dict[str, Tag] = {"kind": kind, "rows": rows, "tokens": tokens, "publish": publish}
        self._client.put_samples([f"s{self._steps_ordered}"], STEPS, tags=[tags])

    def _report(self) -> dict[str, float]:
        """Wait for the trainer's report of the oldest unreported step, and return it."""
        meta = self._patiently(lambda: self._client.claim_meta(STEPS, "report", [REPORT], 1, timeout_s=_LOOK_S))
        data = self._client.get_data(meta)
        self._client.clear_samples(meta.sample_ids, STEPS)
        return dict(data[REPORT][0])

    def _patiently(self, claim: Callable[[], KVBatchMeta]) -> KVBatchMeta:
        """Claim repeatedly, and check the processes in between. Raises ClaimTimeoutError after five minutes."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            self._check()
            try:
                return claim()
            except ClaimTimeoutError:
                if time.monotonic() > deadline:
                    raise


def _tokens(token_mask: Tensor) -> int:
    """The number of response tokens, except those in the first column, which no position predicts."""
    return int(token_mask[:, 1:].sum())


def _result(
    step: int, meta: KVBatchMeta, kept: KVBatchMeta, reward: float, report: dict[str, float], seconds: float
) -> StepResult:
    lengths = meta.sequence_lengths or [0]
    return StepResult(
        step=step,
        reward=reward,
        trained_rows=kept.size,
        dropped_rows=meta.size - kept.size,
        loss=report["loss"],
        grad_norm=report["grad_norm"],
        tokens=report["tokens"],
        seconds=seconds,
        mean_tokens=sum(lengths) / len(lengths),
        longest_tokens=max(lengths),
    )
