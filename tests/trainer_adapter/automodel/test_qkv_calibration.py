"""Scales of keys and values, by one process and by ranks, are those computed row by row; see qkv_cases.py."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.rank_pool import RankPool
from tests.trainer_adapter.automodel import qkv_cases, rank_processes, setup_cases
from tests.trainer_adapter.automodel.qkv_cases import MARGIN, PERCENTILE, batches, calibrated_model, expected_scales
from tests.trainer_adapter.automodel.tiny_policy import batch_of, processed
from torch import Tensor, nn
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from trainer_adapter.automodel.data import ProcessedMicrobatch
from trainer_adapter.automodel.qkv_calibration import QkvCalibration
from trainer_adapter.automodel.train import model_forward


def calibrate(model: Any, microbatches: list[ProcessedMicrobatch], *settings: Any) -> dict[str, Any]:
    with QkvCalibration(model, *settings) as calibration, torch.no_grad():
        for microbatch in calibration.watched(microbatches):
            model_forward(model, microbatch.processed_inputs, allow_flash_attn_args=False)
    return calibration.scales()


def assert_scales(found: dict[str, dict[str, float]], expected: dict[str, dict[str, float]]) -> None:
    assert found.keys() == expected.keys()
    for layer, scales in expected.items():
        assert found[layer] == pytest.approx(scales, rel=1e-5)


# --- one layer whose numbers are known ---


class OneAttention(nn.Module):
    """Its keys are its inputs [B,S,1], its values twice, its queries thrice."""

    def __init__(self) -> None:
        super().__init__()
        self.config, self.layer_idx, self.value_factor = SimpleNamespace(_attn_implementation="one"), 0, 2.0

    def forward(self, states: Tensor) -> None:
        key = states[:, None]
        ALL_ATTENTION_FUNCTIONS["one"](self, 3 * key, key, self.value_factor * key, None)


class OneLayer(nn.Module):
    """[B,S] ids stand for [B,S,1] hidden states."""

    _supports_attention_backend = True

    def __init__(self) -> None:
        super().__init__()
        self.attn = OneAttention()

    def forward(self, input_ids: Tensor) -> None:
        self.attn(input_ids[..., None].float())


def microbatch_of(rows: list[list[int]], lengths: list[int]) -> ProcessedMicrobatch:
    batch = batch_of(lengths, width=len(rows[0]))
    batch["input_ids"] = torch.tensor(rows, device=batch["input_ids"].device)
    return processed(batch, packed=False)


@pytest.fixture
def one_layer() -> OneLayer:
    AttentionInterface.register("one", lambda *arguments: (arguments[3], None))
    return OneLayer()


def run_one_layer(model: OneLayer, calibration: QkvCalibration, run: list[ProcessedMicrobatch], valid: int) -> None:
    for microbatch in calibration.watched(run, valid):
        model(microbatch.processed_inputs.input_ids)


def test_scales_are_a_percentile_of_largest_values_and_dummies_and_padding_count_for_nothing(
    one_layer: OneLayer,
) -> None:
    run = [microbatch_of([[amax, -amax, 99]], [2]) for amax in (1, 4, 2, 3)] + [microbatch_of([[50]], [1])]
    run[2].data_dict["input_ids"].neg_()
    empty = microbatch_of([[70]], [0])
    with QkvCalibration(one_layer, 50.0, 2.0, include_q=True) as calibration:
        run_one_layer(one_layer, calibration, [empty, *run], 5)
    found, scale = calibration.scales(), 2.5 * 2.0 / 448
    layer = {"q_scale": 3 * scale, "k_scale": scale, "v_scale": 2 * scale}
    assert found.pop("layers") == {"attn": pytest.approx(layer)}
    expected = {"format": "fp8_e4m3", "percentile": 50.0, "margin": 2.0, "include_q": True, "num_samples": 4}
    assert found == expected


def test_ranks_that_hold_some_positions_count_those(one_layer: OneLayer) -> None:
    microbatch = microbatch_of([[1, 2, 3, 4, 99, 99]], [4])
    inputs = microbatch.processed_inputs
    with QkvCalibration(one_layer, 100.0, 1.0) as calibration:
        for _ in calibration.watched([microbatch]):
            inputs.seq_index = torch.tensor([[0, 1, 5]], device=inputs.input_ids.device)
            one_layer(inputs.input_ids[:, inputs.seq_index[0]])
    assert calibration.scales()["layers"]["attn"]["v_scale"] == pytest.approx(2 * 2 / 448)


def test_what_is_always_zero_has_scale_one(one_layer: OneLayer) -> None:
    with QkvCalibration(one_layer) as calibration:
        run_one_layer(one_layer, calibration, [microbatch_of([[0]], [1])], 1)
    assert calibration.scales()["layers"] == {"attn": {"k_scale": 1.0, "v_scale": 1.0}}


def test_attention_is_as_it_was_afterwards_and_after_an_error(one_layer: OneLayer) -> None:
    registered = ALL_ATTENTION_FUNCTIONS["one"]

    def fail() -> None:
        assert ALL_ATTENTION_FUNCTIONS["one"] is not registered
        raise RuntimeError("in between")

    with pytest.raises(RuntimeError), QkvCalibration(one_layer):
        fail()
    assert ALL_ATTENTION_FUNCTIONS["one"] is registered


# --- real models ---


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", qkv_cases.KINDS)
def test_scales_are_those_of_rows_without_padding(kind: str, packed: bool) -> None:
    model = calibrated_model(kind)
    found = calibrate(model, [processed(batch, packed) for batch in batches()], PERCENTILE, MARGIN, True)
    assert_scales(found["layers"], expected_scales(model))
    padded, alone = qkv_cases.largest_values(model, is_padded=True), qkv_cases.largest_values(model)
    assert any(more[0, "k"] > less[0, "k"] for more, less in zip(padded, alone, strict=True))


# --- what cannot be ---


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"percentile": 0.0}, "percentile .*0.0"),
        ({"percentile": 100.1}, "percentile must be"),
        ({"percentile": math.nan}, "percentile must be"),
        ({"margin": 0.0}, "margin .*0.0"),
        ({"margin": math.inf}, "margin must be"),
    ],
)
def test_settings_that_cannot_be_are_refused(one_layer: OneLayer, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        QkvCalibration(one_layer, **settings)


@pytest.mark.parametrize(
    ("rows", "text"),
    [([], "microbatch"), ([[[1.0]]], "k of attn")],
)
def test_without_samples_there_are_no_scales(one_layer: OneLayer, rows: list[Any], text: str) -> None:
    with QkvCalibration(one_layer) as calibration:
        list(calibration.watched([microbatch_of(row, [1]) for row in rows]))
    with pytest.raises(ValueError, match=text):
        calibration.scales()


def test_values_that_are_not_finite_are_refused_by_name(one_layer: OneLayer) -> None:
    one_layer.attn.value_factor = math.nan
    with QkvCalibration(one_layer) as calibration:
        run_one_layer(one_layer, calibration, [microbatch_of([[1]], [1])], 1)
    with pytest.raises(ValueError, match="v of attn"):
        calibration.scales()


class OfOldForCausalLM(LlamaForCausalLM):
    """A model of before transformers could exchange the attention of its models."""

    _supports_attention_backend = False


def test_models_whose_attention_is_not_registered_are_refused_by_name() -> None:
    eager = LlamaForCausalLM(LlamaConfig(**{**setup_cases.SHAPE, "attn_implementation": "eager"}))
    for model in (OfOldForCausalLM(LlamaConfig(**setup_cases.SHAPE)), eager):
        with pytest.raises(ValueError, match=type(model).__name__):
            QkvCalibration(model)


# --- two real ranks on gloo ---


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("case", qkv_cases.CASES)
def test_all_ranks_find_the_scales_of_one_process(rank_pool: RankPool, tmp_path: Path, case: str) -> None:
    model = calibrated_model("qwen3")
    model.save_pretrained(tmp_path / "qwen3")
    first, second = (rank[case] for rank in rank_processes.play_cases(rank_pool, qkv_cases.__name__, tmp_path))
    assert first == second
    assert first["num_samples"] == len(qkv_cases.LENGTHS)
    assert_scales(first["layers"], expected_scales(model))
