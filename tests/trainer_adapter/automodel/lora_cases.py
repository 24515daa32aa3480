"""Shared by the tests of adapters: configurations, two steps of one process without this package, and the cases of real
ranks, see rank_processes.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.trainer_adapter.automodel import rank_processes
from tests.trainer_adapter.automodel.setup_cases import (
    ADAM,
    BATCH,
    mean_nll,
    part_of,
    parts_of,
    paths_in,
    policy_config,
    set_up,
    train_step,
    whole_weights,
)
from torch import Tensor
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from trainer_adapter.automodel.checkpoint import CheckpointManager

LORA: dict[str, Any] = {"enabled": True, "dim": 4, "alpha": 6, "match_all_linear": True}
SCALE = 1.5
SOME: dict[str, Any] = {**LORA, "match_all_linear": False, "target_modules": ["q_proj", "*.mlp.down_proj"]}
MANAGER = CheckpointManager()


def lora_config(model: Path, lora_cfg: dict[str, Any] = LORA, **dtensor_cfg: Any) -> Any:
    return policy_config(model, lora_cfg=lora_cfg, **dtensor_cfg)


def adapters_in(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in weights.items() if "lora_" in name}


def stepped_alone(model_folder: Path, adapters: dict[str, Tensor]) -> tuple[list[float], dict[str, Tensor]]:
    """Two steps of SGD on merged weights W + B @ A * scale, A and B being all that is trained: losses, A and B."""
    model = AutoModelForCausalLM.from_pretrained(model_folder).requires_grad_(False)
    base = dict(model.named_parameters())
    trained = {name: value.clone().requires_grad_() for name, value in adapters.items()}
    optimizer = torch.optim.SGD(trained.values(), lr=0.5)
    losses = []
    for _ in range(2):
        layers = {name.removesuffix(".lora_A.weight"): a for name, a in trained.items() if "lora_A" in name}
        merged = {
            f"{layer}.weight": base[f"{layer}.weight"] + trained[f"{layer}.lora_B.weight"] @ a * SCALE
            for layer, a in layers.items()
        }
        loss = mean_nll(functional_call(model, merged, kwargs={"input_ids": BATCH, "use_cache": False}).logits, BATCH)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach() for name, value in trained.items()}


def assert_stepped_as_alone(folder: Path, case: str, ranks: list[dict[str, Any]]) -> None:
    """That two ranks got the losses and adapters of one process, and kept every bit of the base weights."""
    kind, seen = case.partition("_")[0], [rank[case] for rank in ranks]
    before, after = (load_file(folder / f"{case}.{when}.safetensors") for when in ("before", "after"))
    losses, expected = stepped_alone(folder / kind, before)
    found = adapters_in(after)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)
        assert not torch.equal(value, before[name])
    base = load_file(folder / kind / "model.safetensors")
    assert all(torch.equal(after[name], value) for name, value in base.items())
    for rank in seen:
        assert rank["losses"] == pytest.approx(losses, rel=1e-5)


def stepped(case: str, lora_cfg: dict[str, Any] = LORA, **dtensor_cfg: Any) -> rank_processes.Case:
    """Two steps of SGD of the model that the case begins with; writes the adapters before them and all weights
    afterwards.
    """

    def play(rank: int, folder: Path) -> dict[str, Any]:
        torch.manual_seed(7 + rank)
        with set_up(lora_config(folder / case.partition("_")[0], lora_cfg, **dtensor_cfg)) as state:
            dp_size = torch.distributed.get_world_size() // dtensor_cfg.get("tensor_parallel_size", 1)
            dp_rank = rank * dp_size // torch.distributed.get_world_size()
            before = adapters_in(whole_weights(state.model))
            losses = [train_step(state, dp_rank, dp_size)[0] for _ in range(2)]
            after = whole_weights(state.model)
            if rank == 0:
                save_file(before, folder / f"{case}.before.safetensors")
                save_file(after, folder / f"{case}.after.safetensors")
            parts = {key: part_of(value) for key, value in state.model.named_parameters()}
            return {"losses": losses, "parts": parts}

    return play


def checkpointed(rank: int, folder: Path) -> list[float]:
    """One step of Adam, a checkpoint, and two further losses, on tensor-parallel ranks."""
    torch.manual_seed(7)
    config = {**lora_config(folder / "qwen2", tensor_parallel_size=2), "optimizer": ADAM}
    with set_up(config) as state:
        train_step(state, 0, 1)
        MANAGER.save_checkpoint(**parts_of(state), **paths_in(folder / "saved"), checkpointing_cfg={})
        return [train_step(state, 0, 1)[0] for _ in range(2)]


def resumed(rank: int, folder: Path) -> list[float]:
    """From that checkpoint, on data-parallel ranks and with another seed."""
    torch.manual_seed(8)
    with set_up({**lora_config(folder / "qwen2"), "optimizer": ADAM}, **paths_in(folder / "saved")) as state:
        return [train_step(state, rank, 2)[0] for _ in range(2)]


def unreadable(rank: int, folder: Path) -> str:
    """Adapters that do not fit: rank 0 alone reads them."""
    (folder / "broken").mkdir(exist_ok=True)
    (folder / "broken/adapter_config.json").write_text("{}")
    (folder / "broken/adapter_model.safetensors").touch()
    try:
        with set_up(lora_config(folder / "llama"), weights_path=str(folder / "broken")):
            return "loaded"
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


STEPPED = {
    "llama_dp": stepped("llama_dp"),
    "llama_tp": stepped("llama_tp", tensor_parallel_size=2),
    "phi3_tp": stepped("phi3_tp", tensor_parallel_size=2),
    "qwen2_tp": stepped("qwen2_tp", SOME, tensor_parallel_size=2, activation_checkpointing=True),
}
OTHERS: list[rank_processes.Case] = [checkpointed, resumed, unreadable]
CASES = STEPPED | dict(zip(("checkpointed", "resumed", "unreadable"), OTHERS, strict=True))
