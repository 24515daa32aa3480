"""A rollout generator: claims prompts, samples a group of responses for each, and puts them with rewards and
log-probabilities.

`run.py` starts several of them. They end when the partition of prompts is dropped.
"""

from __future__ import annotations

import argparse
from decimal import Decimal
from pathlib import Path

import numpy as np
import torch

from dataplane_client import DataPlaneClient, connect, kv_first_write
from dataplane_client.client import Claim
from dataplane_client.errors import NotFoundError
from flow import PROMPTS, ROLLOUTS
from reward import reward
from rollout_sampling import Rollouts, sample_rollouts
from tiny_model import load_model
from weight_files import load_newest

_WAIT_S = 300.0


class Generator:
    """Serves prompts with one model, which it keeps up to date with the trainer's weights."""

    def __init__(self, client: DataPlaneClient, args: argparse.Namespace) -> None:
        self._client = client
        self._args = args
        self._model, self._tokenizer = load_model(args.model)
        self._version = -1

    def run(self) -> None:
        """Serve prompts until their partition is dropped."""
        while True:
            try:
                claim = self._client.claim(
                    PROMPTS, "generate", ["prompt_ids", "answer"], self._args.batch, min_size=1, timeout_s=_WAIT_S
                )
            except NotFoundError:
                return
            with claim:
                self._serve(claim)
            self._client.clear_samples(claim.meta.sample_ids, PROMPTS)

    def _serve(self, claim: Claim) -> None:
        needed = max(int(tags["weight_version"] or 0) for tags in claim.meta.tags or [])
        self._version = load_newest(self._model, self._args.weights, needed, self._version, _WAIT_S)
        prompts = self._client.get_data(claim.meta)
        rollouts = sample_rollouts(
            self._model,
            self._tokenizer,
            [list(ids) for ids in prompts["prompt_ids"]],
            group_size=self._args.group_size,
            temperature=self._args.temperature,
            max_new_tokens=self._args.max_new_tokens,
        )
        self._put(claim, [Decimal(answer) for answer in prompts["answer"]], rollouts)

    def _put(self, claim: Claim, answers: list[Decimal], rollouts: Rollouts) -> None:
        size = self._args.group_size
        rewards = [reward(text, answers[row // size]) for row, text in enumerate(rollouts.responses)]
        responses = np.empty(len(rewards), dtype=object)
        responses[:] = rollouts.responses
        kv_first_write(
            {
                "input_ids": rollouts.input_ids,
                "token_mask": rollouts.token_mask,
                "input_lengths": rollouts.input_lengths,
                "sample_mask": torch.ones(len(rewards)),
                "generation_logprobs": rollouts.generation_logprobs,
                "reward": torch.tensor(rewards),
                "response": responses,
            },
            sample_ids=[f"{uid}_g{index}" for uid in claim.meta.sample_ids for index in range(size)],
            dp_client=self._client,
            partition_id=ROLLOUTS,
            tags=[
                {"group": claim.meta.sample_ids[row // size], "weight_version": self._version}
                for row in range(len(rewards))
            ],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="maximum number of prompts in a claim")
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--max-new-tokens", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    with connect(args.server) as client:
        Generator(client, args).run()


if __name__ == "__main__":
    main()
