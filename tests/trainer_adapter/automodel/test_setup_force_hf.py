"""When the Hugging Face implementation is forced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainer_adapter.automodel.models.force_hf import force_hf_with_tensor_parallelism
from trainer_adapter.automodel.packages import is_installed
from trainer_adapter.automodel.setup import _maybe_set_force_hf


def model_config(*architectures: str) -> Any:
    return SimpleNamespace(architectures=list(architectures))


@pytest.mark.skipif(is_installed(), reason="nemo_automodel is installed")
def test_where_there_is_no_registry_its_extra_is_asked_for() -> None:
    with pytest.raises(ImportError, match=r"rl-dataplane\[automodel\]"):
        _maybe_set_force_hf({}, model_config("able"))


@pytest.mark.parametrize(
    ("architecture", "kwargs", "expected"),
    [
        ("LlamaForCausalLM", {}, {"force_hf": True}),
        ("Qwen2ForCausalLM", {"force_hf": None}, {"force_hf": True}),
        ("Qwen2ForCausalLM", {"force_hf": True}, {"force_hf": True}),
        ("Qwen3ForCausalLM", {}, {}),
        ("Qwen3ForCausalLM", {"force_hf": False}, {"force_hf": False}),
    ],
)
def test_models_with_wrong_gradients_between_tensor_parallel_ranks_are_replaced(
    architecture: str, kwargs: dict[str, Any], expected: dict[str, Any]
) -> None:
    force_hf_with_tensor_parallelism(kwargs, model_config(architecture))
    assert kwargs == expected


def test_forbidding_that_replacement_is_an_error_that_tells_the_way_out() -> None:
    with pytest.raises(RuntimeError, match=r"force_hf=False.*Llama.*kwargs\.force_hf=true"):
        force_hf_with_tensor_parallelism({"force_hf": False}, model_config("LlamaForCausalLM"))
