"""Shared by the tests of calibration: tiny models, scales computed row by row without this package, and the cases of
two real ranks, see rank_processes.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.trainer_adapter.automodel import rank_processes, setup_cases
from tests.trainer_adapter.automodel.tiny_policy import batch_of, processed
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.qkv_calibration import QkvCalibration
from trainer_adapter.automodel.train import LogprobsPostProcessor, automodel_forward_backward

Scales = dict[str, dict[str, float]]
KINDS = ("llama", "qwen3", "phi3", "gpt2")
LENGTHS = [[5, 3], [7], [2, 6, 4]]
"""Rows of three microbatches."""
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "initializer_range": 0.3}
PERCENTILE, MARGIN = 60.0, 1.1


def model_config(kind: str) -> Any:
    if kind == "gpt2":
        return AutoConfig.for_model(kind, **GPT2)
    heads = {"head_dim": 8} if kind == "qwen3" else {}
    return AutoConfig.for_model(kind, **setup_cases.SHAPE, pad_token_id=0, **heads)


def calibrated_model(kind: str) -> Any:
    """Token 0, which pads, has the largest key of all tokens in the first layer."""
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_config(model_config(kind)).eval()
    weight = first_key_weight(model)
    with torch.no_grad():  # behind a norm of heads the largest key is the one with one element
        largest = torch.linalg.pinv(weight)[:, 0] if kind == "qwen3" else torch.linalg.svd(weight).Vh[0]
        model.get_input_embeddings().weight[0] = largest * 10
    return model


def first_key_weight(model: Any) -> Tensor:
    """[out,in]."""
    kind = model.config.model_type
    if kind == "gpt2":
        return torch.as_tensor(model.transformer.h[0].attn.c_attn.weight[:, 32:64].T)
    attention = model.model.layers[0].self_attn
    return torch.as_tensor(attention.qkv_proj.weight[32:48] if kind == "phi3" else attention.k_proj.weight)


def batches() -> list[BatchedDataDict[Any]]:
    return [batch_of(lengths) for lengths in LENGTHS]


# --- the same without our code ---


def layer_names(model: Any) -> list[str]:
    name = "transformer.h.{}.attn" if model.config.model_type == "gpt2" else "model.layers.{}.self_attn"
    return [name.format(layer) for layer in (0, 1)]


Recorded = list[tuple[Tensor, Tensor, Tensor]]


@torch.no_grad()
def attended(model: Any, ids: Tensor) -> Recorded:
    """For each layer the queries, keys and values that it attends with, of one row without padding."""
    found: Recorded = []

    def attend(_module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **arguments: Any) -> Any:
        found.append((query, key, value))
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=arguments.get("scaling"), enable_gqa=True
        )
        return output.transpose(1, 2), None

    AttentionInterface.register("recording", attend)
    own = model.config._attn_implementation
    model.set_attn_implementation("recording")
    try:
        model(input_ids=ids, use_cache=False)
    finally:
        model.set_attn_implementation(own)
    return found


def rows_of(batch: BatchedDataDict[Any], is_padded: bool) -> list[Tensor]:
    """[1,length] each."""
    lengths = [batch["input_ids"].shape[1]] * batch.size if is_padded else batch["input_lengths"].tolist()
    return [ids[None, :length] for ids, length in zip(batch["input_ids"], lengths, strict=True)]


def largest_values(model: Any, is_padded: bool = False) -> list[dict[tuple[int, str], float]]:
    """For each microbatch, by layer and kind."""
    found = []
    for batch in batches():
        rows = [attended(model, ids) for ids in rows_of(batch, is_padded)]
        parts = [(layer, kind) for layer in (0, 1) for kind in range(3)]
        found.append({(i, "qkv"[kind]): max(row[i][kind].abs().max().item() for row in rows) for i, kind in parts})
    return found


def expected_scales(model: Any) -> Scales:
    """Of queries too."""
    samples = largest_values(model)
    scales: Scales = {}
    for i, layer in enumerate(layer_names(model)):
        for kind in "qkv":
            largest = np.percentile([sample[i, kind] for sample in samples], PERCENTILE)
            scales.setdefault(layer, {})[f"{kind}_scale"] = float(largest * MARGIN / 448)
    return scales


# --- cases of two ranks ---


def calibrated(**dtensor_cfg: Any) -> rank_processes.Case:
    """Each data-parallel rank has every other microbatch; the second one has one less, and a dummy."""

    def play(rank: int, folder: Path) -> dict[str, Any]:
        config = setup_cases.policy_config(folder / "qwen3", **dtensor_cfg)
        context, state = setup_cases.prepared(config, init_optimizer=False)
        try:
            model: Any = state.model.eval()
            own = batches()[rank::2] if context.dp_size == 2 else batches()
            run = [processed(batch, packed=False) for batch in own]
            run += run[:1] * (-len(run) % 2)
            post = LogprobsPostProcessor({}, context.device_mesh, None, context.device_mesh["tp"], 1)
            with QkvCalibration(model, PERCENTILE, MARGIN, include_q=True) as calibration:
                automodel_forward_backward(model, calibration.watched(run, len(own)), post, forward_only=True)
            return calibration.scales(context.device_mesh)
        finally:
            torch.distributed.destroy_process_group()

    return play


CASES: dict[str, rank_processes.Case] = {"dp": calibrated(), "tp": calibrated(tensor_parallel_size=2)}
