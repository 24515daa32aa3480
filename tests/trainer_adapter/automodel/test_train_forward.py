"""The arguments of a model, the logits of its output, and the temperature."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.trainer_adapter.automodel import tiny_policy
from tests.trainer_adapter.automodel.tiny_policy import batch_of, processed
from transformers import AttentionInterface

from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.train import apply_temperature_scaling, extract_logits, model_forward


class Recorder(torch.nn.Module):
    """A model that gives back the arguments it was called with."""

    def __init__(self, model_type: str = "llama") -> None:
        super().__init__()
        self.config = SimpleNamespace(model_type=model_type)

    def forward(self, **arguments: Any) -> dict[str, Any]:
        return arguments


def test_every_model_gets_ids_mask_positions_and_no_cache() -> None:
    inputs = processed(batch_of([3, 5]), packed=False).processed_inputs
    arguments = model_forward(Recorder(), inputs)
    assert arguments.keys() == {"input_ids", "attention_mask", "position_ids", "use_cache"}
    assert arguments["input_ids"] is inputs.input_ids
    assert arguments["attention_mask"] is inputs.attention_mask
    assert arguments["position_ids"] is inputs.position_ids
    assert arguments["use_cache"] is False


@pytest.mark.parametrize(
    ("setting", "is_passed"),
    [({}, True), ({"is_reward_model": True}, False), ({"allow_flash_attn_args": False}, False)],
)
def test_bounds_of_packed_sequences_go_to_models_that_take_them(setting: dict[str, bool], is_passed: bool) -> None:
    inputs = processed(batch_of([3, 5]), packed=True).processed_inputs
    arguments = model_forward(Recorder(), inputs, **setting)
    assert ({"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"} <= arguments.keys()) is is_passed
    assert arguments["attention_mask"] is None


def test_multimodal_tensors_go_by_their_own_names_and_bounds_stay_behind() -> None:
    inputs = processed(batch_of([3, 5]), packed=True).processed_inputs
    inputs.vlm_kwargs = {"pixel_values": torch.ones(1)}
    arguments = model_forward(Recorder(), inputs)
    assert arguments["pixel_values"] is inputs.vlm_kwargs["pixel_values"]
    assert "cu_seq_lens_q" not in arguments


def attention_by_bounds(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: None, **arguments: Any
) -> tuple[torch.Tensor, None]:
    """What FlashAttention computes of a packed row: tokens of no sequence get what the memory held."""
    output = torch.full_like(query, float("nan"))
    bounds = arguments["cu_seq_lens_q"].tolist()
    assert torch.equal(arguments["cu_seq_lens_k"], arguments["cu_seq_lens_q"])
    for start, end in pairwise(bounds):
        assert end - start <= min(arguments["max_length_q"], arguments["max_length_k"])
        queries, keys, values = (part[:, :, start:end] for part in (query, key, value))
        output[:, :, start:end] = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, enable_gqa=True, scale=arguments["scaling"]
        )
    return output.transpose(1, 2), None


@pytest.mark.parametrize("tail", [0, 3, 9])
def test_an_attention_that_goes_by_bounds_keeps_packed_sequences_apart(tail: int) -> None:
    """Behind the last sequence, too, it leaves no number that is not finite in a gradient."""
    AttentionInterface.register("by_bounds", attention_by_bounds)
    model = tiny_policy.tiny_model()
    batch = batch_of([3, 5])
    inputs = processed(batch, packed=True, tail=tail).processed_inputs
    with torch.no_grad():
        alone = [model(input_ids=ids[None, :n]).logits for ids, n in zip(batch["input_ids"], (3, 5), strict=True)]
    model.set_attn_implementation("by_bounds")
    logits = model_forward(model, inputs).logits
    torch.testing.assert_close(logits[:, :8], torch.cat(alone, dim=1), rtol=1e-5, atol=1e-5)
    logits[:, :8].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_gemma3_gets_token_types_of_zero_unless_the_batch_has_some() -> None:
    inputs = processed(batch_of([3, 5]), packed=False).processed_inputs
    assert model_forward(Recorder("gemma3"), inputs)["token_type_ids"].tolist() == [[0] * 5] * 2
    inputs.vlm_kwargs = {"token_type_ids": torch.ones(2, 5)}
    assert model_forward(Recorder("gemma3"), inputs)["token_type_ids"] is inputs.vlm_kwargs["token_type_ids"]


def test_logits_are_the_output_or_part_of_it_or_made_of_its_last_hidden_state() -> None:
    model = tiny_policy.tiny_model()
    batch = batch_of([3, 5])
    with torch.no_grad():
        outputs = model(input_ids=batch["input_ids"], use_cache=False)
        hidden = model.model(input_ids=batch["input_ids"], use_cache=False)
        assert extract_logits(model, outputs) is outputs.logits
        assert extract_logits(model, outputs.logits) is outputs.logits
        torch.testing.assert_close(extract_logits(model, hidden), outputs.logits)


def test_a_temperature_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match=r"generation\.temperature"):
        apply_temperature_scaling(torch.ones(1), TrainingSamplingParams(temperature=0.0))
