"""A rollout generator of the asynchronous loop: never waits for the trainer, except when too many rollouts wait for it.

For each prompt of a batch it reserves a group, and the server lets it wait while the trainer has enough. Then it takes
the newest weights, puts the rollouts with their version and advantages, and finishes the group. It ends when the
partition is closed, and then puts how it spent its time.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import fmean, pstdev

import torch

from advantages import group_advantages, spread_over_tokens
from async_flow import GENERATORS, MAX_STALENESS, REWARDS
from async_weights import WeightInbox
from dataplane_client import DataPlaneClient, connect, pack_per_token_field
from dataplane_client.client import Group
from dataplane_client.errors import GroupFencedError, PreconditionError
from flow import ROLLOUTS, while_driver_lives
from problem_file import INSTRUCTION, Problem, load_problems, prompt_batches, prompt_ids
from processes import end_with_parent
from reward import reward
from rollout_columns import rollout_columns
from rollout_sampling import Rollouts, sample_rollouts
from settings import GrpoSettings
from tiny_model import load_model
from token_batch import count_tokens

_GRACE_S = 2.0
"""How long the groups of a generator that died stay reserved."""
_BATCH_GROUPS = 8
"""Groups that are sampled together."""
_WAIT_S = 60.0
"""Until the wait for room is repeated."""


class AsyncGenerator:
    """Samples prompts of its own choice with the newest weights that it has got."""

    def __init__(self, client: DataPlaneClient, args: argparse.Namespace) -> None:
        self._client = client
        self._args = args
        self._size = GrpoSettings().group_size
        self._model, self._tokenizer = load_model(args.model)
        self._inbox = WeightInbox(client, self._model, args.folder)
        self._seed = random.Random(f"{args.seed} {args.name}").getrandbits(63)
        self._numbers = count()
        self._version = -1
        self.spent: defaultdict[str, float] = defaultdict(float)

    def run(self) -> None:
        """Generate until the partition is closed."""
        torch.manual_seed(self._seed)
        self._inbox.load_newest()
        for problems in prompt_batches(load_problems(self._args.prompts), _BATCH_GROUPS, self._seed):
            if not self._generated(problems):
                return

    def _generated(self, problems: list[Problem]) -> bool:
        """Whether there is more to do after a batch."""
        try:
            self._generate(problems)
        except (PreconditionError, GroupFencedError):  # the end has come, or it was taken for dead
            self.spent["lost_batches"] += 1
            return not self._client.partition(ROLLOUTS).closed
        return True

    @contextmanager
    def _spends(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.spent[what] += time.monotonic() - began

    def _load_weights(self) -> None:
        """Take the newest weights; of those that are too old already, no rollout would be trained."""
        current = self._client.partition(ROLLOUTS).weight_version or 0
        self._version = self._inbox.load_newest(current - MAX_STALENESS)

    def _generate(self, problems: list[Problem]) -> None:
        with ExitStack() as groups:
            with self._spends("room_s"):
                reserved = [groups.enter_context(self._reserve()) for _ in problems]
            with self._spends("weights_s"):
                self._load_weights()
            groups.enter_context(self._spends("busy_s"))
            instruction = INSTRUCTION if self._args.no_warmup else ""
            rollouts = sample_rollouts(
                self._model,
                self._tokenizer,
                [prompt_ids(self._tokenizer, problem.question, instruction) for problem in problems],
                group_size=self._size,
                temperature=GrpoSettings().temperature,
                max_new_tokens=GrpoSettings().max_new_tokens,
            )
            answers = [problem.answer for problem in problems for _ in range(self._size)]
            rewards = [reward(text, answer) for text, answer in zip(rollouts.responses, answers, strict=True)]
            for index, group in enumerate(reserved):
                self._put(group, rollouts, rewards, slice(index * self._size, (index + 1) * self._size))

    def _reserve(self) -> Group:
        name = f"{self._args.name}-{os.getpid()}-{next(self._numbers)}"
        ids = [f"{name}_g{index}" for index in range(self._size)]
        return while_driver_lives(lambda: self._client.reserve_group(ROLLOUTS, name, ids, timeout_s=_WAIT_S))

    def _put(self, group: Group, rollouts: Rollouts, rewards: list[float], rows: slice) -> None:
        """Put a group's rollouts, and show them."""
        own, mask = rewards[rows], rollouts.token_mask[rows]
        spread = spread_over_tokens(group_advantages(torch.tensor([own])).flatten(), mask)
        advantages = pack_per_token_field(spread, rollouts.input_lengths[rows])
        columns = {**rollout_columns(rollouts, rewards, rows), "advantages": advantages}
        facts = {"std": pstdev(own), "weight_version": self._version}
        tags = [{**facts, "tokens": count_tokens(row[None])} for row in mask]
        group.put(group.meta.sample_ids, columns, tags)
        self._client.put_samples([group.group_id], REWARDS, tags=[{"mean": fmean(own)}])
        group.commit(self._version)
        self.spent["groups"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--no-warmup", action="store_true")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="of the socket over which weights arrive")
    args = parser.parse_args()
    end_with_parent()
    torch.set_num_threads(1)
    with connect(args.server, client_name=args.name, session_grace_s=_GRACE_S) as client:
        generator = AsyncGenerator(client, args)
        generator.run()
        client.put_samples([f"{args.name}-{os.getpid()}"], GENERATORS, tags=[dict(generator.spent)])


if __name__ == "__main__":
    main()
    os._exit(0)  # threads that exchange weights may still wait for the other side; Python cannot end them
