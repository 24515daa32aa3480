"""Validation before any rank starts: refusals, notices and derived values."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config
from tests.trainer_adapter.automodel.setup_cases import REWARD
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from trainer_adapter.automodel.config import RuntimeConfig, TrainingSamplingParams
from trainer_adapter.automodel.models.backend import require_model_backend
from trainer_adapter.automodel.packages import is_installed
from trainer_adapter.automodel.setup import validate_and_prepare_config
from trainer_adapter.worker import AutomodelPolicyWorker

PACKED = {"sequence_packing": {"enabled": True}}
FLOAT32 = {"precision": "float32"}
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
    layout = {"device": "cpu", "cpu_offload": False, "sequence_parallel": False}
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


def test_a_plain_configuration_determines_everything(model: Path) -> None:
    runtime = validated(model)
    assert runtime.model_class is AutoModelForCausalLM
    assert runtime.model_config.model_type == "qwen2"
    assert runtime.model_config.dtype == torch.float32
    assert runtime[2:] == ({}, True, None, torch.bfloat16, False, 1.5, False, False, None, None, False)


def refused(text: str, *changes: dict[str, Any], error: type[Exception] = ValueError, **dtensor_cfg: Any) -> Any:
    return pytest.param({key: value for change in changes for key, value in change.items()}, dtensor_cfg, error, text)


GATHERED: Any = {"context_parallel_size": 2, "context_parallel_attention": "gathered"}
OF_ATTENTION = r"sequence_packing\.attention"


@pytest.mark.parametrize(
    ("changes", "dtensor_cfg", "error", "text"),
    [
        *(
            refused(
                "YaRN is not supported", {"hf_config_overrides": {"rope_scaling": {key: "yarn"}}}, error=AssertionError
            )
            for key in ("rope_type", "type")
        ),
        refused("hf_config_overrides: .* no rms_norm_epsilon", {"hf_config_overrides": {"rms_norm_epsilon": 1.0}}),
        refused("(?i)sequence packing .*reward model", PACKED, REWARD, error=NotImplementedError),
        refused("^Context parallel .* sequence packing unless .*_attention=gathered", PACKED, context_parallel_size=2),
        refused(f"{OF_ATTENTION}=flash needs device=cuda; use sdpa", packed_by("flash")),
        refused(f"{OF_ATTENTION}=flex needs device=cuda; use sdpa", packed_by("flex")),
        refused(f"{OF_ATTENTION}=flash needs precision=bfloat16; for float32", PACKED, FLOAT32, device="cuda"),
        refused(f"{OF_ATTENTION} .*sdpa .*context_parallel_", packed_by("flex"), device="cuda", **GATHERED),
        *(
            refused(rf"^dtensor_cfg\.automodel_kwargs\.{key}: {ASKS}", automodel_kwargs={key: value})
            for key, value in (("backend", {"attn": "te"}), ("force_hf", False), ("use_liger_kernel", True))
        ),
        refused(rf"^dtensor_cfg\.moe_parallelizer: {ASKS}", expert_parallel_size=2, moe_parallelizer={"lm_head": 1}),
        refused(f"^dequantize_base_checkpoint: {ASKS}", {"dequantize_base_checkpoint": True}),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    model: Path, changes: dict[str, Any], dtensor_cfg: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        validated(model, changes, **dtensor_cfg)


def test_sequence_packing_is_refused_for_vision_language_models(model: Path) -> None:
    with pytest.raises(ValueError, match="VLM"):
        validate_and_prepare_config(config(model, PACKED), PROCESSOR, 0)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tokenizer": {"name": None}}, "tokenizer.name must be a string, not None"),
        ({"precision": ["float32"]}, "precision must be one of float32, bfloat16, float16, not ['float32']"),
        ({"seed": True}, "seed must be an integer or null, not True"),
        ({"generation": {"temperature": None}}, "generation.temperature must be a number, not None"),
        ({"dtensor_cfg": {"dp_replicate_size": "2"}}, "dtensor_cfg.dp_replicate_size must be an integer, not '2'"),
        ({"sequence_packing": None}, "sequence_packing must be a mapping, not None"),
        ({"dynamic_batching": {"enabled": "false"}}, "dynamic_batching.enabled must be true or false, not 'false'"),
        ({"scheduler": [1]}, "scheduler[0] must be a mapping, not 1"),
        ({"train_micro_batch_size": 0}, "train_micro_batch_size must be positive, not 0"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm must be positive, not nan"),
        ({"dtensor_cfg": {"tensor_parallel_size": -1}}, "dtensor_cfg.tensor_parallel_size must be positive, not -1"),
        ({"dtensor_cfg": {"collective_timeout_s": 0}}, "dtensor_cfg.collective_timeout_s must be positive, not 0"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_key(model: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        AutomodelPolicyWorker(config(model, changes))


LAYOUT = ["dtensor_cfg.cpu_offload", "dtensor_cfg.sequence_parallel"]


@pytest.mark.parametrize("path", ["max_grad_norm", "sequence_packing.enabled", *LAYOUT])
def test_a_missing_key_is_named(model: Path, path: str) -> None:
    incomplete, (block, _, key) = config(model), path.partition(".")
    del (incomplete[block] if path in LAYOUT else incomplete)[key if path in LAYOUT else block]
    with pytest.raises(KeyError, match=re.escape(path)):
        validate_and_prepare_config(incomplete, None, 0)


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
        ({**packed_by("sdpa"), **FLOAT32}, {"device": "cuda"}, "sdpa"),
        ({}, {"context_parallel_size": 2}, "sdpa"),
        (PACKED, GATHERED, "sdpa"),
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
    with pytest.raises(ImportError, match=r"flash-attn .*kernels"):
        validated(model, PACKED, device="cuda")


def test_a_reward_model_has_one_label(model: Path) -> None:
    runtime = validated(model, REWARD)
    assert runtime.model_class is AutoModelForSequenceClassification
    assert runtime.model_config.num_labels == 1
    assert runtime.is_reward_model


@pytest.mark.skipif(is_installed(), reason="nemo_automodel is installed")
def test_nemo_automodel_is_asked_for_by_its_extra(model: Path) -> None:
    with pytest.raises(ImportError, match=r"rl-dataplane\[automodel\]"):
        require_model_backend(config(model, model_backend="automodel"))
