"""A data-parallel trainer rank, started by torchrun: claims its share of each step, trains, reports.

A training step is two stages. First the rank claims rollouts for the task "prev_lp", recomputes the log-probabilities
of their tokens under the current weights, and commits them as a column. Then it claims rollouts that have that column
for the task "train", whoever computed it. Gradients are summed over ranks; since every loss is normalised by the
tokens of the whole step, the sum is the gradient of the global mean. Rollouts that were dropped because they teach
nothing count among those tokens: otherwise the fewer groups teach something, the larger a step they would take.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dataplane_client import BatchedDataDict, DataPlaneClient, connect, pack_per_token_field, read_columns
from dataplane_client.batched_data_dict import DynamicBatchingArgs
from dataplane_client.client import Claim
from dataplane_client.errors import NotFoundError
from flow import PREV_LP_FIELDS, ROLLOUTS, SAMPLE_FIELDS, STEPS, TRAIN_FIELDS, WARMUP, report_field
from logprobs import forward_logprobs
from policy_loss import ClippedPolicyLoss
from settings import GrpoSettings
from tiny_model import load_model
from trainer_adapter.losses import LossFunction
from warmup import supervised_loss
from weight_files import publish

_WAIT_S = 300.0


class TrainerRank:
    """One rank: model, optimizer, and its two cursors on the data plane."""

    def __init__(self, client: DataPlaneClient, args: argparse.Namespace) -> None:
        self._client = client
        self._weights: Path = args.weights
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._settings = GrpoSettings()
        self._policy_loss = ClippedPolicyLoss(self._settings.clip_low, self._settings.clip_high)
        self._model, self._tokenizer = load_model(args.model)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=0.0, betas=(0.9, 0.98))

    def run(self) -> None:
        """Take steps until there is no partition of them."""
        while True:
            try:
                step = self._client.claim(STEPS, f"rank{self._rank}", [], 1, timeout_s=_WAIT_S)
            except NotFoundError:
                return
            with step:
                report = np.empty(1, dtype=object)
                report[0] = self._take(step.meta.tags[0] if step.meta.tags else {})
                step.commit({report_field(self._rank): report})

    def _take(self, order: Mapping[str, str | int | float | bool | None]) -> dict[str, float]:
        """Carry out one step as its tags order it; what to tell the controller."""
        began = time.monotonic()
        total = int(order["rows"] or 0)
        rows = total // self._world + (self._rank < total % self._world)
        tokens = float(order["tokens"] or 0)
        for group in self._optimizer.param_groups:
            group["lr"] = float(order["lr"] or 0.0)
        metrics = {"loss": 0.0, "grad_norm": 0.0, "tokens": 0.0}
        if total:
            metrics = self._warm_up(rows, tokens) if order["kind"] == "warmup" else self._learn(rows, tokens)
        version = order["publish"]
        if version is not None and self._rank == 0:
            publish(self._model, self._weights, int(version))
        return {**metrics, "seconds": time.monotonic() - began}

    def _warm_up(self, rows: int, tokens: float) -> dict[str, float]:
        with self._client.claim(WARMUP, "train", SAMPLE_FIELDS, rows, timeout_s=_WAIT_S) as claim:
            return self._train(self._read(claim, SAMPLE_FIELDS), supervised_loss, tokens, temperature=1.0)

    def _learn(self, rows: int, tokens: float) -> dict[str, float]:
        with self._client.claim(ROLLOUTS, "prev_lp", PREV_LP_FIELDS, rows, timeout_s=_WAIT_S) as claim:
            batch = self._read(claim, ("input_ids", "input_lengths"))
            claim.commit({"prev_logprobs": pack_per_token_field(self._logprobs(batch), batch["input_lengths"])})
        with self._client.claim(ROLLOUTS, "train", TRAIN_FIELDS, rows, timeout_s=_WAIT_S) as claim:
            batch = self._read(claim, TRAIN_FIELDS)
            parts = self._settings.optimizer_steps_per_batch
            cuts = [part * batch.size // parts for part in range(parts + 1)]
            steps = [
                self._train(batch.slice(a, b), self._policy_loss, tokens / parts, self._settings.temperature)
                for a, b in pairwise(cuts)
            ]
        return {
            "loss": sum(step["loss"] for step in steps) / parts,
            "grad_norm": sum(step["grad_norm"] for step in steps) / parts,
            "tokens": sum(step["tokens"] for step in steps),
        }

    def _read(self, claim: Claim, fields: tuple[str, ...]) -> BatchedDataDict[Tensor]:
        pad_values = {"input_ids": self._tokenizer.pad_token_id}
        return read_columns(self._client, claim.meta, fields, pad_value_dict=pad_values)

    def _microbatches(self, batch: BatchedDataDict[Tensor]) -> tuple[Iterator[BatchedDataDict[Tensor]], list[int]]:
        """Rows of similar length together, each microbatch as wide as its longest row; and which rows they hold."""
        args = DynamicBatchingArgs(
            max_tokens_per_microbatch=max(self._settings.micro_batch_tokens, batch["input_ids"].shape[1]),
            sequence_length_round=8,
            input_key="input_ids",
            input_lengths_key="input_lengths",
        )
        shards, rows = batch.shard_by_batch_size(1, dynamic_batching_args=args)
        return shards[0].make_microbatch_iterator_with_dynamic_shapes(), rows

    @torch.no_grad()
    def _logprobs(self, batch: BatchedDataDict[Tensor]) -> Tensor:
        """[B,S] fp32 under the current weights, in the order of the batch; padding holds no meaning."""
        self._model.eval()
        width = batch["input_ids"].shape[1]
        microbatches, rows = self._microbatches(batch)
        parts = [forward_logprobs(self._model, part["input_ids"], self._settings.temperature) for part in microbatches]
        padded = [torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in parts]
        result: BatchedDataDict[Tensor] = BatchedDataDict({"logprobs": torch.cat(padded)})
        result.reorder_data(rows)
        logprobs: Tensor = result["logprobs"]
        return logprobs

    def _train(
        self, batch: BatchedDataDict[Tensor], loss_fn: LossFunction, tokens: float, temperature: float
    ) -> dict[str, float]:
        """One optimizer step over this batch of every rank; the loss is a mean over `tokens` response tokens."""
        counts = torch.stack([batch["sample_mask"].sum(), batch["token_mask"][:, 1:].sum()]).double()
        dist.all_reduce(counts)
        self._model.train()
        self._optimizer.zero_grad()
        loss_sum = torch.zeros((), dtype=torch.float64)
        for part in self._microbatches(batch)[0]:
            logits = self._model(input_ids=part["input_ids"], use_cache=False).logits / temperature
            loss, metrics = loss_fn(logits, part, counts[0], torch.tensor(tokens))
            loss.backward()
            loss_sum += metrics["loss"]
        dist.all_reduce(loss_sum)
        return {"loss": float(loss_sum), "grad_norm": self._step(), "tokens": float(counts[1])}

    def _step(self) -> float:
        """Sum gradients over ranks, clip, step; the norm before clipping."""
        grads = [p.grad for p in self._model.parameters() if p.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        for grad, summed in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(summed.view_as(grad))
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_grad_norm)
        self._optimizer.step()
        return float(norm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        with connect(args.server) as client:
            TrainerRank(client, args).run()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
