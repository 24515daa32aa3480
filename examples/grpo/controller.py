"""The driver of the loop: puts prompts and steps, turns rewards into advantages, accounts for every row.

Generation runs one step ahead of training, so generators and trainers work at the same time: while the trainers learn
from step k, the generators sample step k + 1 with the weights after step k - 1.

A checkpoint is a step, too: the trainer saves, which takes a snapshot of the server. The controller waits meanwhile,
and its progress is in the order, so the snapshot has all that `resume` needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from advantages import group_advantages, spread_over_tokens
from dataplane_client import DataPlaneClient, KVBatchMeta, kv_first_write, pack_per_token_field, read_columns
from dataplane_client.client import Claim
from dataplane_client.errors import DeadlineError, UnavailableError
from dataplane_client.records.meta import Tag
from flow import PROGRESS, REPORT, ROLLOUT_FIELDS, ROLLOUTS, STEPS, WARMUP
from problem_file import Problem, prompt_ids
from settings import GrpoSettings
from token_batch import TokenBatch, count_tokens

_LOOK_S = 2.0
_WAIT_S = 300.0


@dataclass(frozen=True)
class StepResult:
    """One step: mean reward of its rollouts (0 to 1), rows trained and dropped, loss, gradient norm before clipping,
    response tokens trained, seconds, mean and longest sample in tokens.
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


@dataclass
class Progress:
    """How far a run has come. step: the last one that is finished. prompts, orders: how many were put. trained_rows,
    dropped_rows: how many rollouts were. rewards: of each step.
    """

    step: int = 0
    prompts: int = 0
    orders: int = 0
    trained_rows: int = 0
    dropped_rows: int = 0
    rewards: list[float] = field(default_factory=list)


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
        self.progress = Progress()

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
        self._order("warmup", rows, count_tokens(batch.token_mask), publish=is_last)
        return meta

    def _finish_warm_up(self, meta: KVBatchMeta) -> float:
        loss = self._report()["loss"]
        self._client.clear_samples(meta.sample_ids, WARMUP)
        return loss

    def publish_untrained(self) -> None:
        """Publish the initial weights; block until they are published."""
        self._order("train", 0, 0, publish=True)
        self._report()

    # -- reinforcement learning ----------------------------------------------------------------------------------------

    def learn(self, problems: Iterator[Sequence[Problem]], steps: int, checkpoint_every: int) -> Iterator[StepResult]:
        """Run the GRPO steps that are left; yield each step's result. Prompts are always put one step ahead, as in an
        endless run. problems: those of the whole run. checkpoint_every: steps between checkpoints; 0: none.
        """
        progress = self.progress
        problems = islice(problems, progress.prompts // self._settings.prompts_per_step, None)
        if not progress.prompts:
            self._hand_out(next(problems), weight_version=0)
            self._checkpoint(checkpoint_every)
        while progress.step < steps:
            began = time.monotonic()
            with self._patiently(self._claim_rollouts) as claim:
                self._hand_out(next(problems), weight_version=progress.step)
                kept, reward, tokens = self._judge(claim.meta)
            progress.step += 1
            self._order("train", kept.size, tokens, publish=True, dropped=_groups(claim.meta.without(kept)))
            report = self._report()
            if kept.size:
                self._client.clear_samples(kept.sample_ids, ROLLOUTS)
            progress.trained_rows += kept.size
            progress.rewards.append(reward)
            yield _result(progress.step, claim.meta, kept, reward, report, time.monotonic() - began)
            self._checkpoint(checkpoint_every)

    def resume(self) -> None:
        """Go on from a snapshot: finish the checkpoint during which it was taken."""
        self.progress = Progress(**self._finish_order()[PROGRESS])

    def _checkpoint(self, every: int) -> None:
        if every and self.progress.step % every == 0:
            self._order("checkpoint", 0, 0)
            self._report()

    def _hand_out(self, problems: Sequence[Problem], weight_version: int) -> None:
        """Reserve rows for the rollouts of prompts, to be sampled with weights of this version."""
        for problem in problems:
            name = f"p{self.progress.prompts}"
            ids = [f"{name}_g{index}" for index in range(self._settings.group_size)]
            prompt = prompt_ids(self._tokenizer, problem.question, self._instruction)
            with self._client.reserve_group(ROLLOUTS, name, ids, weight_version=weight_version) as group:
                group.put_shared({"prompt_ids": [prompt], "answer": [str(problem.answer)]})
            self.progress.prompts += 1

    def _claim_rollouts(self) -> Claim:
        groups = self._settings.prompts_per_step
        return self._client.claim(ROLLOUTS, "advantages", ROLLOUT_FIELDS, groups, whole_groups=True, timeout_s=_LOOK_S)

    def _judge(self, meta: KVBatchMeta) -> tuple[KVBatchMeta, float, int]:
        """Write advantages for the groups that teach something, and clear the others.

        Returns the kept rows, and the mean reward and response tokens of all rows. The rows of a group are adjacent.
        """
        batch = read_columns(self._client, meta, ["reward", "token_mask", "input_lengths"])
        rewards = batch["reward"].view(-1, self._settings.group_size)
        teaches = (rewards.amax(1) > rewards.amin(1)).repeat_interleave(self._settings.group_size)
        kept = meta.subset(torch.nonzero(teaches).flatten().tolist())
        if kept.size:
            spread = spread_over_tokens(group_advantages(rewards).flatten(), batch["token_mask"])
            column = pack_per_token_field(spread[teaches], batch["input_lengths"][teaches])
            self._client.put_samples(kept.sample_ids, ROLLOUTS, {"advantages": column})
        self.progress.dropped_rows += self._client.clear_samples(meta.without(kept).sample_ids, ROLLOUTS)
        return kept, float(rewards.mean()), count_tokens(batch["token_mask"])

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _order(self, kind: str, rows: int, tokens: int, *, publish: bool = False, dropped: str = "") -> None:
        """Order a training step over `rows` rows, with a loss that is a mean over `tokens` tokens.

        publish: whether the trainer publishes the weights after the step, as the version of its number. dropped: the
        groups that teach nothing in this step.
        """
        self.progress.orders += 1
        tags: dict[str, Tag] = {"kind": kind, "step": self.progress.step, "rows": rows, "tokens": tokens}
        tags |= {"publish": publish, "dropped": dropped}
        self._client.put_samples([f"s{self.progress.orders}"], STEPS, {PROGRESS: [asdict(self.progress)]}, [tags])

    def _report(self) -> dict[str, float]:
        """Wait for the trainer's report of the oldest unreported step, and return it."""
        return dict(self._finish_order()[REPORT])

    def _finish_order(self) -> dict[str, Any]:
        """Wait until the oldest order is reported, and clear it. Returns its fields."""
        with self._patiently(
            lambda: self._client.claim(STEPS, "report", [PROGRESS, REPORT], 1, timeout_s=_LOOK_S)
        ) as claim:
            data = self._client.get_data(claim.meta)
        self._client.clear_samples(claim.meta.sample_ids, STEPS)
        return {name: data[name][0] for name in (PROGRESS, REPORT)}

    def _patiently(self, claim: Callable[[], Claim]) -> Claim:
        """Claim repeatedly, and check the processes in between. Raises ClaimTimeoutError after five minutes."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            self._check()
            try:
                return claim()
            except (DeadlineError, UnavailableError):
                if time.monotonic() > deadline:
                    raise


def _groups(meta: KVBatchMeta) -> str:
    return " ".join(sorted({sample_id.partition("_")[0] for sample_id in meta.sample_ids}))


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
