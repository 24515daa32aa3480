"""The cases of test_microbatches_between_ranks, which rank_processes.py runs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from tests.trainer_adapter.planning import packing_args
from torch.distributed.device_mesh import DeviceMesh

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.data import get_microbatch_iterator, process_global_batch
from trainer_adapter.losses import LossType

EOS = 0
TOKENIZER: Any = SimpleNamespace(eos_token_id=EOS)
CFG = {"dynamic_batching": {"enabled": False}, "sequence_packing": {"enabled": True, "train_mb_tokens": 8}}
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
    iterator, length = get_microbatch_iterator(packed_rows(rank, lengths), CFG, 1, mesh, TOKENIZER)
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
    return {
        "seqs": result["global_valid_seqs"].item(),
        "toks": result["global_valid_toks"].item(),
        "dtype": str(result["global_valid_toks"].dtype),
    }


def cases(rank: int, mesh: DeviceMesh) -> dict[str, Callable[[], dict[str, Any]]]:
    lone_row = {"input_ids": torch.zeros(1, 1, dtype=torch.int64), "sample_mask": torch.ones(1, dtype=torch.int64)}
    # Every float32 from 2**24 on is even: one that is odd, and a lone one added to it, would be lost.
    wide = torch.zeros(1, 1, dtype=torch.int64).expand(1, 1 if rank else 2**24 + 1)
    masked = {
        "input_ids": torch.zeros(2, 3, dtype=torch.int64),
        "sample_mask": torch.tensor([1, rank]),
        "token_mask": torch.tensor([[1, 1, 1], [0, 0, 1]]),
    }
    return {
        "unequal": lambda: forward_passes(rank, mesh, [5, 6, 7] if rank else [4, 4]),
        "many_more": lambda: forward_passes(rank, mesh, [8] * 5 if rank else [5, 6]),
        "equal": lambda: forward_passes(rank, mesh, [5, 6]),
        "masked": lambda: counts(mesh, masked, TOKEN_LOSS),
        "many_tokens": lambda: counts(mesh, {**lone_row, "input_ids": wide}),
        "many_tokens_float": lambda: counts(mesh, {**lone_row, "input_ids": wide, "sample_mask": torch.ones(1)}),
        "one_rank_refuses": lambda: counts(mesh, lone_row, ANY_LOSS if rank else TOKEN_LOSS),
    }
