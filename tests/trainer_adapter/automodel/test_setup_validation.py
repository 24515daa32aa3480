"""Validation before any rank starts: refusals, notices and derived values."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config
from tests.trainer_adapter.automodel.setup_cases import REWARD
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSequenceClassification

from trainer_adapter.automodel.config import RuntimeConfig, TrainingSamplingParams
from trainer_adapter.automodel.models.backend import require_model_backend, resolve_model_class
from trainer_adapter.automodel.packages import is_installed
from trainer_adapter.automodel.setup import STRING_TO_DTYPE, validate_and_prepare_config

PACKED = {"sequence_packing": {"enabled": True}}
GENERATION = {"colocated": {"enabled": True}, "top_k": None, "top_p": 0.9, "temperature": 0.7}
ASKS = r"only NeMo Automodel can do this\. Set dtensor_cfg\.model_backend=automodel, or remove"
PROCESSOR: Any = SimpleNamespace()


def packed_by(attention: str) -> dict[str, Any]:
    return {"sequence_packing": {"enabled": True, "attention": attention}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}))
    return folder


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NCCL_CUMEM_ENABLE", "unset")  # so that what the test sets is undone
    monkeypatch.delenv("NCCL_CUMEM_ENABLE")
    torch._inductor.config.autotune_local_cache = True
    yield
    torch._inductor.config.autotune_local_cache = True


def config(model: Path, changes: dict[str, Any] | None = None, **dtensor_cfg: Any) -> Any:
    layout = {"device": "cpu", "cpu_offload": False, "sequence_parallel": False, "context_parallel_size": 1}
    return {
        "model_name": str(model),
        "precision": "bfloat16",
        "max_grad_norm": 1.5,
        "sequence_packing": {"enabled": False},
        "dtensor_cfg": {**layout, **dtensor_cfg},
        **(changes or {}),
    }


def validated(model: Path, changes: dict[str, Any] | None = None, **dtensor_cfg: Any) -> RuntimeConfig:
    return validate_and_prepare_config(config(model, changes, **dtensor_cfg), None, 0)


def test_precisions_have_the_names_of_torch() -> None:
    expected = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    assert expected == STRING_TO_DTYPE


def test_a_plain_configuration_determines_everything(model: Path) -> None:
    runtime = validated(model)
    assert runtime.model_class is AutoModelForCausalLM
    assert runtime.model_config.model_type == "qwen2"
    assert runtime.model_config.dtype == torch.float32
    assert runtime[2:] == ({}, True, None, torch.bfloat16, False, 1.5, False, False, None, None, False)


@pytest.mark.parametrize(
    ("changes", "dtensor_cfg", "error", "text"),
    [
        ({"precision": "int8"}, {}, ValueError, "Unknown precision: int8"),
        *(
            ({"max_grad_norm": limit}, {}, ValueError, f"max_grad_norm must be positive or null, not {limit!r}")
            for limit in (0, -1.0, float("nan"), "1e-3")
        ),
        ({"hf_config_overrides": {"rope_scaling": {"rope_type": "yarn"}}}, {}, AssertionError, "YaRN is not supported"),
        ({**PACKED, **REWARD}, {}, NotImplementedError, "Sequence packing is not supported for reward models"),
        (
            {"reward_model_cfg": {"enabled": True, "reward_model_type": "oracle"}},
            {},
            ValueError,
            "Unknown reward model type: oracle",
        ),
        (
            PACKED,
            {"context_parallel_size": 2},
            ValueError,
            "^Context parallel is not supported for sequence packing unless .*context_parallel_attention=gathered",
        ),
        (
            packed_by("eager"),
            {},
            ValueError,
            "sequence_packing.attention must be one of sdpa, flash, flex, not 'eager'",
        ),
        *(
            (packed_by(kind), {}, ValueError, f"sequence_packing.attention={kind} needs device=cuda; use sdpa")
            for kind in ("flash", "flex")
        ),
        (
            {**PACKED, "precision": "float32"},
            {"device": "cuda"},
            ValueError,
            "sequence_packing.attention=flash needs precision=bfloat16; for float32 use sdpa or flex",
        ),
        (
            packed_by("flex"),
            {"device": "cuda", "context_parallel_size": 2, "context_parallel_attention": "gathered"},
            ValueError,
            "sequence_packing.attention must be sdpa with context_parallel_size > 1",
        ),
        (
            {},
            {"context_parallel_attention": "ulysses"},
            ValueError,
            "dtensor_cfg.context_parallel_attention must be one of gathered, torch, not 'ulysses'",
        ),
        ({}, {"context_parallel_attention": "torch"}, ValueError, "context_parallel_attention=torch needs device=cuda"),
        ({}, {"device": "tpu"}, ValueError, "dtensor_cfg.device must be one of cuda, cpu, not 'tpu'"),
        ({}, {"model_backend": "jax"}, ValueError, "dtensor_cfg.model_backend must be one of transformers, automodel"),
        *(
            ({}, {"automodel_kwargs": {key: value}}, ValueError, rf"^dtensor_cfg\.automodel_kwargs\.{key}: {ASKS}")
            for key, value in (("backend", {"attn": "te"}), ("force_hf", False), ("use_liger_kernel", True))
        ),
        ({"dequantize_base_checkpoint": True}, {}, ValueError, f"^dequantize_base_checkpoint: {ASKS}"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    model: Path, changes: dict[str, Any], dtensor_cfg: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        validated(model, changes, **dtensor_cfg)


def test_settings_of_the_other_backend_that_change_nothing_are_accepted(model: Path) -> None:
    other = {"force_hf": True, "use_liger_kernel": False, "backend": None}
    assert validated(model, {"dequantize_base_checkpoint": False}, automodel_kwargs=other).model_config is not None


def test_sequence_packing_is_refused_for_vision_language_models(model: Path) -> None:
    with pytest.raises(ValueError, match=r"^Sequence packing is not supported for VLM"):
        validate_and_prepare_config(config(model, PACKED), PROCESSOR, 0)


@pytest.mark.parametrize("path", ["max_grad_norm", "sequence_packing.enabled"])
def test_a_missing_key_is_named(model: Path, path: str) -> None:
    incomplete = config(model)
    del incomplete[path.partition(".")[0]]
    with pytest.raises(KeyError, match=path):
        validate_and_prepare_config(incomplete, None, 0)


@pytest.mark.parametrize("key", ["cpu_offload", "context_parallel_size", "sequence_parallel"])
def test_a_missing_key_of_the_layout_is_named(model: Path, key: str) -> None:
    incomplete = config(model)
    del incomplete["dtensor_cfg"][key]
    with pytest.raises(KeyError, match=rf"dtensor_cfg\.{key}"):
        validate_and_prepare_config(incomplete, None, 0)


def test_an_unknown_precision_wins_over_everything_that_is_checked_later(model: Path) -> None:
    with pytest.raises(ValueError, match="Unknown precision"):
        validate_and_prepare_config(config(model, {**PACKED, "precision": "int8"}), PROCESSOR, 0)


@pytest.mark.parametrize(
    ("generation", "colocated", "variable"),
    [(GENERATION, True, None), ({**GENERATION, "colocated": {"enabled": False}}, False, "1"), (None, None, "1")],
)
def test_nccl_uses_cumem_unless_generation_is_colocated(
    model: Path, generation: dict[str, Any] | None, colocated: bool | None, variable: str | None
) -> None:
    runtime = validated(model, {"generation": generation})
    sampling = None if generation is None else TrainingSamplingParams(top_k=None, top_p=0.9, temperature=0.7)
    assert (runtime.is_generation_colocated, runtime.sampling_params) == (colocated, sampling)
    assert os.environ.get("NCCL_CUMEM_ENABLE") == variable
    assert torch._inductor.config.autotune_local_cache is False


@pytest.fixture
def flash_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of its name."""
    (tmp_path / "flash_attn").mkdir()
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("flash_attention")
@pytest.mark.parametrize(
    ("changes", "dtensor_cfg", "attention"),
    [
        ({}, {}, None),
        (PACKED, {}, "sdpa"),
        (PACKED, {"device": "cuda"}, "flash_attention_2"),
        (packed_by("flash"), {"device": "cuda"}, "flash_attention_2"),
        (packed_by("flex"), {"device": "cuda"}, "flex_attention"),
        (packed_by("sdpa"), {"device": "cuda"}, "sdpa"),
        ({**packed_by("sdpa"), "precision": "float32"}, {"device": "cuda"}, "sdpa"),
        ({}, {"context_parallel_size": 2}, "sdpa"),
        (PACKED, {"context_parallel_size": 2, "context_parallel_attention": "gathered"}, "sdpa"),
    ],
)
def test_attention_follows_packing_context_parallelism_and_device(
    model: Path, changes: dict[str, Any], dtensor_cfg: dict[str, Any], attention: str | None
) -> None:
    assert validated(model, changes, **dtensor_cfg).attn_impl == attention


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) for name in ("flash_attn", "kernels")), reason="FlashAttention is installed"
)
def test_flash_attention_is_asked_for_before_anything_is_loaded(model: Path) -> None:
    with pytest.raises(ImportError, match=r"needs the package flash-attn or kernels: install one, or use sdpa or flex"):
        validated(model, PACKED, device="cuda")


@pytest.mark.parametrize(
    ("changes", "dtensor_cfg", "notice"),
    [
        (PACKED, {}, "[Rank 3] Using sdpa for sequence packing"),
        (PACKED, {}, "[Rank 3] Sequence packing is enabled for model "),
        ({}, {"sequence_parallel": True}, "sequence_parallel=True has no effect with tp_size=1"),
        (REWARD, {}, "model_config.num_labels is 2; set to 1"),
    ],
)
def test_what_was_chosen_is_written_to_standard_output(
    model: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], dtensor_cfg: dict[str, Any], notice: str
) -> None:
    validate_and_prepare_config(config(model, changes, **dtensor_cfg), None, 3)
    assert notice in capsys.readouterr().out


def test_a_reward_model_has_one_label(model: Path) -> None:
    runtime = validated(model, REWARD)
    assert runtime.model_class is AutoModelForSequenceClassification
    assert runtime.model_config.num_labels == 1
    assert runtime.is_reward_model


def test_overrides_reach_the_models_configuration(model: Path) -> None:
    runtime = validated(model, {"hf_config_overrides": {"hidden_size": 48}})
    assert runtime.hf_config_overrides == {"hidden_size": 48}
    assert runtime.model_config.hidden_size == 48


@pytest.mark.parametrize(
    ("model_type", "expected"), [("LLaVA", AutoModelForImageTextToText), ("gpt2", AutoModelForCausalLM)]
)
def test_the_models_class_follows_its_type(model_type: str, expected: Any) -> None:
    assert resolve_model_class(model_type) is expected


@pytest.mark.skipif(is_installed(), reason="nemo_automodel is installed")
def test_nemo_automodel_is_asked_for_by_its_extra(model: Path) -> None:
    with pytest.raises(ImportError, match=r"rl-dataplane\[automodel\]"):
        require_model_backend(config(model, model_backend="automodel"))
