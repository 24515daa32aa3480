"""Look-up of settings, and the fields that workers unpack by position."""

from __future__ import annotations

from typing import Any

import pytest

from trainer_adapter.automodel.config import DistributedContext, ModelAndOptimizerState, RuntimeConfig

DISTRIBUTED = "device_mesh moe_mesh fsdp2_config moe_config dp_size tp_size cp_size"
RUNTIME = (
    "model_class model_config hf_config_overrides allow_flash_attn_args attn_impl dtype enable_seq_packing "
    "max_grad_norm cpu_offload offload_optimizer_for_logprob is_generation_colocated sampling_params is_reward_model"
)
STATE = (
    "model optimizer scheduler is_hf_model is_moe_model is_reward_model model_class model_config peft_config "
    "autocast_enabled"
)


@pytest.mark.parametrize(
    ("kind", "fields"), [(DistributedContext, DISTRIBUTED), (RuntimeConfig, RUNTIME), (ModelAndOptimizerState, STATE)]
)
def test_the_results_of_setup_are_unpacked_in_this_order(kind: Any, fields: str) -> None:
    names = fields.split()
    assert [*kind(*names)] == [*kind(**{name: name for name in names})] == names
