"""Tiny real models, batches for them, and the expected results, computed row by row without this package."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from tests.trainer_adapter.automodel import setup_cases
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.data import ProcessedMicrobatch, make_processed_microbatch_iterator

EOS = 0
TOKENIZER: Any = SimpleNamespace(eos_token_id=EOS)
VOCAB = 64
SHAPE: dict[str, Any] = {**setup_cases.SHAPE, "tie_word_embeddings": False}


def tiny_model(family: str = "llama", vocab: int = VOCAB) -> Any:
    """Always the same weights for the same arguments."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SHAPE, "vocab_size": vocab})
    return AutoModelForCausalLM.from_config(config).eval()


def batch_of(lengths: list[int], width: int | None = None, vocab: int = VOCAB) -> BatchedDataDict[Any]:
    """Rows of these lengths; every third token is masked out."""
    width = width or max(lengths)
    is_token = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.randint(min(1, vocab - 1), vocab, is_token.shape, generator=torch.Generator().manual_seed(len(lengths)))
    batch: BatchedDataDict[Any] = BatchedDataDict(
        input_ids=ids * is_token,
        input_lengths=torch.tensor(lengths),
        token_mask=(is_token & (torch.arange(width) % 3 != 2)).float(),
        sample_mask=torch.ones(len(lengths)),
    )
    return batch


def processed(batch: BatchedDataDict[Any], packed: bool, tail: int = 3) -> ProcessedMicrobatch:
    """A packed row ends with `tail` tokens of padding."""
    packing = {"enabled": packed, "train_mb_tokens": int(batch["input_lengths"].sum()) + tail}
    return next(make_processed_microbatch_iterator(iter([batch]), TOKENIZER, {"sequence_packing": packing}, 1))


def logits_of_row(model: Any, batch: BatchedDataDict[Any], row: int) -> Tensor:
    """[length, V] of a row that is alone, without padding."""
    ids = batch["input_ids"][row : row + 1, : int(batch["input_lengths"][row])]
    return torch.as_tensor(model(input_ids=ids, use_cache=False).logits)[0].float()


def expected_logprobs(model: Any, batch: BatchedDataDict[Any], temperature: float = 1.0) -> Tensor:
    """[B,S]: column i is the log-probability of token i, 0 in column 0 and padding. Differentiable."""
    rows = []
    for row, ids in enumerate(batch["input_ids"]):
        logits = logits_of_row(model, batch, row) / temperature
        found = [logits[i - 1].log_softmax(-1)[ids[i]] for i in range(1, len(logits))]
        rows.append(torch.stack([torch.zeros((), device=ids.device), *found]))
    return torch.stack([torch.nn.functional.pad(row, (0, batch["input_ids"].shape[1] - len(row))) for row in rows])


def gradients(model: Any) -> dict[str, Tensor]:
    """The gradients of all parameters, which are taken away from the model."""
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    return found
