"""Real ranks on gloo that divide sequences or layers; see test_divided_between_ranks.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from tests.trainer_adapter.automodel import setup_cases
from tests.trainer_adapter.automodel.setup_cases import TOKENIZER, policy_config, whole_weights
from tests.trainer_adapter.automodel.tiny_policy import batch_of
from tests.trainer_adapter.automodel.train_worker import older_loss
from tests.trainer_adapter.planning import dynamic_args, packing_args
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import _cp_options
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.utils.logging import disable_progress_bar

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel import train
from trainer_adapter.automodel.config import DistributedContext, TrainingSamplingParams
from trainer_adapter.automodel.data import ProcessedMicrobatch, get_microbatch_iterator, process_global_batch
from trainer_adapter.automodel.parallel.context import context_parallel_contexts, positions_of_ranks
from trainer_adapter.automodel.parallel.ring_attention import attend_in_ring, ring_attention
from trainer_adapter.automodel.rank import rank_device
from trainer_adapter.losses import NLLLoss

LENGTHS = [7, 2, 8, 5]
WIDTH = 8
SAMPLING = TrainingSamplingParams(temperature=0.7)
FILTER = TrainingSamplingParams(temperature=0.7, top_k=5)
BLOCKS: dict[str, dict[str, Any]] = {
    "plain": {"dynamic_batching": {"enabled": False}},
    # A row at a time, the shortest cut to 4 tokens
    "dynamic": {"dynamic_batching": {"enabled": True, "train_mb_tokens": 8, "sequence_length_round": 4}},
    # 7 + 2 and 8 + 5 tokens, which neither four nor two ranks can divide before the rows are made wider
    "packed": {
        "dynamic_batching": {"enabled": False},
        "logprob_chunk_size": 3,
        "sequence_packing": {"enabled": True, "train_mb_tokens": 9, "algorithm": "concatenative"},
    },
}


def small_older_loss(*arguments: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """So small that one step changes weights by what float32 can compare."""
    loss, metrics = older_loss(*arguments)
    return loss / 1000, metrics


LOSSES: dict[str, Any] = {"nll": NLLLoss(), "older": small_older_loss}


@dataclass(frozen=True)
class Case:
    """A model of setup_cases laid out over ranks; batches: one of BLOCKS."""

    model: str
    batches: str
    layout: dict[str, Any]
    ranks: int = 2
    loss: str = "nll"


def divided_by_context(cp: int, tp: int = 1, **others: Any) -> dict[str, Any]:
    sizes = {"context_parallel_size": cp, "tensor_parallel_size": tp}
    return {**sizes, "context_parallel_attention": "gathered", **others}


RERUN = {"activation_checkpointing": True}
BY_TOKENS = {"tensor_parallel_size": 2, "sequence_parallel": True}
CASES = {
    "context llama": Case("llama", "plain", {"context_parallel_size": 2}, loss="older"),
    "context qwen2 dynamic": Case("qwen2", "dynamic", divided_by_context(2, **RERUN)),
    "context qwen3 packed": Case("qwen3", "packed", divided_by_context(2, **RERUN)),
    "context qwen3moe packed": Case("qwen3moe", "packed", divided_by_context(2, expert_parallel_size=2, **RERUN)),
    "ring qwen3": Case("qwen3", "plain", divided_by_context(2, context_parallel_attention="torch", **RERUN)),
    "ring x4 llama": Case("llama", "plain", divided_by_context(4, context_parallel_attention="torch"), 4),
    "tokens llama": Case("llama", "plain", BY_TOKENS, loss="older"),
    "tokens qwen2 dynamic": Case("qwen2", "dynamic", {**BY_TOKENS, **RERUN}),
    "tokens qwen3 packed": Case("qwen3", "packed", {**BY_TOKENS, **RERUN}),
    "context x4 llama": Case("llama", "plain", divided_by_context(4), 4),
    "context x tensors qwen3 packed": Case("qwen3", "packed", divided_by_context(2, 2, **RERUN), 4),
    "data x context qwen2 dynamic": Case("qwen2", "dynamic", divided_by_context(2), 4),
    "data x context llama packed": Case("llama", "packed", divided_by_context(2, dp_replicate_size=2), 4, "older"),
    "data x tokens qwen3": Case("qwen3", "plain", BY_TOKENS, 4),
    "tensors phi3 packed": Case("phi3", "packed", {"tensor_parallel_size": 2}),
    "tokens glm": Case("glm", "plain", BY_TOKENS),
    "tokens starcoder2 packed": Case("starcoder2", "packed", {**BY_TOKENS, **RERUN}),
    "data x tensors gemma3_text dynamic": Case("gemma3_text", "dynamic", {"tensor_parallel_size": 2}, 4),
}
GPU_CASES = {
    "ring llama on GPUs": Case("llama", "plain", {"context_parallel_size": 2, "device": "cuda"}),
    "ring qwen3 on GPUs": Case("qwen3", "dynamic", {"context_parallel_size": 2, "device": "cuda", **RERUN}),
    "offloaded llama": Case("llama", "plain", {"cpu_offload": True, "device": "cuda"}),
}
"""For two GPUs, over NCCL."""


def whole_batch() -> BatchedDataDict[Any]:
    batch = batch_of(LENGTHS, WIDTH)
    batch["row"] = torch.arange(len(LENGTHS))
    return batch.to("cpu")


def shard_of(config: Any, dp_size: int, dp_rank: int) -> Any:
    """This rank's rows, with the plan of their microbatches."""
    dynamic, packing = config["dynamic_batching"], config["sequence_packing"]
    if dynamic["enabled"]:
        cut = dynamic_args(dynamic["train_mb_tokens"], dynamic["sequence_length_round"])
        return whole_batch().shard_by_batch_size(dp_size, dynamic_batching_args=cut)[0][dp_rank]
    if packing["enabled"]:
        packed = packing_args(13, packing["algorithm"])
        return whole_batch().shard_by_batch_size(dp_size, sequence_packing_args=packed)[0][dp_rank]
    return whole_batch().shard_by_batch_size(dp_size)[dp_rank]


@dataclass(frozen=True)
class Rank:
    """A policy on this rank and its rows."""

    config: Any
    context: DistributedContext
    state: Any
    shard: Any

    @property
    def contexts(self) -> Any:
        return context_parallel_contexts(self.context, self.config)

    @property
    def packs(self) -> bool:
        return bool(self.config["sequence_packing"]["enabled"])

    def microbatches(self) -> list[ProcessedMicrobatch]:
        mesh = self.context.device_mesh["dp"]
        return [*get_microbatch_iterator(self.shard, self.config, 2, mesh, TOKENIZER, self.context.cp_size)[0]]

    def processor(self, kind: Any, **settings: Any) -> Any:
        mesh = self.context.device_mesh
        sizes = {"cp_size": self.context.cp_size, "enable_seq_packing": self.packs}
        return kind(cfg=self.config, device_mesh=mesh, cp_mesh=mesh["cp"], tp_mesh=mesh["tp"], **sizes, **settings)

    def inferred(self, processor: Any, params: TrainingSamplingParams) -> list[torch.Tensor]:
        """What processor gives, by kind of result: [rows, WIDTH, ...] in the order of the rows of the shard."""
        found = []
        microbatches = self.microbatches()
        how: dict[str, Any] = {"sampling_params": params, "train_context_fn": self.contexts}
        for result, _ in train.automodel_forward_backward(self.state.model, microbatches, processor, True, **how):
            parts = result if isinstance(result, tuple) else (result,)
            found.append([_widened(part) for part in parts])
        rows = torch.cat([microbatch.data_dict["row"] for microbatch in microbatches])
        return [rows.cpu(), *(torch.cat(parts).cpu() for parts in zip(*found, strict=True))]

    def torch_deals(self) -> list[Any]:
        """Which positions torch's context_parallel would give this rank, which it gets, and how keys travel."""
        inputs, mesh = self.microbatches()[0].processed_inputs, self.context.device_mesh["cp"]
        index = torch.arange(inputs.seq_len, device=inputs.input_ids.device)[None]
        with attend_in_ring(mesh.get_group()), context_parallel(mesh, buffers=[index], buffer_seq_dims=[1]):
            positions = positions_of_ranks(inputs.seq_len, mesh.size(), torch.device("cpu"))
            return [index[0].tolist(), positions[mesh.get_local_rank()].tolist(), _cp_options.rotate_method.name]

    def step(self, loss: Any) -> tuple[float, float]:
        """One step; the loss of all ranks' rows and the gradients' norm."""
        group = self.context.device_mesh["dp"].get_group()
        counted = process_global_batch(self.shard, loss, group, batch_idx=0, batch_size=self.shard.size)
        how = {key: counted[key] for key in ("global_valid_seqs", "global_valid_toks")}
        how |= {"dp_size": self.context.dp_size, "cp_size": self.context.cp_size, "train_context_fn": self.contexts}
        processor = self.processor(train.LossPostProcessor, loss_fn=loss, dp_size=self.context.dp_size)
        model, microbatches = self.state.model, self.microbatches()
        results = train.automodel_forward_backward(model, microbatches, processor, sampling_params=SAMPLING, **how)
        norm = train.clip_grad_norm(self.state.model.parameters(), max_norm=1e9)
        self.state.optimizer.step()
        total = torch.stack([value for value, _ in results]).sum()
        torch.distributed.all_reduce(total, group=group)
        return float(total), float(norm)


def _widened(rows: torch.Tensor) -> torch.Tensor:
    missing = [0, 0] * (rows.ndim - 2) + [0, WIDTH - rows.shape[1]]
    return torch.nn.functional.pad(rows, missing)


def prepared(folder: Path, case: Case) -> Rank:
    config = {**policy_config(folder / case.model, **case.layout), **BLOCKS[case.batches]}
    context, state = setup_cases.prepared(config)
    mesh = context.device_mesh["dp"]
    shard = shard_of(config, mesh.size(), mesh.get_local_rank()).to(rank_device(mesh.device_type))
    return Rank(config, context, state, shard)


def play(_rank: int, folder: Path, name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors by name, and everything else."""
    disable_progress_bar()
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    case = (CASES | GPU_CASES)[name]
    rank = prepared(folder, case)
    before = rank.shard["input_ids"].clone()
    rank.state.model.eval()
    rows, logprobs = rank.inferred(rank.processor(train.LogprobsPostProcessor), SAMPLING)
    filtered = rank.inferred(rank.processor(train.LogprobsPostProcessor, sampling_params=FILTER), FILTER)[1]
    values, ids = rank.inferred(rank.processor(train.TopkLogitsPostProcessor, k=3), SAMPLING)[1:]
    refused = [*_refused(rank, name)]
    rank.state.model.train()
    loss, norm = rank.step(LOSSES[case.loss])
    tensors = {"rows": rows, "logprobs": logprobs, "filtered": filtered, "values": values, "ids": ids}
    tensors |= {f"weight {key}": value for key, value in whole_weights(rank.state.model).items()}
    seen = {"loss": loss, "norm": norm, "intact": torch.equal(rank.shard["input_ids"], before), "refused": refused}
    return tensors, {**seen, "torch deals": rank.torch_deals() if rank.contexts else []}


class Travel(TorchDispatchMode):
    """Counts the elements that this rank sends to its neighbours, and the sends."""

    elements = sends = 0

    def __torch_dispatch__(self, call: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "all_to_all_single" in str(call):
            self.elements += args[0].numel()
            self.sends += 1
        return call(*args, **(kwargs or {}))


def ring_of_groups(rank: int, ranks: int, heads: int, kv_heads: int) -> tuple[list[torch.Tensor], int, int]:
    """Differences between a rank's part of attention and of its gradients in a ring, and those of one process; elements
    sent, and in how many sends. Sequences of 16 tokens for each rank, heads of 4.
    """
    torch.distributed.init_process_group("gloo")
    whole = [torch.randn(1, number, 16 * ranks, 4).requires_grad_() for number in (heads, kv_heads, kv_heads)]
    weight = torch.randn(1, 16 * ranks, heads, 4)
    attention: Any = torch.nn.functional.scaled_dot_product_attention
    output = attention(*whole, is_causal=True, enable_gqa=True).transpose(1, 2)
    wanted = [output, *torch.autograd.grad((output * weight).sum(), whole)]
    own = positions_of_ranks(16 * ranks, ranks, torch.device("cpu"))[rank]
    parts = [part.detach()[:, :, own].requires_grad_() for part in whole]
    with attend_in_ring(torch.distributed.group.WORLD), Travel() as travel:  # type: ignore[no-untyped-call, arg-type]
        found, _ = ring_attention(torch.nn.Module(), parts[0], parts[1], parts[2], None)
        gradients = torch.autograd.grad((found * weight[:, own]).sum(), parts)
    torch.distributed.destroy_process_group()
    own_wanted = [wanted[0][:, own], *(part[:, :, own] for part in wanted[1:])]
    differences = [part - other for part, other in zip((found, *gradients), own_wanted, strict=True)]
    return [part.detach() for part in differences], travel.elements, travel.sends


def _refused(rank: Rank, name: str) -> Iterator[str]:
    """What is said of rows that do not divide, after which everything must still work."""
    if rank.packs or "dynamic" in name:
        return
    microbatch = rank.microbatches()[0].data_dict
    odd: BatchedDataDict[Any] = BatchedDataDict({**microbatch, "input_ids": microbatch["input_ids"][:, :7]})
    odd["token_mask"] = microbatch["token_mask"][:, :7]
    plain = Rank(rank.config, rank.context, rank.state, odd)
    try:
        plain.inferred(plain.processor(train.LogprobsPostProcessor), SAMPLING)
    except ValueError as error:
        yield str(error)
