"""The cases of two real ranks with NeMo Automodel models: those of the other backend (setup_cases.py, lora_cases.py)
and its own. rank_processes.py runs them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.trainer_adapter.automodel import lora_cases, rank_processes, setup_cases

BACKEND: dict[str, Any] = {"model_backend": "automodel"}
TP: dict[str, Any] = {**BACKEND, "tensor_parallel_size": 2}
EVERY_LAYER: dict[str, Any] = {**lora_cases.SOME, "target_modules": ["*_proj"]}
LENGTHS = [7, 4, 9]


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
    "refused_experts": setup_cases.refused("qwen3moe", **BACKEND, expert_parallel_size=2),
    "refused_replicas": setup_cases.refused("llama", **BACKEND, dp_replicate_size=2),
    "unreadable": setup_cases.refused("no_weights", **BACKEND),
}
