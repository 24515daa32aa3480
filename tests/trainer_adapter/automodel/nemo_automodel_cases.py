"""The cases of two real ranks with NeMo Automodel models: those of the other backend (setup_cases.py, lora_cases.py)
and its own. rank_processes.py runs them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.trainer_adapter.automodel import lora_cases, rank_processes, setup_cases, tiny_policy
from tests.trainer_adapter.automodel.setup_cases import policy_config, set_up

from trainer_adapter.automodel.train import LogprobsPostProcessor, clip_grad_norm, forward_with_post_processing_fn

BACKEND: dict[str, Any] = {"model_backend": "automodel"}
TP: dict[str, Any] = {**BACKEND, "tensor_parallel_size": 2}
EVERY_LAYER: dict[str, Any] = {**lora_cases.SOME, "target_modules": ["*_proj"]}
LENGTHS = [7, 4, 9]


def logprobs(packed: bool) -> rank_processes.Case:
    def play(rank: int, folder: Path) -> torch.Tensor:
        with set_up(policy_config(folder / "llama", **TP)) as state:
            microbatch = tiny_policy.processed(tiny_policy.batch_of(LENGTHS), packed)
            post_processor = LogprobsPostProcessor({}, None, None, None, 1, enable_seq_packing=packed)
            with torch.no_grad():
                passed = forward_with_post_processing_fn(state.model.eval(), post_processor, microbatch)
        found: torch.Tensor = passed[0]
        return found.contiguous()

    return play


def gradient_norm(rank: int, folder: Path) -> float:
    """Of a model with norms of heads, before its first step."""
    norms: list[float] = []
    with set_up(policy_config(folder / "qwen3", **TP)) as state:
        assert state.optimizer is not None
        state.optimizer.register_step_pre_hook(
            lambda *_: norms.append(clip_grad_norm(state.model.parameters(), 1.0).item())
        )
        setup_cases.train_step(state, 0, 1)
    return norms[0]


STEPPED: dict[str, dict[str, Any]] = {
    "llama_dp": BACKEND,
    "llama_offloaded": {**BACKEND, "cpu_offload": True},
    "qwen2_dp_tied": {**BACKEND, "activation_checkpointing": True},
    "qwen3moe_dp": BACKEND,
    "llama_tp": TP,
    "llama_tp_logits_only": {**TP, "custom_parallel_plan": setup_cases.LOGITS_ONLY},
    "qwen2_tp_tied": TP,
    "qwen3_tp_tied": {**TP, "activation_checkpointing": True},
    "qwen3moe_tp": TP,
}
ADAPTED = {
    "llama_lora_dp": lora_cases.stepped("llama_lora_dp", **BACKEND),
    "qwen2_lora_dp": lora_cases.stepped("qwen2_lora_dp", EVERY_LAYER, **BACKEND, activation_checkpointing=True),
    "llama_lora_tp": lora_cases.stepped("llama_lora_tp", EVERY_LAYER, **TP),
}
CASES: dict[str, rank_processes.Case] = {
    **{case: setup_cases.stepped(case, **dtensor_cfg) for case, dtensor_cfg in STEPPED.items()},
    **ADAPTED,
    "checkpointed": partial(setup_cases.checkpointed, **BACKEND),
    "resumed_dp": setup_cases.resumed(1, **BACKEND),
    "resumed_tp": setup_cases.resumed(2, **BACKEND),
    "logprobs": logprobs(packed=False),
    "logprobs_packed": logprobs(packed=True),
    "gradient_norm": gradient_norm,
    "refused_experts": setup_cases.refused("qwen3moe", **BACKEND, expert_parallel_size=2),
    "refused_replicas": setup_cases.refused("llama", **BACKEND, dp_replicate_size=2),
    "unreadable": setup_cases.refused("no_weights", **BACKEND),
}
