"""Shared by the tests of set-up and checkpoints: tiny models, configurations, one training step, and the cases of two
real ranks, see rank_processes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tests.trainer_adapter.automodel import rank_processes
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from trainer_adapter.automodel.checkpoint import CheckpointManager
from trainer_adapter.automodel.config import DistributedContext, ModelAndOptimizerState
from trainer_adapter.automodel.models.automodel_ranks import prepare_gradients
from trainer_adapter.automodel.setup import setup_distributed, setup_model_and_optimizer, validate_and_prepare_config
from trainer_adapter.automodel.train import clip_grad_norm

SGD = {"name": "torch.optim.SGD", "kwargs": {"lr": 0.5}}
ADAM = {"name": "torch.optim.AdamW", "kwargs": {"lr": 0.01, "betas": [0.9, 0.95]}}
SCHEDULER = [
    {"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": {"start_factor": 0.5, "total_iters": 2}},
    {"name": "torch.optim.lr_scheduler.ConstantLR", "kwargs": {"factor": 0.7, "total_iters": 9}},
    {"milestones": [2]},
]
TOKENIZER: Any = SimpleNamespace(pad_token_id=3, eos_token_id=0)
BATCH = torch.arange(4 * 9).reshape(4, 9) * 7 % 60
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,  # far from uniform, so that a wrong token has a very different log-probability
}
OFF = ("cpu_offload", "sequence_parallel", "activation_checkpointing")
REWARD = {"reward_model_cfg": {"enabled": True, "reward_model_type": "bradley_terry"}}
LOGITS_ONLY: Any = {"lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
"""A plan of one's own."""
OTHER_LAYERS = {"phi3": False, "glm": False, "starcoder2": True, "gemma3_text": True}
"""Fused projections; fused and others; biases and other names; norms of heads, and four norms in a layer."""
MODELS = {"llama": False, "qwen2": True, "qwen3": True, "gemma2": True, **OTHER_LAYERS}
"""Types of models, and whether their embeddings are tied."""
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def logits_only() -> Any:
    """The same, found by its dotted path."""
    return LOGITS_ONLY


def save_models(folder: Path) -> None:
    """One tiny model of each type with random weights, under its type's name, and one without its weights."""
    disable_progress_bar()
    for kind, tied in MODELS.items():
        torch.manual_seed(1)
        config = AutoConfig.for_model(kind, **SHAPE, head_dim=8, tie_word_embeddings=tied, pad_token_id=None)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / kind)
    torch.manual_seed(1)
    experts = AutoConfig.for_model("qwen3_moe", **SHAPE, **EXPERTS, head_dim=8)
    AutoModelForCausalLM.from_config(experts).save_pretrained(folder / "qwen3moe")
    AutoConfig.for_model("llama", **SHAPE).save_pretrained(folder / "no_weights")
    save_in_parts(folder)


def policy_config(model: Path, **dtensor_cfg: Any) -> Any:
    return {
        "model_name": str(model),
        "precision": "float32",
        "max_grad_norm": None,
        "sequence_packing": {"enabled": False},
        "optimizer": SGD,
        "dtensor_cfg": {"device": "cpu", "context_parallel_size": 1, **dict.fromkeys(OFF, False), **dtensor_cfg},
    }


def prepared(config: Any, **arguments: Any) -> tuple[DistributedContext, ModelAndOptimizerState]:
    runtime = validate_and_prepare_config(config, None, 0)
    context = setup_distributed(config, runtime)
    return context, setup_model_and_optimizer(config, TOKENIZER, runtime, context, CheckpointManager(), **arguments)


@contextmanager
def set_up(config: Any, **arguments: Any) -> Iterator[ModelAndOptimizerState]:
    """As a worker does it, from the environment's RANK, WORLD_SIZE and MASTER_PORT; the group is gone afterwards."""
    try:
        context, state = prepared(config, **arguments)
        if state.optimizer is not None:  # nothing is clipped here, so that this is the place
            state.optimizer.register_step_pre_hook(lambda *_: prepare_gradients(state.model, context))
        yield state
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def assert_refused(config: Any, error: type[BaseException], text: str, **arguments: Any) -> None:
    with pytest.raises(error, match=text), set_up(config, **arguments):
        pass


def mean_nll(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The share of these rows in the mean over BATCH."""
    targets = tokens[:, 1:].reshape(-1)
    total = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="sum")
    return total / (BATCH.shape[0] * (BATCH.shape[1] - 1))


def whole_logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=tokens, use_cache=False).logits
    return logits.full_tensor() if isinstance(logits, DTensor) else logits


def train_step(state: ModelAndOptimizerState, dp_rank: int, dp_size: int) -> tuple[float, torch.Tensor]:
    """One step on this rank's rows of BATCH; the loss before it over all rows, and this rank's logits."""
    assert state.optimizer is not None
    assert state.scheduler is not None
    state.model.train()
    rows = BATCH.tensor_split(dp_size)[dp_rank]
    logits = whole_logits(state.model, rows)
    loss = mean_nll(logits, rows)
    state.optimizer.zero_grad()
    (loss * dp_size).backward()  # FSDP averages gradients over ranks
    state.optimizer.step()
    state.scheduler.step()
    total = loss.detach().clone()
    if dp_size > 1:
        torch.distributed.all_reduce(total)
    return total.item(), logits.detach()


def whole_weights(model: Any) -> dict[str, torch.Tensor]:
    """On rank 0; nothing elsewhere."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights: dict[str, Any] = get_model_state_dict(model, options=options)
    return {name: value.clone() for name, value in weights.items()}


def stepped_alone(model_folder: Path) -> tuple[float, torch.Tensor, dict[str, torch.Tensor]]:
    """What train_step does, by one process and without anything of ours: loss, logits of BATCH, weights afterwards."""
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    logits = model(input_ids=BATCH).logits
    loss = mean_nll(logits, BATCH)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    return loss.item(), logits.detach(), model.state_dict()


def assert_stepped_as_alone(folder: Path, case: str, ranks: list[dict[str, Any]]) -> None:
    """That two ranks got, by one step, the logits, the loss and the weights of one process."""
    seen = [rank[case] for rank in ranks]
    loss, logits, weights = stepped_alone(folder / case.partition("_")[0])
    parts = [load_file(folder / f"{case}.{rank}.safetensors") for rank in range(2)]
    own = [logits, logits] if "_tp" in case else logits.chunk(2)
    for part, expected in zip(parts, own, strict=True):
        torch.testing.assert_close(part["logits"], expected, rtol=1e-5, atol=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(parts[0][name], value, rtol=1e-5, atol=1e-6)
    assert [rank["loss"] for rank in seen] == pytest.approx([loss, loss], rel=1e-6)


def stepped(case: str, **dtensor_cfg: Any) -> rank_processes.Case:
    """One step of SGD of the model that the case begins with; writes this rank's logits and the weights afterwards."""

    def play(rank: int, folder: Path) -> dict[str, Any]:
        dp_size = 2 // dtensor_cfg.get("tensor_parallel_size", 1)
        with set_up(policy_config(folder / case.partition("_")[0], **dtensor_cfg)) as state:
            loss, logits = train_step(state, rank if dp_size == 2 else 0, dp_size)
            weights = whole_weights(state.model)
            save_file({"logits": logits.contiguous(), **weights}, folder / f"{case}.{rank}.safetensors")
            return {"loss": loss, "parts": {name: part_of(value) for name, value in state.model.named_parameters()}}

    return play


def part_of(parameter: Any) -> float:
    """The part of a parameter that is on this rank."""
    return float(parameter.to_local().numel() / parameter.numel())


def paths_in(folder: Path) -> dict[str, Any]:
    return {"weights_path": str(folder / "weights"), "optimizer_path": str(folder / "optimizer")}


def parts_of(state: ModelAndOptimizerState) -> dict[str, Any]:
    """What a checkpoint has."""
    return {"model": state.model, "optimizer": state.optimizer, "scheduler": state.scheduler}


def scheduled(folder: Path, **dtensor_cfg: Any) -> Any:
    return {**policy_config(folder / "qwen2", **dtensor_cfg), "optimizer": ADAM, "scheduler": SCHEDULER}


def checkpointed(rank: int, folder: Path, **dtensor_cfg: Any) -> dict[str, Any]:
    """Two steps of Adam, a checkpoint, and two further losses."""
    with set_up(scheduled(folder, **dtensor_cfg)) as state:
        losses = [train_step(state, rank, 2)[0] for _ in range(2)]
        saving = parts_of(state) | paths_in(folder / "saved")
        CheckpointManager().save_checkpoint(**saving, checkpointing_cfg={"save_consolidated": True})
        try:
            CheckpointManager().save_checkpoint(**saving, checkpointing_cfg={})
            again = "saved"
        except (FileExistsError, RuntimeError) as error:
            again = f"{type(error).__name__}: {error}"
        return {"losses": losses + [train_step(state, rank, 2)[0] for _ in range(2)], "again": again}


def resumed(tensor_parallel_size: int, **dtensor_cfg: Any) -> rank_processes.Case:
    def play(rank: int, folder: Path) -> dict[str, Any]:
        dp_size = 2 // tensor_parallel_size
        with resume(folder, tensor_parallel_size=tensor_parallel_size, **dtensor_cfg) as state:
            return {"losses": [train_step(state, rank % dp_size, dp_size)[0] for _ in range(2)]}

    return play


@contextmanager
def resume(folder: Path, **dtensor_cfg: Any) -> Iterator[ModelAndOptimizerState]:
    """From the checkpoint that the case `checkpointed` wrote."""
    with set_up(scheduled(folder, **dtensor_cfg), **paths_in(folder / "saved")) as state:
        yield state


def stepped_experts(rank: int, folder: Path, saved: Path, resumes: bool, dtensor_cfg: dict[str, int]) -> dict[str, Any]:
    """Losses and gradient norms of clipped steps of Adam on four ranks: two, a checkpoint in `saved` and two further
    ones, or only these from the checkpoint; and the names of weights that are divided as experts.
    """
    given = {**policy_config(folder / "qwen3moe", **dtensor_cfg), "optimizer": ADAM}
    losses: list[float] = []
    norms: list[float] = []
    with set_up(given, **(paths_in(saved) if resumes else {})) as state:
        model: Any = state.model
        optimizer = state.optimizer
        assert optimizer is not None
        optimizer.register_step_pre_hook(lambda *_: norms.append(clip_grad_norm(model.parameters(), 0.1).item()))
        divided = [name for name, value in model.named_parameters() if "ep" in value.device_mesh.mesh_dim_names]
        losses += [train_step(state, rank, 4)[0] for _ in range(2)]
        if not resumes:
            CheckpointManager().save_checkpoint(**parts_of(state), **paths_in(saved), checkpointing_cfg={})
            losses += [train_step(state, rank, 4)[0] for _ in range(2)]
    return {"losses": losses, "norms": norms, "divided": divided}


def save_in_parts(folder: Path) -> None:
    """The model llama in 16 bits, as files by names of their own, which transformers does not find."""
    weights = load_file(folder / "llama/model.safetensors")
    (folder / "parts").mkdir()
    (folder / "parts/config.json").write_bytes((folder / "llama/config.json").read_bytes())
    for name in ("layers", ""):
        own = {key: value.bfloat16() for key, value in weights.items() if ("layers" in key) == bool(name)}
        save_file(own, folder / f"parts/{name or 'others'}.safetensors")


def loaded_in_parts(**dtensor_cfg: Any) -> rank_processes.Case:
    def play(_rank: int, folder: Path) -> Any:
        with set_up(policy_config(folder / "parts", **dtensor_cfg)) as state, torch.no_grad():
            return whole_logits(state.model.eval(), BATCH).tolist()

    return play


def timed(_rank: int, folder: Path) -> list[float]:
    """The timeouts in seconds of all process groups of this rank."""
    with set_up(policy_config(folder / "llama", dp_replicate_size=2, collective_timeout_s=77)):
        groups = list(distributed_c10d._world.pg_map)
        return [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups]


def refused(model: str, **dtensor_cfg: Any) -> rank_processes.Case:
    """The error of a configuration that cannot be."""

    def play(_rank: int, folder: Path) -> str:
        try:
            with set_up(policy_config(folder / model, **dtensor_cfg)):
                return "set up"
        except (NotImplementedError, OSError, RuntimeError, SafetensorError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    return play


def damaged(rank: int, folder: Path) -> str:
    """The error of files of which the second rank's own copy was cut."""
    if rank == 1:
        (folder / "damaged").mkdir()
        (folder / "damaged/config.json").write_bytes((folder / "llama/config.json").read_bytes())
        (folder / "damaged/model.safetensors").write_bytes(b"cut")
    return str(refused("damaged" if rank else "llama", collective_timeout_s=30)(rank, folder))


STEPPED: dict[str, dict[str, Any]] = {
    "llama_dp": {},
    "llama_replicated": {"dp_replicate_size": 2, "activation_checkpointing": True},
    "llama_offloaded": {"cpu_offload": True},
    "qwen2_dp_tied": {},
    "qwen3moe_experts": {"expert_parallel_size": 2},
    "llama_tp": {"tensor_parallel_size": 2},
    "llama_tp_logits_only": {"tensor_parallel_size": 2, "custom_parallel_plan": f"{__name__}.logits_only"},
    "qwen2_tp_tied": {"tensor_parallel_size": 2},
    "gemma2_tp": {"tensor_parallel_size": 2},
    "qwen3_tp_tied": {"tensor_parallel_size": 2, "activation_checkpointing": True},
}
CASES: dict[str, rank_processes.Case] = {
    **{case: stepped(case, **dtensor_cfg) for case, dtensor_cfg in STEPPED.items()},
    "checkpointed": checkpointed,
    "parts": loaded_in_parts(),
    "parts_tp": loaded_in_parts(tensor_parallel_size=2),
    "timed": timed,
    "refused_experts": refused("llama", expert_parallel_size=2),
    "unreadable": refused("no_weights"),
    "damaged": damaged,
}
