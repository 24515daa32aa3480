"""Adapters on a single rank: their layers, initial values and files. lora_cases.py has several ranks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.ranks import be_the_only_rank
from tests.trainer_adapter.automodel import lora_cases, setup_cases
from tests.trainer_adapter.automodel.lora_cases import LORA, MANAGER, SOME, adapters_in, lora_config
from tests.trainer_adapter.automodel.setup_cases import (
    BATCH,
    assert_refused,
    policy_config,
    set_up,
    train_step,
    whole_weights,
)
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from trainer_adapter.automodel.adapters.config import PeftConfig, peft_config
from trainer_adapter.automodel.adapters.layers import adapted_layers, add_adapters, initial_adapters
from trainer_adapter.automodel.checkpoint import detect_checkpoint_format

pytestmark = pytest.mark.usefixtures("only_rank")

TARGETS = ("q_proj",)


def empty_llama(**settings: Any) -> Any:
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**{**setup_cases.SHAPE, "num_hidden_layers": 1, **settings}))


def adapted(config: PeftConfig, model: nn.Module | None = None) -> set[str]:
    """Names without those of the model and its layer."""
    model = model or empty_llama()
    add_adapters(model, config)
    return {name.removeprefix("model.layers.0.") for name in adapted_layers(model)}


# --- set-up ---


@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.long), "bfloat16"])
def test_the_first_forward_pass_is_the_base_models(folder: Path, precision: str) -> None:
    logits = []
    for config in (policy_config(folder / "qwen2"), lora_config(folder / "qwen2")):
        with set_up({**config, "precision": precision}) as state:
            logits.append(state.model(input_ids=BATCH, use_cache=False).logits)
    assert torch.equal(*logits)


def test_only_adapters_are_trained_and_the_configuration_is_returned(folder: Path) -> None:
    with set_up(lora_config(folder / "llama", SOME)) as state:
        assert state.peft_config == PeftConfig(dim=4, alpha=6, target_modules=("q_proj", "*.mlp.down_proj"))
        trained = {name for name, value in state.model.named_parameters() if value.requires_grad}
        assert state.optimizer is not None
        assert len(state.optimizer.param_groups[0]["params"]) == len(trained) == 2 * 2 * 2
        assert trained == adapters_in(state.model.state_dict()).keys()
        layer: Any = state.model.get_submodule("model.layers.1.mlp.down_proj")
        assert layer.scale == lora_cases.SCALE
        assert (layer.lora_A.weight.shape, layer.lora_B.weight.shape) == ((4, 48), (32, 4))


# --- which layers ---

QKV = {f"self_attn.{name}_proj" for name in "qkv"}
BODY = QKV | {"self_attn.o_proj"} | {f"mlp.{name}_proj" for name in ("gate", "up", "down")}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"match_all_linear": True}, BODY),
        ({"match_all_linear": True, "exclude_modules": ("*.mlp.*", "o_proj")}, QKV),
        ({"match_all_linear": True, "target_modules": ("lm_head",)}, BODY | {"lm_head"}),
        ({"target_modules": ("q_proj", "*layers.0.mlp.up*")}, {"self_attn.q_proj", "mlp.up_proj"}),
        ({"target_modules": ("*_proj",), "exclude_modules": ("*[qkv]_proj",)}, BODY - QKV),
    ],
)
def test_layers_are_named_by_their_last_part_or_by_patterns(settings: dict[str, Any], expected: set[str]) -> None:
    assert adapted(PeftConfig(**settings)) == expected


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"target_modules": ("q_proj", "q_porj")}, "'q_porj'"),
        ({"target_modules": ("embed_tokens",)}, "'embed_tokens'"),
        ({"target_modules": TARGETS, "exclude_modules": ("*",)}, "exclude_modules"),
        ({"target_modules": ("lm_head",)}, "lm_head"),
    ],
)
def test_names_that_leave_nothing_to_adapt_are_refused_and_nothing_is_frozen(
    settings: dict[str, Any], text: str
) -> None:
    model = empty_llama(tie_word_embeddings=True)
    with pytest.raises(ValueError, match=text):
        add_adapters(model, PeftConfig(**settings))
    assert all(parameter.requires_grad for parameter in model.parameters())


# --- how they begin, and dropout ---


# Glorot and Bengio 2010, normal; He et al. 2015 with a = sqrt(5): uniform up to 1 / sqrt(in)
DEVIATIONS = {"xavier": math.sqrt(2 / (32 + 512)), **dict.fromkeys(("uniform", "kaiming"), 1 / math.sqrt(3 * 512))}


@pytest.mark.parametrize(("start", "deviation"), DEVIATIONS.items())
def test_a_begins_as_configured_and_b_at_zero(start: Any, deviation: float) -> None:
    model = nn.Sequential(nn.Linear(512, 64))
    add_adapters(model, PeftConfig(dim=32, target_modules=("0",), lora_A_init=start))
    torch.manual_seed(3)
    weights = initial_adapters(model)
    a, b = weights["0.lora_A.weight"], weights["0.lora_B.weight"]
    assert not b.any()
    assert a.std().item() == pytest.approx(deviation, rel=0.03)
    assert bool(a.abs().max() <= 1 / math.sqrt(512)) is (start != "xavier")
    torch.rand(5)
    assert torch.equal(initial_adapters(model)["0.lora_A.weight"], a)
    torch.manual_seed(4)
    assert not torch.equal(initial_adapters(model)["0.lora_A.weight"], a)


@pytest.mark.parametrize(("position", "values"), [("pre", {0.0, 2.0, 4.0}), ("post", {0.0, 4.0})])
def test_dropout_is_of_the_adapters_input_or_output_and_of_training_only(position: Any, values: set[float]) -> None:
    model = nn.Sequential(nn.Linear(2, 100, bias=False))
    add_adapters(model, PeftConfig(dim=1, alpha=1, target_modules=("0",), dropout=0.5, dropout_position=position))
    layer: Any = model[0]
    layer.weight = nn.Parameter(torch.zeros(100, 2))
    layer.lora_A.weight = nn.Parameter(torch.ones(1, 2))
    layer.lora_B.weight = nn.Parameter(torch.ones(100, 1))
    rows = torch.ones(50, 2)
    assert set(model(rows).flatten().tolist()) == values
    assert set(model.eval()(rows).flatten().tolist()) == {2.0}


# --- the configuration ---


@pytest.mark.parametrize("lora_cfg", [None, {}, {"enabled": False, "dimm": 1}])
def test_without_enabled_there_are_no_adapters(lora_cfg: Any) -> None:
    assert peft_config({"lora_cfg": lora_cfg}, 1, "cpu") is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"dimm": 8, "use_dora": True}, "dimm, use_dora; .*alpha, dim, "),
        ({"dim": 0}, "dim .*0"),
        ({"alpha": 0}, "alpha must be positive, not 0"),
        ({"dropout": 1.0}, "dropout .*1.0"),
        ({"target_modules": "q_proj"}, "target_modules .*'q_proj'"),
        ({"exclude_modules": [1]}, r"exclude_modules\[0\] must be a string"),
        ({"match_all_linear": False}, "must name target_modules or set match_all_linear"),
        ({"use_triton": True}, "use_triton must be false"),
        ({"lora_dtype": "bfloat16"}, "lora_dtype must be float32, not bfloat16"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_key(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"dtensor_cfg.lora_cfg.*{text}"):
        peft_config({"lora_cfg": {**LORA, **settings}}, 1, "cpu")


def test_what_tensor_parallel_ranks_cannot_do_is_refused() -> None:
    dropping = {"lora_cfg": {**LORA, "dropout": 0.1}}
    with pytest.raises(AssertionError, match="use_triton"):
        peft_config({"lora_cfg": {**LORA, "use_triton": True}}, 2, "cuda")
    with pytest.raises(NotImplementedError, match=r"dropout .*device=cuda"):
        peft_config(dropping, 2, "cpu")
    with pytest.raises(NotImplementedError, match=r"device=cuda.*activation_checkpointing=false"):
        peft_config({**dropping, "activation_checkpointing": True}, 2, "cuda")
    assert peft_config({**dropping, "activation_checkpointing": True}, 1, "cuda") is not None
    assert peft_config(dropping, 2, "cuda") is not None


# --- checkpoints ---


@pytest.fixture(scope="module")
def saved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A checkpoint of adapters after a step, and all weights then."""
    where = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        be_the_only_rank(patch)
        patch.setenv("NCCL_CUMEM_ENABLE", "1")
        with set_up(lora_config(folder / "llama")) as state:
            train_step(state, 0, 1)
            MANAGER.save_checkpoint(state.model, str(where), checkpointing_cfg={"save_consolidated": True})
            return where / "model", whole_weights(state.model)


Saved = tuple[Path, dict[str, torch.Tensor]]


def test_a_checkpoint_holds_the_adapters_under_the_names_that_engines_read(saved: Saved) -> None:
    where, weights = saved
    files = {path.name for path in where.iterdir()}
    assert files == {"adapter_model.safetensors", "adapter_config.json", "config.json"}
    assert detect_checkpoint_format(str(where)) == ("safetensors", True)
    found = load_file(where / "adapter_model.safetensors")
    assert found.keys() == {f"base_model.model.{name}" for name in adapters_in(weights)}
    described = json.loads((where / "adapter_config.json").read_text())
    assert (described["peft_type"], described["r"], described["lora_alpha"]) == ("LORA", 4, 6)
    assert len(described["target_modules"]) == 14


def test_what_is_trained_beside_adapters_is_not_lost_in_silence(folder: Path, tmp_path: Path) -> None:
    with set_up(lora_config(folder / "llama")) as state:
        state.model.get_parameter("model.norm.weight").requires_grad_(True)
        with pytest.raises(ValueError, match=r"model\.norm\.weight"):
            MANAGER.save_checkpoint(state.model, str(tmp_path), checkpointing_cfg={})


def test_adapters_are_loaded_and_the_base_stays(folder: Path, saved: Saved) -> None:
    with set_up(lora_config(folder / "llama"), weights_path=str(saved[0])) as state:
        loaded = whole_weights(state.model)
    assert loaded.keys() == saved[1].keys()
    assert all(torch.equal(loaded[name], value) for name, value in saved[1].items())


def test_base_weights_are_loaded_and_the_adapters_stay(folder: Path, saved: Saved, tmp_path: Path) -> None:
    base = {name: value + 1 for name, value in saved[1].items() if "lora_" not in name}
    save_file(base, tmp_path / "model.safetensors")
    with set_up(lora_config(folder / "llama"), weights_path=str(saved[0])) as state:
        MANAGER.load_checkpoint(state.model, str(tmp_path))
        loaded = whole_weights(state.model)
    expected = {**saved[1], **base}
    assert all(torch.equal(loaded[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"dim": 2, "alpha": 3}, "r=4 and lora_alpha=6 differ from dtensor_cfg.lora_cfg, which has dim=2 and alpha=3"),
        ({"alpha": 7}, "differ from dtensor_cfg.lora_cfg"),
        ({"exclude_modules": ["q_proj"]}, "adapted layers differ from the model's .*q_proj.lora_A.weight"),
    ],
)
def test_adapters_of_another_configuration_are_refused(
    folder: Path, saved: Saved, settings: dict[str, Any], text: str
) -> None:
    config = lora_config(folder / "llama", {**LORA, **settings})
    assert_refused(config, ValueError, text, weights_path=str(saved[0]))


@pytest.mark.parametrize(
    ("described", "text"),
    [
        ({"peft_type": "IA3"}, "peft_type must be LORA"),
        ([], "peft_type must be LORA"),
        ({"peft_type": "LORA", "r": 4, "lora_alpha": 6, "use_rslora": True}, "use_rslora is not supported"),
        ({"peft_type": "LORA", "r": 4, "lora_alpha": 6, "alpha_pattern": {"q": 1}}, "alpha_pattern is not supported"),
        ({"peft_type": "LORA", "r": 4, "lora_alpha": 6}, r"q_proj.lora_A.weight has shape \(1,\), the model's"),
    ],
)
def test_foreign_adapters_that_compute_otherwise_are_refused(
    folder: Path, saved: Saved, tmp_path: Path, described: Any, text: str
) -> None:
    weights = load_file(saved[0] / "adapter_model.safetensors")
    odd = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    save_file({**weights, odd: torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(described))
    assert_refused(lora_config(folder / "llama"), ValueError, text, weights_path=str(tmp_path))
