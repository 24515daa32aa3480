"""Nine layouts of ranks, and how far a worker's step is from the plain one in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tests.rank_pool import RankPool
from tests.ranks import WarningAction
from tests.trainer_adapter.automodel.setup_cases import whole_weights
from tests.trainer_adapter.equality.plain_step import Tensors, plain_step
from tests.trainer_adapter.worker.worker_cases import TEMPERATURE, WIDTH, Layout, batch, config, save_model, worker
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.losses import ClippedPolicyGradientLoss, ClippedPolicyGradientOptions

LOSS = ClippedPolicyGradientOptions(
    ratio_clip_min=0.2,
    ratio_clip_max=0.25,
    reference_policy_kl_penalty=0.1,
    use_importance_sampling_correction=True,
    truncated_importance_sampling_ratio=2.0,
)


@dataclass(frozen=True)
class Case:
    """How ranks divide a step. packing: of worker_cases.PACKINGS. settings: of dtensor_cfg."""

    layout: Layout
    packing: str
    model: str = "qwen3"
    settings: dict[str, Any] = field(default_factory=dict)


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
    """The largest absolute differences, and the largest gradient."""

    logprobs: float
    loss: float
    gradients: float
    largest_gradient: float


def differences(pool: RankPool, folder: Path, backend: str = "transformers") -> Iterator[tuple[str, Difference]]:
    """Of each case, played on as many ranks. folder: for the models. backend: dtensor_cfg.model_backend."""
    disable_progress_bar()
    plain: dict[str, Any] = {}
    columns: dict[str, Tensors] = {}
    for kind in sorted({case.model for case in CASES.values()}):
        save_model(folder / kind, kind)
        columns[kind] = _near(plain_step(folder / kind, _unrelated(), TEMPERATURE)[0])
        plain[kind] = plain_step(folder / kind, _unrelated() | columns[kind], TEMPERATURE)
    for name, case in CASES.items():
        found = pool.play(
            step, folder, name, columns[case.model], backend, ranks=case.layout.ranks, warning=_WARNINGS[backend]
        )
        yield name, _difference(case, found, plain[case.model])


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


def step(rank: int, folder: Path, name: str, columns: Tensors, backend: str) -> tuple[torch.Tensor, float, Tensors]:
    """What a rank of the worker finds: log-probabilities of its rows, the loss, and all gradients, which a step of SGD
    of rate 1 subtracts from the weights.
    """
    disable_progress_bar()
    case = CASES[name]
    rows: BatchedDataDict[Any] = BatchedDataDict(_unrelated() | columns)
    own = rows.chunk(rank // (case.layout.cp * case.layout.tp), case.layout.dp)
    plain_sgd = {"name": "torch.optim.SGD", "kwargs": {"lr": 1.0}}
    given = config(folder / case.model, case.layout, case.packing, backend, optimizer=plain_sgd, max_grad_norm=None)
    given["dtensor_cfg"] |= case.settings
    before = AutoModelForCausalLM.from_pretrained(folder / case.model).state_dict()
    with worker(given, init_reference_model=False) as made:
        logprobs = made.get_logprobs(own)["logprobs"]
        loss = made.train(own, ClippedPolicyGradientLoss(LOSS))["global_loss"].item()
        after = whole_weights(made._policy.model)
    return logprobs, loss, {key: before[key] - value for key, value in after.items()}


def _difference(case: Case, ranks: list[tuple[Any, float, Tensors]], plain: tuple[Any, Any, Tensors]) -> Difference:
    wanted, loss, gradients = plain
    shared = case.layout.cp * case.layout.tp
    found = [torch.cat([logprobs for logprobs, _, _ in ranks[first::shared]]) for first in range(shared)]
    assert all(part.shape == (wanted.shape[0], WIDTH) for part in found)
    held = ranks[0][2]
    return Difference(
        max(_largest(part - wanted) for part in found),
        max(abs(own - loss.item()) for _, own, _ in ranks),
        max(_largest(held[name] - part) for name, part in gradients.items()),
        max(map(_largest, gradients.values())),
    )


def _largest(part: torch.Tensor) -> float:
    return part.abs().max().item()
