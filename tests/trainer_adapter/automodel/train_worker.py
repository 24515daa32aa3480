"""The cases of test_train_between_ranks, which two ranks play in one group."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from tests.trainer_adapter.automodel import tiny_policy
from tests.trainer_adapter.automodel.tiny_policy import EOS, TOKENIZER, batch_of, processed
from tests.trainer_adapter.planning import packing_args
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel import train
from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.data import ProcessedMicrobatch, get_microbatch_iterator, process_global_batch
from trainer_adapter.losses import LossType, NLLLoss

LENGTHS = [7, 2, 8]
COUNTS = (torch.tensor(3.0), torch.tensor(11.0))
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


def loss_of(
    logits: Tensor, microbatch: ProcessedMicrobatch, loss: str, packed: bool, temperature: float = 1.0
) -> Tensor:
    processor = train.LossPostProcessor(LOSSES[loss], {}, None, None, None, 1, 1, enable_seq_packing=packed)
    return processor(logits, microbatch, *COUNTS, temperature)[0]


def logprobs_of(logits: Tensor, microbatch: ProcessedMicrobatch, packed: bool, **settings: Any) -> Tensor:
    cfg = {"logprob_chunk_size": settings.pop("chunk_size", None)}
    return train.LogprobsPostProcessor(cfg, None, None, None, 1, packed, **settings)(logits, microbatch)


def topk_of(logits: Tensor, microbatch: ProcessedMicrobatch, k: int, packed: bool) -> tuple[Tensor, Tensor]:
    return train.TopkLogitsPostProcessor({}, None, None, None, 1, k, packed)(logits, microbatch)


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
    result: dict[str, Any] = {}
    for name, placements in layouts.items():
        logits = distribute_tensor(whole, mesh, placements).requires_grad_()
        found = loss_of(logits, microbatch, "older", packed=False, temperature=0.7)
        result[name] = [logprobs_of(logits, microbatch, packed=False).tolist(), found.item()]
    scores = distribute_tensor(torch.tensor([[1.0], [2.0], [3.0]]), mesh, [Shard(0)])
    return {**result, "scores": train.ScorePostProcessor({})(scores).tolist()}


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
    with CommDebugMode() as collectives:
        norm = train.clip_grad_norm(parameters, max_norm)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    whole = [grad.full_tensor() if isinstance(grad, DTensor) else grad for grad in gradients]
    found = {"norm": norm.item(), "gradients": [gradient.tolist() for gradient in whole]}
    return {**found, "collectives": collectives.get_total_counts()}


def statistics_case(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    found = train.aggregate_training_statistics(
        losses=[torch.tensor(1.5), 10.0 * rank],
        all_mb_metrics=[{"loss": torch.tensor(0.25), "lr": 0.1}, {"loss": rank}],
        grad_norm=torch.tensor(2.0),
        dp_group=mesh.get_group(),
        dtype=torch.bfloat16,
    )
    assert found["global_loss"].device.type == "cpu"
    text = {"model_dtype": str(found["model_dtype"]), "gpu_name": found["gpu_name"]}
    return {**found, **text, "global_loss": found["global_loss"].tolist(), "grad_norm": found["grad_norm"].item()}


# --- numbers of microbatches, and counts ---

PACKS = {"dynamic_batching": {"enabled": False}, "sequence_packing": {"enabled": True, "train_mb_tokens": 8}}
ANY_LOSS: Any = SimpleNamespace()
TOKEN_LOSS: Any = SimpleNamespace(loss_type=LossType.TOKEN_LEVEL)


def packed_rows(rank: int, lengths: list[int]) -> BatchedDataDict[Any]:
    """Rows packed by this rank alone, so that ranks differ in their number of microbatches. Every token of row r on
    rank k is 10 * k + r + 1.
    """
    ids = [[10 * rank + row + 1] * length + [EOS] * (8 - length) for row, length in enumerate(lengths)]
    batch: BatchedDataDict[Any] = BatchedDataDict(input_ids=torch.tensor(ids), input_lengths=torch.tensor(lengths))
    return batch.shard_by_batch_size(1, sequence_packing_args=packing_args(8, "concatenative"))[0][0]


def forward_passes(rank: int, mesh: DeviceMesh, lengths: list[int]) -> dict[str, Any]:
    """Each pass sums its tokens over the ranks, as collective as a sharded model's: with unequal numbers this hangs."""
    iterator, length = get_microbatch_iterator(packed_rows(rank, lengths), PACKS, 1, mesh, TOKENIZER)
    own, summed = [], []
    for microbatch in iterator:
        tokens = microbatch.processed_inputs.input_ids
        own.append(sorted(set(tokens.flatten().tolist()) - {EOS}))
        total = tokens.sum()
        torch.distributed.all_reduce(total)
        summed.append(total.item())
    return {"length": length, "own": own, "summed": summed}


def counts(mesh: DeviceMesh, batch: dict[str, Any], loss_fn: Any = ANY_LOSS) -> dict[str, Any]:
    data: BatchedDataDict[Any] = BatchedDataDict(batch)
    try:
        result = process_global_batch(data, loss_fn, mesh.get_group(), batch_idx=0, batch_size=data.size)
    except AssertionError as error:
        return {"error": str(error)}
    seqs, toks = result["global_valid_seqs"], result["global_valid_toks"]
    return {"seqs": seqs.item(), "toks": toks.item(), "dtype": str(toks.dtype)}


def play_cases(rank: int) -> dict[str, Any]:
    """What this rank saw, by case."""
    torch.distributed.init_process_group("gloo")
    return {
        name: play() for name, play in cases(rank, init_device_mesh("cpu", (2,), mesh_dim_names=("ranks",))).items()
    }


def cases(rank: int, mesh: DeviceMesh) -> dict[str, Callable[[], dict[str, Any]]]:
    other = init_device_mesh("cpu", (2,), mesh_dim_names=("other",))
    lone_row = {"input_ids": torch.zeros(1, 1, dtype=torch.int64), "sample_mask": torch.ones(1, dtype=torch.int64)}
    # Every float32 from 2**24 on is even: one that is odd, and a lone one added to it, would be lost.
    wide = torch.zeros(1, 1, dtype=torch.int64).expand(1, 1 if rank else 2**24 + 1)
    masked = {"input_ids": torch.zeros(2, 3, dtype=torch.int64), "sample_mask": torch.tensor([1, rank])}
    masked["token_mask"] = torch.tensor([[1, 1, 1], [0, 0, 1]])
    return {
        "many_more": lambda: forward_passes(rank, mesh, [8] * 5 if rank else [5, 6]),
        "equal": lambda: forward_passes(rank, mesh, [5, 6]),
        "masked": lambda: counts(mesh, masked, TOKEN_LOSS),
        "many_tokens": lambda: counts(mesh, {**lone_row, "input_ids": wide}),
        "many_tokens_float": lambda: counts(mesh, {**lone_row, "input_ids": wide, "sample_mask": torch.ones(1)}),
        "one_rank_refuses": lambda: counts(mesh, lone_row, ANY_LOSS if rank else TOKEN_LOSS),
        **{
            f"vocab {vocab} {packed}": functools.partial(vocab_case, mesh, vocab, packed)
            for vocab in (7, 1)
            for packed in (False, True)
        },
        "layouts": lambda: other_layouts(mesh),
        "clipped": lambda: clipping_case(mesh, other, 0.5),
        "unclipped": lambda: clipping_case(mesh, other, 1000.0),
        "statistics": lambda: statistics_case(mesh, rank),
    }
