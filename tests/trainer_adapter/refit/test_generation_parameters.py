"""What engines get of a model: its adapters merged, its entries converted. Streams (test_weight_stream) show that each
entry is sent, in order and cast; test_refit_between_processes has sharded models.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.trainer_adapter.automodel.setup_cases import EXPERTS, SHAPE
from tests.trainer_adapter.refit.refit_cases import TinyModel, add_adapter
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from trainer_adapter.refit import generation_parameters, load_weights, refit_info


def test_info_has_the_names_shapes_and_dtypes_in_the_order_of_sending_without_reading_values() -> None:
    sent = generation_parameters(TinyModel(adapter=True), torch.bfloat16)
    info = refit_info(TinyModel(adapter=True).to("meta"), torch.bfloat16)
    assert list(info.items()) == [(name, (value.shape, value.dtype)) for name, value in sent]


@pytest.mark.parametrize("base", [torch.float32, torch.bfloat16])
def test_adapters_are_merged_in_float32(base: torch.dtype) -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(20, 30).to(base))
    add_adapter(model[0], rank=4, scale=2.5)
    sent = dict(generation_parameters(model, torch.float32))
    expected = model[0].weight.float() + model[0].lora_B.weight @ model[0].lora_A.weight * 2.5
    torch.testing.assert_close(sent["0.weight"], expected.detach(), rtol=1e-6, atol=1e-6)
    assert list(sent) == ["0.weight", "0.bias"]


class SplitExperts:
    """As NeMo AutoModel's adapters do: one tensor of all experts becomes a tensor an expert."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def convert_single_tensor_to_hf(self, fqn: str, tensor: Tensor, **kwargs: Any) -> list[tuple[str, Tensor]]:
        self.asked.append(fqn)
        assert kwargs == {"exclude_key_regex": ".*_extra_state.*", "quantization": False}
        if "layers" not in fqn or tensor.dim() != 2:
            return [(fqn, tensor)]
        return [(f"experts.{index}.{fqn}", part.T) for index, part in enumerate(tensor.split(4))]


def test_entries_become_what_the_models_adapter_makes_of_them() -> None:
    model: Any = TinyModel()
    model.state_dict_adapter = SplitExperts()
    sent = dict(generation_parameters(model, torch.bfloat16))
    assert not any("extra_state" in name for name in model.state_dict_adapter.asked)
    part = sent["experts.1.layers.3.weight"]
    assert part.is_contiguous()
    assert torch.equal(part, model.layers[3].weight[4:].T.bfloat16())
    assert {name: (value.shape, value.dtype) for name, value in sent.items()} == refit_info(model, torch.bfloat16)


@pytest.mark.parametrize(("kind", "experts"), [("qwen3_moe", EXPERTS), ("mixtral", {"num_local_experts": 4})])
def test_experts_that_transformers_fuses_are_sent_as_files_have_them_and_fused_again_by_an_engine(
    tmp_path: Path, kind: str, experts: dict[str, Any]
) -> None:
    model, engine = (AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SHAPE, **experts)) for _ in "ab")
    model.save_pretrained(tmp_path)
    sent, info = dict(generation_parameters(model, torch.float32)), refit_info(model, torch.float32)
    assert {name: (value.shape, value.dtype) for name, value in sent.items()} == info
    expected = load_file(tmp_path / "model.safetensors")
    assert sent.keys() == expected.keys()
    load_weights(engine, info, sent.items())
    for found, whole in ((sent, expected), (engine.state_dict(), model.state_dict())):
        assert [name for name, value in whole.items() if not torch.equal(found[name], value)] == []


def test_no_weight_is_kept_when_the_next_one_is_made() -> None:
    alive: list[weakref.ref[Tensor]] = []
    for name, value in generation_parameters(TinyModel(adapter=True), torch.bfloat16):
        assert not any(earlier() is not None for earlier in alive), name
        if value.is_floating_point():  # the others are the model's own
            alive.append(weakref.ref(value))
        del value
    assert len(alive) > 10


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"bias": None}, "bias is missing"),
        ({"other": torch.zeros(2)}, "other is surplus"),
        ({"weight": torch.zeros(3, 2)}, r"weight has shape \(3, 2\), not \(2, 3\)"),
        ({"bias": torch.zeros(())}, r"bias has shape \(\), not \(2,\)"),
    ],
)
def test_weights_of_another_model_are_refused_before_one_is_loaded(change: dict[str, Any], text: str) -> None:
    weights = {"weight": torch.ones(2, 3), "bias": torch.ones(2), **change}
    sent = {name: value for name, value in weights.items() if value is not None}
    info = {name: (value.shape, value.dtype) for name, value in sent.items()}
    model = nn.Linear(3, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=text):
        load_weights(model, info, sent.items())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_that_end_early_are_an_error() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="bias"):
        load_weights(model, refit_info(model, torch.float32), [("weight", torch.ones(2, 3))])
