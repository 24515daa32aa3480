"""A group whose workers are in this process and are called one after the other, and a worker whose results are known
for every row, so that sharded calls can be compared with one call on the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter.worker_groups._interface import AgreedT


def answer(data: Mapping[str, Any]) -> torch.Tensor:
    """[B,S], which depends on each row alone."""
    columns: torch.Tensor = data["input_ids"] * data["input_lengths"][:, None]
    return columns.float()


@dataclass
class RowWorker:
    """calls: every method that was called, and its arguments."""

    rank: int = 0
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def get_logprobs(self, **given: Any) -> BatchedDataDict[Any]:
        self.calls.append(("get_logprobs", given))
        return BatchedDataDict(logprobs=answer(given["data"]))

    def get_reference_policy_logprobs(self, **given: Any) -> BatchedDataDict[Any]:
        return BatchedDataDict(reference_logprobs=-answer(given["data"]))

    def get_topk_logits(self, **given: Any) -> BatchedDataDict[Any]:
        values = answer(given["data"])[..., None].expand(-1, -1, given["k"])
        return BatchedDataDict(topk_logits=values, topk_indices=values.long())

    def score(self, **given: Any) -> BatchedDataDict[Any]:
        return BatchedDataDict(scores=answer(given["data"]).sum(1))

    def calibrate_qkv_fp8_scales(self, **given: Any) -> dict[str, Any]:
        return {"percentile": given["percentile"], "layers": {"0": given["data"].size}}

    def train(self, **given: Any) -> dict[str, Any]:
        self.calls.append(("train", given))
        return self._report(given["data"].size)

    def train_from_meta(self, **given: Any) -> dict[str, Any]:
        self.calls.append(("train_from_meta", given))
        return self._report(given["meta"].size)

    def finish_train_step(self) -> dict[str, Any]:
        return self._report(0)

    def train_microbatches(self, **given: Any) -> list[dict[str, Any]]:
        return [{"rank": self.rank, "row": row} for row in given["data"]["input_ids"][:, 0].tolist()]

    def _report(self, rows: int) -> dict[str, Any]:
        metrics = {"rows": [rows], "rank": [self.rank]} | ({"only_here": [0.5]} if self.rank else {})
        sums = {"global_loss": torch.tensor([8.0 - self.rank]), "grad_norm": torch.tensor(2.0 + self.rank)}
        return {**sums, "all_mb_metrics": metrics}

    def __getattr__(self, method: str) -> Any:
        def recorded(**given: Any) -> str:
            self.calls.append((method, given))
            return f"{method} of {self.rank}"

        return recorded


class SerialGroup:
    """dp_size workers, one a shard."""

    is_driver = True

    def __init__(self, dp_size: int) -> None:
        self.workers = [RowWorker(rank) for rank in range(dp_size)]
        self.is_shut_down = False

    @property
    def dp_size(self) -> int:
        return len(self.workers)

    def from_driver(self, value: AgreedT) -> AgreedT:
        return value

    def run_everywhere(self, method: str, **arguments: Any) -> Any:
        return self.start(method, **arguments)[0]

    def run_on_shards(self, method: str, shards: Mapping[str, Sequence[Any]], **common: Any) -> list[Any]:
        own = [{name: shards[name][rank] for name in shards} for rank in range(self.dp_size)]
        return [getattr(worker, method)(**common, **given) for worker, given in zip(self.workers, own, strict=True)]

    def start(self, method: str, **arguments: Any) -> list[Any]:
        return [getattr(worker, method)(**arguments) for worker in self.workers]

    def shutdown(self) -> bool:
        self.is_shut_down = True
        return True


def config_of(mode: str = "plain", **changes: Any) -> Any:
    """mode: plain, dynamic or packed; a microbatch of inference holds 32 tokens, one of training 16."""
    budget = {"train_mb_tokens": 16, "logprob_mb_tokens": 32}
    return {
        "train_global_batch_size": 4,
        "make_sequence_length_divisible_by": 1,
        "dynamic_batching": {"enabled": mode == "dynamic", "sequence_length_round": 4, **budget},
        "sequence_packing": {"enabled": mode == "packed", "algorithm": "modified_first_fit_decreasing", **budget},
        "dtensor_cfg": {"tensor_parallel_size": 1, "context_parallel_size": 1, "sequence_parallel": False},
        **changes,
    }


def batch_of(lengths: Sequence[int]) -> BatchedDataDict[Any]:
    """Right-padded rows of these lengths; the first token of a row is its number."""
    ids = torch.zeros(len(lengths), 16, dtype=torch.int64)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.arange(length) + row
    return BatchedDataDict(input_ids=ids, input_lengths=torch.tensor(lengths), names=[f"r{n}" for n in lengths])


def meta_of(lengths: list[int], **extra_info: object) -> KVBatchMeta:
    return KVBatchMeta("train", "train", [f"s{row}" for row in range(len(lengths))], None, lengths, dict(extra_info))


def no_loss(*_args: Any, **_kwargs: Any) -> Any:
    raise NotImplementedError("the workers of these tests compute no loss")
