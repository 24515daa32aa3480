"""One rank of the group of test_train_between_ranks: runs every case, writes its results as JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from tests.trainer_adapter.automodel import tiny_policy
from tests.trainer_adapter.automodel.tiny_policy import batch_of, processed
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.data import ProcessedInputs, ProcessedMicrobatch
from trainer_adapter.automodel.train import (
    LogprobsPostProcessor,
    LossPostProcessor,
    ScorePostProcessor,
    TopkLogitsPostProcessor,
    aggregate_training_statistics,
    automodel_forward_backward,
    clip_grad_norm,
)
from trainer_adapter.losses import NLLLoss

LENGTHS = [7, 2, 8]
COUNTS = (torch.tensor(3.0), torch.tensor(11.0))
POSITIONS = [[0, 1, 6, 7], [2, 3, 4, 5]]
"""Of a sequence of 8 on each context-parallel rank: one early and one late stretch."""
ROWS: list[tuple[list[list[int]], int]] = [([[7, 2], [8], [3, 3, 3]], 0), ([[4, 4, 4, 4], [5], [5]], 2)]
"""The lengths of each data-parallel rank's microbatches, and how many of them are dummies."""
FILTER = TrainingSamplingParams(top_k=5, top_p=0.9)


def older_loss(logits: Tensor, data: Mapping[str, Tensor], seqs: Tensor, toks: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Of the shape that takes logits. The square makes each logit's gradient depend on the whole vocabulary."""
    weights = data["token_mask"][:, :-1, None] * (data["input_ids"][:, :-1, None] % 5)
    return (logits[:, :-1].log_softmax(-1) ** 2 * weights).sum() / toks, {"num_valid_samples": 1}


LOSSES: dict[str, Any] = {"older": older_loss, "nll": NLLLoss()}


def logits_of(microbatch: ProcessedMicrobatch, vocab: int) -> Tensor:
    """Always the same whole logits for the same shape."""
    shape = (*microbatch.processed_inputs.input_ids.shape, vocab)
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(vocab))


def loss_of(logits: Tensor, microbatch: ProcessedMicrobatch, loss: str, packed: bool, mesh: Any = None) -> Tensor:
    processor = LossPostProcessor(LOSSES[loss], {}, None, mesh, None, 1, 1, enable_seq_packing=packed)
    return processor(logits, microbatch, *COUNTS)[0]


def logprobs_of(
    logits: Tensor, microbatch: ProcessedMicrobatch, packed: bool, mesh: Any = None, **settings: Any
) -> Tensor:
    cfg = {"logprob_chunk_size": settings.pop("chunk_size", None)}
    return LogprobsPostProcessor(cfg, None, mesh, None, 1, packed, **settings)(logits, microbatch)


def topk_of(
    logits: Tensor, microbatch: ProcessedMicrobatch, k: int, packed: bool = False, mesh: Any = None
) -> tuple[Tensor, Tensor]:
    return TopkLogitsPostProcessor({}, None, mesh, None, 1, k, packed)(logits, microbatch)


# --- the vocabulary sharded ---


def vocab_case(mesh: DeviceMesh, vocab: int, packed: bool) -> dict[str, Any]:
    """Losses and gradients of this rank's logits, log-probabilities and the largest logits."""
    microbatch = processed(batch_of(LENGTHS, vocab=vocab), packed)
    whole = logits_of(microbatch, vocab)
    sharded = distribute_tensor(whole, mesh, [Shard(2)])
    result: dict[str, Any] = {}
    for loss in LOSSES:
        leaf = sharded.to_local().clone().requires_grad_()
        logits = DTensor.from_local(leaf, mesh, [Shard(2)], run_check=False, shape=whole.shape, stride=whole.stride())
        value = loss_of(logits, microbatch, loss, packed)
        value.backward()
        assert leaf.grad is not None
        result[loss] = {"loss": value.item(), "gradient": leaf.grad.tolist()}
    result["logprobs"] = logprobs_of(sharded, microbatch, packed).tolist()
    result["chunked"] = logprobs_of(sharded, microbatch, packed, chunk_size=3).tolist()
    result["filtered"] = logprobs_of(sharded, microbatch, packed, sampling_params=FILTER).tolist()
    result["topk"] = [[part.tolist() for part in topk_of(sharded, microbatch, k, packed)] for k in (1, 3, 100)]
    return result


def other_layouts(mesh: DeviceMesh) -> dict[str, Any]:
    microbatch = processed(batch_of(LENGTHS), packed=False)
    whole = logits_of(microbatch, tiny_policy.VOCAB)
    layouts: dict[str, list[Placement]] = {"replicated": [Replicate()], "by_position": [Shard(1)]}
    result = {
        name: logprobs_of(distribute_tensor(whole, mesh, placements), microbatch, False).tolist()
        for name, placements in layouts.items()
    }
    scores = distribute_tensor(torch.tensor([[1.0], [2.0], [3.0]]), mesh, [Shard(0)])
    return {**result, "scores": ScorePostProcessor({})(scores).tolist()}


def vocab_parallel_model(mesh: DeviceMesh | None, packed: bool) -> dict[str, Any]:
    """A model whose last layer is sharded, unless mesh is None, over a real microbatch and a dummy."""
    model = tiny_policy.tiny_model()
    if mesh is not None:
        plan = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(model, mesh, {"lm_head": plan})
    microbatches = [processed(batch_of(lengths), packed) for lengths in (LENGTHS, [4, 4])]
    processor = LossPostProcessor(NLLLoss(), {}, None, None, None, 1, 1, enable_seq_packing=packed)
    results = automodel_forward_backward(
        model,
        microbatches,
        processor,
        global_valid_seqs=COUNTS[0],
        global_valid_toks=COUNTS[1],
        sampling_params=TrainingSamplingParams(temperature=0.7),
        num_valid_microbatches=1,
    )
    return {"losses": [loss.item() for loss, _ in results], "gradients": whole_gradients(model)}


def whole_gradients(model: Any) -> dict[str, Any]:
    found = tiny_policy.gradients(model)
    whole = {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in found.items()}
    return {name: gradient.tolist() for name, gradient in whole.items()}


# --- weights and samples sharded ---


def nan_when_masked(
    logits: Tensor, data: Mapping[str, Tensor], seqs: Tensor, toks: Tensor
) -> tuple[Tensor, dict[str, Any]]:
    """NaN where a sample is masked out, with which dummies are marked here."""
    loss, metrics = older_loss(logits, data, seqs, toks)
    return loss * (0 / data["sample_mask"].max() + 1), metrics


def data_parallel_model(mesh: DeviceMesh | None, rows: list[list[int]], dummies: int) -> dict[str, Any]:
    """A model over one microbatch for each of rows, the last ones dummies; over a mesh its weights are sharded."""
    model = tiny_policy.tiny_model()
    if mesh is not None:
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    microbatches = [processed(batch_of(lengths), packed=True) for lengths in rows]
    for microbatch in microbatches[len(rows) - dummies :]:
        microbatch.data_dict["sample_mask"].zero_()
    processor = LossPostProcessor(nan_when_masked, {}, None, None, None, 1, 1, enable_seq_packing=True)
    results = automodel_forward_backward(
        model,
        microbatches,
        processor,
        global_valid_seqs=COUNTS[0],
        global_valid_toks=COUNTS[1],
        dp_size=1 if mesh is None else mesh.size(),
        num_valid_microbatches=len(rows) - dummies,
    )
    norm = clip_grad_norm(model.parameters(), max_norm=1.0).item()
    return {"loss": sum(loss.item() for loss, _ in results), "norm": norm, "gradients": whole_gradients(model)}


# --- positions sharded ---


def sequence_case(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    microbatch = processed(batch_of(LENGTHS), packed=False)
    whole = logits_of(microbatch, tiny_policy.VOCAB)
    own = torch.tensor(POSITIONS[rank])
    ids, index = microbatch.processed_inputs.input_ids[:, own], own[None]
    inputs = ProcessedInputs(input_ids=ids, seq_len=8, cp_buffers=[ids, index], seq_index=index)
    microbatch.data_dict["input_ids"] = ids  # as context parallelism leaves the buffer
    sharded = ProcessedMicrobatch(microbatch.data_dict, inputs, 3, 8)
    result: dict[str, Any] = {}
    for loss in LOSSES:
        leaf = whole[:, own].clone().requires_grad_()
        value = loss_of(leaf, sharded, loss, False, mesh)
        value.backward()
        assert leaf.grad is not None
        result[loss] = {"loss": value.item(), "gradient": leaf.grad.tolist()}
    result["logprobs"] = logprobs_of(whole[:, own], sharded, False, mesh).tolist()
    result["topk"] = [part.tolist() for part in topk_of(whole[:, own], sharded, 4, False, mesh)]
    return result


# --- gradients and statistics ---


def mixed_parameters(mesh: DeviceMesh | None, other: DeviceMesh | None) -> list[torch.nn.Parameter]:
    """Parameters and gradients, always the same, plain and over two meshes where there are any; one has no gradient."""
    generator = torch.Generator().manual_seed(5)
    parameters = []
    for over in (None, mesh, other, mesh):
        whole = torch.randn(4, 3, generator=generator)
        given = torch.randn(4, 3, generator=generator)
        parameter = torch.nn.Parameter(whole if over is None else distribute_tensor(whole, over, [Shard(0)]))
        parameter.grad = given if over is None else distribute_tensor(given, over, [Shard(0)])
        parameters.append(parameter)
    return [*parameters, torch.nn.Parameter(torch.ones(1))]


def clipping_case(mesh: DeviceMesh, other: DeviceMesh, max_norm: float) -> dict[str, Any]:
    parameters = mixed_parameters(mesh, other)
    norm = clip_grad_norm(parameters, max_norm)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    whole = [grad.full_tensor() if isinstance(grad, DTensor) else grad for grad in gradients]
    return {"norm": norm.item(), "gradients": [gradient.tolist() for gradient in whole]}


def statistics_case(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    found = aggregate_training_statistics(
        losses=[torch.tensor(1.5), 10.0 * rank],
        all_mb_metrics=[{"loss": torch.tensor(0.25), "lr": 0.1}, {"loss": rank}],
        grad_norm=torch.tensor(2.0),
        dp_group=mesh.get_group(),
        dtype=torch.bfloat16,
    )
    assert found["global_loss"].device.type == "cpu"
    text = {"model_dtype": str(found["model_dtype"]), "gpu_name": found["gpu_name"]}
    return {**found, **text, "global_loss": found["global_loss"].tolist(), "grad_norm": found["grad_norm"].item()}


def cases(rank: int, mesh: DeviceMesh) -> dict[str, Callable[[], dict[str, Any]]]:
    other = init_device_mesh("cpu", (2,), mesh_dim_names=("other",))
    return {
        **{
            f"vocab {vocab} {packed}": functools.partial(vocab_case, mesh, vocab, packed)
            for vocab in (64, 7, 1)
            for packed in (False, True)
        },
        "layouts": lambda: other_layouts(mesh),
        "vocab-parallel False": lambda: vocab_parallel_model(mesh, False),
        "vocab-parallel True": lambda: vocab_parallel_model(mesh, True),
        "data-parallel": lambda: data_parallel_model(mesh, *ROWS[rank]),
        "sequence": lambda: sequence_case(mesh, rank),
        "clipped": lambda: clipping_case(mesh, other, 0.5),
        "unclipped": lambda: clipping_case(mesh, other, 1000.0),
        "statistics": lambda: statistics_case(mesh, rank),
    }


def be_a_rank(rank: int, folder: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    seen = {case: play() for case, play in cases(rank, mesh).items()}
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()
