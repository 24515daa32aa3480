"""The trainer's policy configuration: the options of an automodel worker that the example sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from settings import GrpoSettings
from trainer_adapter.automodel.config import PolicyConfig

Packing = Literal["none", "dynamic", "sequence"]


def policy_config(
    model: Path, settings: GrpoSettings, packing: Packing, tp: int, steps: int, warms_up: bool
) -> PolicyConfig:
    """Build the configuration of a policy.

    packing: how rows become microbatches: a fixed number of rows, rows of similar length, or rows end to end.
    tp: number of ranks that divide the weights; the remaining factor of the ranks is data-parallel.
    steps: GRPO steps of the run. warms_up: whether warm-up steps come first.
    """
    tokens = settings.micro_batch_tokens
    return {
        "model_name": str(model),
        "tokenizer": {"name": str(model)},
        "precision": "float32",
        "max_grad_norm": settings.max_grad_norm,
        "train_global_batch_size": settings.prompts_per_step * settings.group_size,
        "train_micro_batch_size": settings.micro_batch_rows,
        "logprob_batch_size": settings.micro_batch_rows,
        "make_sequence_length_divisible_by": 8,
        "dynamic_batching": {
            "enabled": packing == "dynamic",
            "sequence_length_round": 8,
            "train_mb_tokens": tokens,
            "logprob_mb_tokens": tokens,
        },
        "sequence_packing": {
            "enabled": packing == "sequence",
            "algorithm": "modified_first_fit_decreasing",
            "train_mb_tokens": tokens,
            "logprob_mb_tokens": tokens,
        },
        "generation": {
            "colocated": {"enabled": False},
            "temperature": settings.temperature,
            "top_p": 1.0,
            "top_k": None,
        },
        "optimizer": {
            "name": "torch.optim.AdamW",
            "kwargs": {
                "lr": settings.warmup_lr if warms_up else settings.lr,
                "betas": [0.9, 0.98],
                "fused": True,  # otherwise an update of so small a model costs more than its gradients
            },
        },
        "scheduler": _warm_up_and_learn(settings, steps) if warms_up else _line(1.0, 0.1, _updates(settings, steps)),
        "dtensor_cfg": {
            "device": "cpu",
            "cpu_offload": False,
            "sequence_parallel": False,
            "activation_checkpointing": False,
            "tensor_parallel_size": tp,
            "context_parallel_size": 1,
        },
    }


def _warm_up_and_learn(settings: GrpoSettings, steps: int) -> list[dict[str, Any]]:
    """Learning-rate schedule: warm-up rises over 20 steps and falls to a tenth; GRPO then starts at its own rate and
    falls to a tenth, because in late steps few groups teach anything.
    """
    rise, learning = 20, settings.lr / settings.warmup_lr
    return [
        _line(1 / rise, 1.0, rise),
        _line(1.0, 0.1, settings.warmup_steps - rise),
        _line(learning, 0.1 * learning, _updates(settings, steps)),
        {"milestones": [rise, settings.warmup_steps]},
    ]


def _updates(settings: GrpoSettings, steps: int) -> int:
    return max(1, steps * settings.optimizer_steps_per_batch)


def _line(start: float, end: float, updates: int) -> dict[str, Any]:
    factors = {"start_factor": start, "end_factor": end, "total_iters": updates}
    return {"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": factors}
