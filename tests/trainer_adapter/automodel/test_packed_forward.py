"""A real model gives every token of a packed row the logits of the unpacked row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.data import ProcessedInputs, process_microbatch

CFG = {"sequence_packing": {"enabled": True, "train_mb_tokens": 24}}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({"a": 0, "</s>": 1}, "a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")  # noqa: S106  # a token, not a secret


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    made = LlamaForCausalLM(shape)
    made.set_attn_implementation(request.param)
    made.eval()
    return made


def logits(model: Any, inputs: ProcessedInputs) -> torch.Tensor:
    with torch.no_grad():
        result = model.to(inputs.input_ids.device)(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            position_ids=inputs.position_ids,
            use_cache=False,
        )
    return torch.as_tensor(result.logits)


def test_packed_and_unpacked_logits_agree(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    lengths = [5, 1, 9, 4]
    batch: BatchedDataDict[Any] = BatchedDataDict(
        input_ids=torch.randint(2, 31, (4, 9), generator=torch.Generator().manual_seed(1)),
        input_lengths=torch.tensor(lengths),
    )
    packed = process_microbatch(batch, tokenizer, True, CFG, 1)
    unpack_rows = process_microbatch(batch, tokenizer, False, {}, 1)
    assert packed.input_ids[0, -5:].tolist() == [1] * 5  # a padded tail is part of what must not leak
    expected = torch.cat([row[:length] for row, length in zip(logits(model, unpack_rows), lengths, strict=True)])
    torch.testing.assert_close(logits(model, packed)[0, :-5], expected, rtol=1e-5, atol=1e-6)
