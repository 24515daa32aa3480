"""A rollout generator: claims groups of rows that have a prompt, samples a response for each row, and commits it with
its reward and log-probabilities.

`run.py` starts several of them. They end when the partition is closed and every prompt is answered. The random numbers
of a batch depend on the seed and its first group only, so a batch of one group is sampled alike by any generator.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import torch

from dataplane_client import DataPlaneClient, connect
from dataplane_client.client import Claim
from dataplane_client.errors import EndOfDataError, NotFoundError
from flow import PROMPT_FIELDS, ROLLOUTS, while_driver_lives
from processes import end_with_parent
from reward import reward
from rollout_columns import rollout_columns
from rollout_sampling import Rollouts, sample_rollouts
from tiny_model import load_model
from weight_files import load

_WAIT_S = 60.0
"""Until a wait is repeated."""
_GRACE_S = 2.0
"""How long the rows of a generator that died stay claimed."""


class Generator:
    """Serves prompts with one model, which it keeps up to date with the trainer's weights."""

    def __init__(self, client: DataPlaneClient, args: argparse.Namespace) -> None:
        self._client = client
        self._args = args
        self._model, self._tokenizer = load_model(args.model)
        self._loaded = (-1, 0)

    def run(self) -> None:
        """Serve prompts until there will be no more."""
        while True:
            try:
                claim = self._claim()
            except EndOfDataError:
                return
            try:
                with claim:
                    self._serve(claim)
            except NotFoundError as error:  # the server goes on without this claim, for example from a snapshot
                print(f"a claim was lost: {error}")  # in the log

    def _claim(self) -> Claim:
        size = self._args.batch
        return while_driver_lives(
            lambda: self._client.claim(
                ROLLOUTS, "generate", PROMPT_FIELDS, size, min_size=1, whole_groups=True, timeout_s=_WAIT_S
            )
        )

    def _serve(self, claim: Claim) -> None:
        size, groups = self._args.group_size, claim.groups
        needed = max(int(group.start_weight_version or 0) for group in groups)
        self._loaded = load(self._model, self._args.weights, needed, self._loaded)
        prompts = self._client.get_data(claim.meta)
        torch.manual_seed(random.Random(f"{self._args.seed} {groups[0].group_id}").getrandbits(63))
        rollouts = sample_rollouts(
            self._model,
            self._tokenizer,
            [ids.tolist() for ids in prompts["prompt_ids"].unbind()[::size]],
            group_size=size,
            temperature=self._args.temperature,
            max_new_tokens=self._args.max_new_tokens,
        )
        self._commit(claim, [Decimal(answer) for answer in prompts["answer"]], rollouts)

    def _commit(self, claim: Claim, answers: list[Decimal], rollouts: Rollouts) -> None:
        rewards = [reward(text, answer) for text, answer in zip(rollouts.responses, answers, strict=True)]
        claim.commit(rollout_columns(rollouts, rewards))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="maximum number of groups in a claim")
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--max-new-tokens", type=int, required=True)
    parser.add_argument("--name", required=True)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with connect(args.server, client_name=args.name, session_grace_s=_GRACE_S) as client:
        Generator(client, args).run()


if __name__ == "__main__":
    end_with_parent()
    main()
