"""Layouts of ranks, and how far a worker's step is from the plain one in each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tests.rank_pool import RankPool
from tests.ranks import WarningAction
from tests.trainer_adapter.automodel.setup_cases import EXPERTS, MODELS, whole_weights
from tests.trainer_adapter.equality.plain_step import Tensors, plain_step
from tests.trainer_adapter.worker.worker_cases import TEMPERATURE, WIDTH, Layout, batch, config, save_model, worker
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.losses import (
    ClippedPolicyGradientLoss,
    ClippedPolicyGradientOptions,
    LossResult,
    next_token_logprobs,
)

LOSS = ClippedPolicyGradientLoss(
    ClippedPolicyGradientOptions(
        ratio_clip_min=0.2,
        ratio_clip_max=0.25,
        reference_policy_kl_penalty=0.1,
        use_importance_sampling_correction=True,
        truncated_importance_sampling_ratio=2.0,
    )
)


def loss_over_logits(logits: Tensor, data: Any, seqs: Tensor, toks: Tensor) -> LossResult:
    """The same, of the shape that takes logits."""
    return LOSS(next_token_logprobs(logits, data["input_ids"]), data, seqs, toks)


@dataclass(frozen=True)
class Case:
    """How ranks divide a step. packing: of worker_cases.PACKINGS. settings: of dtensor_cfg."""

    layout: Layout
    packing: str
    model: str = "qwen3"
    settings: dict[str, Any] = field(default_factory=dict)
    loss: Any = LOSS

    def own_rows(self, rows: BatchedDataDict[Any], rank: int) -> BatchedDataDict[Any]:
        return rows.chunk(rank // (self.layout.cp * self.layout.tp), self.layout.dp)

    def config(self, folder: Path, backend: str = "transformers") -> Any:
        plain_sgd = {"name": "torch.optim.SGD", "kwargs": {"lr": 1.0}}
        changes: dict[str, Any] = {"optimizer": plain_sgd, "max_grad_norm": None}
        given = config(folder / self.model, self.layout, self.packing, backend, **changes)
        given["dtensor_cfg"] |= self.settings
        return given


CASES = {
    "1 rank": Case(Layout(), "none"),
    "dp 2": Case(Layout(dp=2), "none"),
    "dp 2, packed": Case(Layout(dp=2), "sequence"),
    "dp 2, dynamic, Qwen2 with tied embeddings": Case(Layout(dp=2), "dynamic", "qwen2"),
    "tp 2, packed": Case(Layout(tp=2), "sequence"),
    "tp 2, sequence parallel": Case(Layout(tp=2), "none", settings={"sequence_parallel": True}),
    "cp 2, gathered, packed": Case(Layout(cp=2), "sequence"),
    "cp 2, ring": Case(Layout(cp=2), "none", settings={"context_parallel_attention": "torch"}),
    "dp 2 x tp 2, packed, activation checkpointing": Case(
        Layout(dp=2, tp=2), "sequence", settings={"activation_checkpointing": True}
    ),
}


_WARNINGS: dict[str, WarningAction] = {"transformers": "error", "automodel": "default"}
"""Automodel's own are not ours to mend."""


@dataclass(frozen=True)
class Difference:
    """The largest absolute differences, of the gradients' norm in parts of it, and the largest gradient."""

    logprobs: float
    loss: float
    gradients: float
    norm: float
    largest_gradient: float

    @property
    def largest(self) -> float:
        return max(self.logprobs, self.loss, self.gradients, self.norm)


def differences(pool: RankPool, folder: Path, backend: str = "transformers") -> Iterator[tuple[str, Difference]]:
    """Of each case. folder: for the models. backend: dtensor_cfg.model_backend."""
    for name, case in CASES.items():
        yield name, difference(pool, folder, case, backend)


def difference(pool: RankPool, folder: Path, case: Case, backend: str = "transformers") -> Difference:
    """Of a case that is played on as many ranks."""
    columns, plain = _reference(folder, case.model)
    found = pool.play(step, folder, case, columns, backend, ranks=case.layout.ranks, warning=_WARNINGS[backend])
    return _difference(case, found, plain)


@cache
def _reference(folder: Path, kind: str) -> tuple[Tensors, tuple[Tensor, Tensor, Tensors]]:
    """Columns of other models for a new model of a type, and its plain step."""
    disable_progress_bar()
    settings = EXPERTS if kind == "qwen3_moe" else {"tie_word_embeddings": MODELS[kind]}
    save_model(folder / kind, kind, **settings, pad_token_id=None)
    columns = _near(plain_step(folder / kind, _unrelated(), TEMPERATURE)[0])
    return columns, plain_step(folder / kind, _unrelated() | columns, TEMPERATURE)


def _unrelated() -> Tensors:
    """The rows of worker_cases, whose log-probabilities are no model's."""
    whole = batch()
    return {**whole.get_dict(), "reference_policy_logprobs": whole["prev_logprobs"]}


def _near(logprobs: torch.Tensor) -> Tensors:
    """Log-probabilities of models that differ so much from this one that some tokens are clipped."""
    generator = torch.Generator().manual_seed(6)
    noise = 0.3 * torch.randn((3, *logprobs.shape), generator=generator)
    names = ("prev_logprobs", "generation_logprobs", "reference_policy_logprobs")
    return dict(zip(names, logprobs + noise, strict=True))


def step(
    rank: int, folder: Path, case: Case, columns: Tensors, backend: str
) -> tuple[torch.Tensor, float, float, Tensors]:
    """What a rank of the worker finds: log-probabilities of its rows, the loss, the norm of the gradients, and these,
    which a step of SGD of rate 1 subtracts from the weights.
    """
    disable_progress_bar()
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    rows: BatchedDataDict[Any] = BatchedDataDict(_unrelated() | columns)
    own = case.own_rows(rows, rank)
    before = AutoModelForCausalLM.from_pretrained(folder / case.model).state_dict()
    with worker(case.config(folder, backend), init_reference_model=False) as made:
        logprobs = made.get_logprobs(own)["logprobs"].cpu()
        trained = made.train(own, case.loss)
        after = whole_weights(made._policy.model)
    gradients = {key: before[key] - value for key, value in after.items()}
    return logprobs, trained["global_loss"].item(), trained["grad_norm"].item(), gradients


def _difference(
    case: Case, ranks: list[tuple[Any, float, float, Tensors]], plain: tuple[Any, Any, Tensors]
) -> Difference:
    wanted, loss, gradients = plain
    shared = case.layout.cp * case.layout.tp
    found = [torch.cat([logprobs for logprobs, *_ in ranks[first::shared]]) for first in range(shared)]
    assert all(part.shape == (wanted.shape[0], WIDTH) for part in found)
    held = ranks[0][3]
    norm = torch.nn.utils.get_total_norm(gradients.values()).item()
    return Difference(
        max(_largest(part - wanted) for part in found),
        max(abs(own - loss.item()) for _, own, _, _ in ranks),
        max(_largest(held[name] - part) for name, part in gradients.items()),
        max(abs(own / norm - 1) for _, _, own, _ in ranks),
        max(map(_largest, gradients.values())),
    )


def _largest(part: torch.Tensor) -> float:
    return part.abs().max().item()
