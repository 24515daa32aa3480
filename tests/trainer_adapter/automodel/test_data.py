"""Microbatches of a batch, and the inputs of their forward passes."""

from __future__ import annotations

import inspect
import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.trainer_adapter.planning import packing_args

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor
from trainer_adapter.automodel import data
from trainer_adapter.automodel.config import DistributedContext, ModelAndOptimizerState, RuntimeConfig
from trainer_adapter.automodel.data import (
    ProcessedInputs,
    ProcessedMicrobatch,
    get_microbatch_iterator,
    process_microbatch,
)

EOS = 77
TOKENIZER: Any = SimpleNamespace(eos_token_id=EOS)
Batch = BatchedDataDict[Any]


def plain_cfg() -> dict[str, Any]:
    return {"dynamic_batching": {"enabled": False}}


def packing_cfg(train_mb_tokens: int = 8) -> dict[str, Any]:
    return {**plain_cfg(), "sequence_packing": {"enabled": True, "train_mb_tokens": train_mb_tokens}}


def batch_of(lengths: list[int], width: int | None = None) -> Batch:
    """Row r holds 100 * r + 1, 100 * r + 2, ...; padding is 0."""
    columns = max(lengths) if width is None else width
    ids = [[100 * row + i + 1 if i < length else 0 for i in range(columns)] for row, length in enumerate(lengths)]
    return BatchedDataDict(input_ids=torch.tensor(ids), input_lengths=torch.tensor(lengths))


def with_images(lengths: list[int]) -> Batch:
    batch = batch_of(lengths)
    batch["pixel_values"] = PackedTensor([torch.full((2, 3), float(row)) for row in range(len(lengths))], dim_to_pack=0)
    return batch


# --- names that callers rely on ---

INPUT_KWARGS = "flash_attn_kwargs vlm_kwargs"
RUNTIME = (
    "allow_flash_attn_args attn_impl dtype enable_seq_packing max_grad_norm cpu_offload offload_optimizer_for_logprob "
    "is_generation_colocated"
)
MODEL_KINDS = "is_hf_model is_moe_model is_reward_model model_class model_config"


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("make_processed_microbatch_iterator", "raw_iterator, tokenizer, cfg, cp_size"),
        ("get_microbatch_iterator", "data, cfg, mbs, dp_mesh, tokenizer, cp_size=1"),
        ("process_microbatch", "mb, tokenizer, enable_seq_packing, cfg, cp_size"),
        ("process_global_batch", "data, loss_fn, dp_group, *, batch_idx, batch_size"),
        ("check_sequence_dim", "data, *, skip_keys=None"),
    ],
)
def test_functions_take_their_parameters_in_this_order(function: str, parameters: str) -> None:
    signature = inspect.signature(getattr(data, function))
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    assert str(inspect.Signature(bare)) == f"({parameters})"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ProcessedInputs, f"input_ids seq_len attention_mask position_ids {INPUT_KWARGS} cp_buffers seq_index"),
        (ProcessedMicrobatch, "data_dict processed_inputs original_batch_size original_seq_len"),
        (DistributedContext, "device_mesh moe_mesh fsdp2_config moe_config dp_size tp_size cp_size"),
        (RuntimeConfig, f"model_class model_config hf_config_overrides {RUNTIME} sampling_params is_reward_model"),
        (ModelAndOptimizerState, f"model optimizer scheduler {MODEL_KINDS} peft_config autocast_enabled"),
    ],
)
def test_results_have_their_fields_in_this_order(kind: Any, fields: str) -> None:
    assert [*inspect.signature(kind).parameters] == fields.split()


# --- what a forward pass takes ---


def test_packing_needs_a_token_to_pad_with_and_a_training_budget() -> None:
    tokenizer: Any = SimpleNamespace(eos_token_id=None)
    with pytest.raises(ValueError, match="eos_token_id"):
        process_microbatch(batch_of([3]), tokenizer, True, packing_cfg(), 1)
    with pytest.raises(KeyError, match=r"sequence_packing\.train_mb_tokens"):
        process_microbatch(batch_of([3]), TOKENIZER, True, {"sequence_packing": {"enabled": True}}, 1)


def test_a_multimodal_model_computes_its_own_positions() -> None:
    batch = with_images([3, 1])
    batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    inputs = process_microbatch(batch, TOKENIZER, False, {"dtensor_cfg": {"sequence_parallel": False}}, 1)
    assert inputs.vlm_kwargs.keys() == {"pixel_values", "token_type_ids"}
    assert inputs.vlm_kwargs["pixel_values"].tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2
    assert inputs.vlm_kwargs["pixel_values"].device == inputs.input_ids.device
    assert inputs.position_ids is None
    assert inputs.attention_mask is not None


@pytest.mark.parametrize("packs", [False, True])
def test_context_parallelism_shards_ids_positions_and_index_and_gives_no_mask(packs: bool) -> None:
    batch = batch_of([3, 1], width=4)
    inputs = process_microbatch(batch, TOKENIZER, packs, packing_cfg(), 2)
    assert inputs.attention_mask is None
    assert inputs.seq_index is not None
    assert inputs.seq_index.tolist() == [[*range(8 if packs else 4)]]
    expected = [inputs.input_ids, inputs.position_ids, inputs.seq_index]
    assert [id(tensor) for tensor in inputs.cp_buffers] == [id(tensor) for tensor in expected]
    assert (inputs.cp_buffers[0] is batch["input_ids"]) is not packs


@pytest.mark.parametrize(
    ("packs", "sequence_parallel", "cp_size", "complaint"),
    [
        (True, True, 2, "sequence packing"),
        (False, True, 2, "^Sequence parallel"),
        (False, False, 2, "'pixel_values'.* context parallel"),
    ],
)
def test_what_multimodal_data_cannot_be_combined_with(
    packs: bool, sequence_parallel: bool, cp_size: int, complaint: str
) -> None:
    cfg = {**packing_cfg(), "dtensor_cfg": {"sequence_parallel": sequence_parallel}}
    with pytest.raises(AssertionError, match=complaint):
        process_microbatch(with_images([3, 1]), TOKENIZER, packs, cfg, cp_size)


# --- iterators ---


def test_a_batch_that_does_not_divide_is_refused_at_the_first_microbatch() -> None:
    iterator, length = get_microbatch_iterator(batch_of([1] * 5), plain_cfg(), 2, None, TOKENIZER)
    assert length == 2
    with pytest.raises(AssertionError, match="not a multiple of the provided microbatch size"):
        next(iterator)


def sequences(processed: ProcessedMicrobatch) -> list[list[int]]:
    """The packed sequences, by their bounds; their positions are checked on the way."""
    inputs = processed.processed_inputs
    bounds: Any = inputs.flash_attn_kwargs
    assert inputs.attention_mask is None
    cu, ids = bounds.cu_seqlens_q.tolist(), inputs.input_ids[0].tolist()
    positions, found = torch.as_tensor(inputs.position_ids)[0].tolist(), []
    for start, end in pairwise(cu):
        assert positions[start:end] == [*range(end - start)]
        found.append(ids[start:end])
    assert ids[cu[-1] :] == [EOS] * (len(ids) - cu[-1])
    return found


def test_packed_microbatches_hold_every_sequence_once_in_order() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        rows = batch_of([rng.randint(1, 16) for _ in range(rng.randint(1, 12))])
        batch = rows.shard_by_batch_size(1, sequence_packing_args=packing_args(20))[0][0]
        iterator, length = get_microbatch_iterator(batch, packing_cfg(20), 1, None, TOKENIZER)
        microbatches = [*iterator]
        assert len(microbatches) == length
        assert {mb.processed_inputs.seq_len for mb in microbatches} == {20}
        expected = zip(batch["input_ids"].tolist(), batch["input_lengths"].tolist(), strict=True)
        assert [s for mb in microbatches for s in sequences(mb)] == [ids[:length] for ids, length in expected], seed
