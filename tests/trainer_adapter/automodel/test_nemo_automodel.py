"""NeMo Automodel itself on one rank: the parts used of it, its choices of models, and its tokenizers."""

from __future__ import annotations

import importlib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.trainer_adapter.automodel import nemo_automodel_cases, setup_cases, tiny_policy
from tests.trainer_adapter.automodel.setup_cases import policy_config, set_up
from transformers import AutoConfig

from trainer_adapter.automodel.config import DistributedContext
from trainer_adapter.automodel.data import packed_bounds
from trainer_adapter.automodel.models.automodel_model import _adapter_config, _model_kwargs, load_automodel
from trainer_adapter.automodel.packages import from_package, is_installed, missing_parts
from trainer_adapter.automodel.setup import _maybe_set_force_hf, validate_and_prepare_config
from trainer_adapter.automodel.train import extract_logits, model_forward

pytestmark = [
    pytest.mark.usefixtures("only_rank"),
    pytest.mark.automodel,
    pytest.mark.filterwarnings("ignore"),  # it is not ours to mend what the package warns of
]
BACKEND = nemo_automodel_cases.BACKEND
needs_cuda = pytest.mark.skipif(not (torch.cuda.is_available() and is_installed()), reason="needs a CUDA device")
OWN_LINEAR = {"_target_": "nemo_automodel.components.models.common.BackendConfig", "linear": "torch"}


@pytest.fixture(scope="module")
def folder(folder: Path) -> Path:
    AutoConfig.for_model("glm4_moe", architectures=["Glm4MoeForCausalLM"]).save_pretrained(folder / "glm4moe")
    return folder


@pytest.mark.parametrize(("kind", "is_moe"), [("llama", False), ("qwen3moe", True)])
def test_a_rank_alone_steps_as_a_plain_model_does(
    folder: Path, capsys: pytest.CaptureFixture[str], kind: str, is_moe: bool
) -> None:
    loss, logits, weights = setup_cases.stepped_alone(folder / kind)
    with set_up(policy_config(folder / kind, **BACKEND)) as state:
        found_loss, found_logits = setup_cases.train_step(state, 0, 1)
        found = setup_cases.whole_weights(state.model)
        assert (state.is_hf_model, state.is_moe_model, state.autocast_enabled) == (True, is_moe, True)
        assert state.model_config.pad_token_id == setup_cases.TOKENIZER.pad_token_id
    assert found_loss == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(found_logits, logits, rtol=1e-5, atol=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    assert "ForCausalLM of automodel" in capsys.readouterr().out


def test_a_reward_model_gives_one_score_a_sequence(folder: Path) -> None:
    with set_up({**policy_config(folder / "llama", **BACKEND), **setup_cases.REWARD}) as state:
        assert state.is_reward_model
        scores = state.model(input_ids=setup_cases.BATCH, use_cache=False).logits
    assert scores.shape == (4, 1)


def test_all_that_is_used_of_the_package_is_where_it_is_looked_for() -> None:
    assert missing_parts() == []


def test_what_another_release_has_elsewhere_is_named_with_the_release_that_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(importlib.import_module("nemo_automodel.components.distributed.mesh_utils"), "get_flat_mesh")
    reason = r"lacks components\.distributed\.mesh_utils\.get_flat_mesh \(.*needs nemo-automodel 0\.7"
    with pytest.raises(ImportError, match=reason):
        from_package("get_flat_mesh")


def test_where_it_is_installed_every_rank_reports_it_as_the_default(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with set_up(policy_config(folder / "llama")):
        assert "of automodel (the default here)" in capsys.readouterr().out


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM", "Qwen2ForCausalLM"])
def test_weights_of_the_packages_own_models_can_be_sent(architecture: str) -> None:
    kwargs: dict[str, Any] = {}
    _maybe_set_force_hf(kwargs, SimpleNamespace(architectures=[architecture]))
    assert kwargs == {}


def test_an_own_model_whose_weights_cannot_be_sent_is_replaced() -> None:
    kwargs: dict[str, Any] = {}
    _maybe_set_force_hf(kwargs, SimpleNamespace(architectures=["Step3p5ForCausalLM"]))
    assert kwargs == {"force_hf": True}


@pytest.mark.parametrize(
    ("own", "tp_size", "on_cpu", "expected"),
    [
        ({}, 1, False, {}),
        ({}, 1, True, {"force_hf": True}),
        ({}, 2, False, {"force_hf": True}),
        ({"force_hf": False}, 1, False, {"force_hf": False}),
        ({"use_liger_kernel": True}, 1, False, {"use_liger_kernel": True}),
        ({"force_hf": True, "backend": OWN_LINEAR}, 1, False, {"force_hf": True}),
    ],
)
def test_arguments_of_from_pretrained_are_completed(
    folder: Path, own: dict[str, Any], tp_size: int, on_cpu: bool, expected: dict[str, Any]
) -> None:
    config = policy_config(folder / "llama", **BACKEND, automodel_kwargs=own)
    runtime = validate_and_prepare_config(config, None, 0)
    assert _model_kwargs(config, runtime, tp_size, on_cpu) == {"use_liger_kernel": False, **expected}


def test_the_packages_own_models_need_a_gpu(folder: Path) -> None:
    config = policy_config(folder / "llama", **BACKEND, automodel_kwargs={"force_hf": False})
    setup_cases.assert_refused(config, RuntimeError, "force_hf=False needs device=cuda")


# --- packed sequences ---


def own_model(monkeypatch: pytest.MonkeyPatch, kind: str, architecture: str, **settings: Any) -> Any:
    """One of the package's own models on the CPU."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)  # some name a CUDA device as they are made
    shape = {**setup_cases.SHAPE, **settings, "head_dim": 8, "architectures": [architecture], "dtype": torch.float32}
    config = AutoConfig.for_model(kind, **shape, tie_word_embeddings=False)
    backend = from_package("BackendConfig")
    own: Any = from_package("ModelRegistry").model_arch_name_to_cls[architecture]
    model = own(config, backend=backend(attn="sdpa", linear="torch", rms_norm="torch", rope_fusion=False)).eval()
    if hasattr(model.model.rotary_emb, "device"):
        model.model.rotary_emb.device = torch.device("cpu")
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize(
    ("kind", "architecture", "settings"),
    [
        ("llama", "LlamaForCausalLM", {}),
        ("qwen2", "Qwen2ForCausalLM", {}),
        ("qwen3", "Qwen3ForCausalLM", {}),
        ("qwen3_moe", "Qwen3MoeForCausalLM", setup_cases.EXPERTS),
    ],
)
def test_packed_sequences_of_the_packages_own_models_have_the_logits_that_they_have_alone(
    monkeypatch: pytest.MonkeyPatch, kind: str, architecture: str, settings: dict[str, Any]
) -> None:
    model = own_model(monkeypatch, kind, architecture, **settings)
    assert type(model).__module__.startswith("nemo_automodel.")
    batch = tiny_policy.batch_of(nemo_automodel_cases.LENGTHS)
    microbatch = tiny_policy.processed(batch, packed=True)
    bounds = packed_bounds(microbatch).bounds
    with torch.no_grad():
        packed = extract_logits(model, model_forward(model, microbatch.processed_inputs))[0]
        for row, (start, end) in enumerate(pairwise(bounds)):
            alone = tiny_policy.logits_of_row(model, batch, row)
            torch.testing.assert_close(packed[start:end], alone, rtol=1e-5, atol=1e-5)
    assert packed.isfinite().all()


@pytest.mark.parametrize(
    ("kind", "backend", "advice"),
    [
        ("qwen3moe", {"attn": "flex"}, r"Qwen3MoeForCausalLM with attention 'flex' .*, or its backend\.attn=sdpa, or"),
        ("glm4moe", {"attn": "sdpa"}, r"Glm4MoeForCausalLM with attention 'sdpa' .*force_hf=true, or sequence_packing"),
    ],
)
def test_packing_with_an_own_model_that_may_mix_sequences_is_refused_before_it_is_loaded(
    folder: Path, kind: str, backend: dict[str, Any], advice: str
) -> None:
    own = {"backend": {**OWN_LINEAR, **backend}}
    config = policy_config(folder / kind, **{**BACKEND, "device": "cuda"}, automodel_kwargs=own)
    config["sequence_packing"] = {"enabled": True, "attention": "sdpa"}
    runtime = validate_and_prepare_config(config, None, 0)
    with pytest.raises(NotImplementedError, match=advice):
        load_automodel(config, runtime, context_of(cp_size=1))


def context_of(cp_size: int) -> DistributedContext:
    """Of a model that is not loaded."""
    none: Any = None
    return DistributedContext(none, none, none, none, dp_size=1, tp_size=1, cp_size=cp_size)


def test_the_sequences_of_an_own_model_are_not_divided(folder: Path) -> None:
    config = policy_config(folder / "qwen3", **BACKEND, device="cuda")
    runtime = validate_and_prepare_config(config, None, 0)
    with pytest.raises(NotImplementedError, match=r"Qwen3ForCausalLM .*force_hf=true"):
        load_automodel(config, runtime, context_of(cp_size=2))


# --- adapters and tokenizers ---


def test_adapters_are_the_packages_in_float32() -> None:
    lora_cfg = {"enabled": True, "dim": 4, "target_modules": ["*_proj"], "use_dora": True, "lora_dtype": None}
    adapters = _adapter_config({"lora_cfg": lora_cfg}, tp_size=1)
    assert (adapters.dim, adapters.use_dora, adapters.lora_dtype) == (4, True, "torch.float32")
    assert _adapter_config({"lora_cfg": {**lora_cfg, "enabled": False}}, tp_size=1) is None


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("kind", ["llama", "qwen3moe"])
def test_on_a_gpu_the_packages_own_models_step_as_a_plain_model_does(folder: Path, kind: str) -> None:
    loss, logits, _ = setup_cases.stepped_alone(folder / kind)
    backend = {**OWN_LINEAR, "attn": "sdpa", "rms_norm": "torch", "experts": "torch", "dispatcher": "torch"}
    config = policy_config(folder / kind, **{**BACKEND, "device": "cuda"}, automodel_kwargs={"backend": backend})
    with torch.device("cuda"), set_up(config) as state:
        assert not state.is_hf_model
        assert state.autocast_enabled == (kind == "llama")
        found = state.model(input_ids=setup_cases.BATCH.cuda())
        found_logits = found if isinstance(found, torch.Tensor) else found.logits
        torch.testing.assert_close(found_logits.cpu(), logits, rtol=1e-3, atol=1e-3)
        assert setup_cases.mean_nll(found_logits.cpu(), setup_cases.BATCH).item() == pytest.approx(loss, rel=1e-3)
