"""Look-up of settings, and the fields that workers unpack by position."""

from __future__ import annotations

from typing import Any

import pytest

from trainer_adapter.automodel.config import DistributedContext, ModelAndOptimizerState, RuntimeConfig, required

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


@pytest.mark.parametrize("value", [False, None, 0, "x"])
def test_a_setting_is_found_whatever_its_value(value: object) -> None:
    assert required({"dtensor_cfg": {"cpu_offload": value}}, "dtensor_cfg.cpu_offload") is value


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({}, ": it has no dtensor_cfg"),
        ({"dtensor_cfg": None}, ": it has no dtensor_cfg.lora_cfg"),
        ({"dtensor_cfg": {}}, ": it has no dtensor_cfg.lora_cfg"),
        ({"dtensor_cfg": {"lora_cfg": {}}}, ""),
    ],
)
def test_a_setting_that_is_missing_is_named_with_its_path(config: dict[str, Any], missing: str) -> None:
    with pytest.raises(KeyError) as caught:
        required(config, "dtensor_cfg.lora_cfg.dim")
    assert caught.value.args == (f"the policy config must set dtensor_cfg.lora_cfg.dim{missing}",)
