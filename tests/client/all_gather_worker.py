"""One rank of the group that test_batched_data_dict_all_gather starts: gathers one batch a case, writes JSON."""

from __future__ import annotations

import json
import multiprocessing
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from tests.tensors import objects

from dataplane_client.batched_data_dict import BatchedDataDict, SlicedDataDict
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32]
DTYPES += [torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
DTYPES += [torch.float8_e4m3fn, torch.float8_e5m2]


class OnRank0:
    """What no other rank can unpickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return of_rank_0, ()


def of_rank_0() -> str:
    if torch.distributed.get_rank():
        raise ValueError("this is rank 1")
    return "here"


def rows(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Rank 0 has the row [1, 0], rank 1 the rows [1, 0] and [1, 1]."""
    return torch.tensor([[1, 0], [1, 1]][: rank + 1]).to(dtype)


def batches(rank: int, device: str) -> dict[str, BatchedDataDict[Any]]:
    nan = torch.tensor([0x7FC01234 + rank, -(2**31)], dtype=torch.int32)  # a NaN with a payload, and -0.0
    jagged = torch.nested.nested_tensor_from_jagged(torch.zeros(3), torch.tensor([0, 1, 3]))
    cases: dict[str, dict[str, Any]] = {str(dtype): {"x": rows(rank, dtype)} for dtype in DTYPES}
    cases |= {
        "bits": {"x": nan.view(torch.float32)},
        "flat": {"x": torch.tensor([10, 20][: rank + 1])},
        "deep": {"x": torch.full((1, 2, 2), rank)},
        "one_rank_without_rows": {"x": torch.ones(2 * rank, 3), "y": ["a"] * rank},
        "no_rank_with_rows": {"x": torch.ones(0, 3), "y": []},
        "gradient": {"x": torch.ones(1, requires_grad=True)},
        "strided": {"x": torch.arange(4).reshape(2, 2).T},
        "lists": {"x": [{"rank": rank}, [rank]]},
        "objects": {"x": objects({"rank": rank}, *["more"] * rank)},
        "key_order": {"x": [rank], "y": torch.tensor([rank])} if rank else {"y": torch.tensor([rank]), "x": [rank]},
        "keys_differ": {"x": [1], "y": [2]} if rank else {"x": [1]},
        "dtypes_differ": {"x": torch.ones(1, dtype=torch.float32 if rank else torch.float16)},
        "widths_differ": {"x": torch.ones(1, 2 + rank)},
        "kinds_differ": {"x": [1] if rank else torch.ones(1)},
        "unpicklable": {"x": [lambda: rank] if rank else [1]},
        "unpicklable_by_a_runtime_error": {"x": [multiprocessing.Lock()] if rank else [1]},
        "on_rank_0": {"x": [OnRank0()]},
        "packed": {"x": PackedTensor(torch.ones(1), 0)},
        "packed_on_one_rank": {"x": PackedTensor(torch.ones(1), 0) if rank else torch.ones(1)},
        "nested": {"x": jagged},
        "0d": {"x": torch.tensor(1)},
    }
    made: dict[str, BatchedDataDict[Any]] = {case: BatchedDataDict(columns) for case, columns in cases.items()}
    made["sliced"] = SlicedDataDict(x=[rank])
    return {case: batch.to(device) for case, batch in made.items()}


def as_json(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return {"type": type(value).__name__, "rows": list(value)}
    plain = value.to(torch.complex64).real if value.is_complex() else value.to(torch.float64)
    bits = value.view(torch.int32).tolist() if value.dtype == torch.float32 and value.ndim == 1 else None
    return {"dtype": str(value.dtype), "rows": plain.tolist(), "bits": bits, "grad": value.requires_grad}


def gathered(batch: BatchedDataDict[Any], group: torch.distributed.ProcessGroup) -> Any:
    try:
        result = batch.all_gather(group)
    except (ValueError, TypeError, NotImplementedError) as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"class": type(result).__name__, **{key: as_json(value) for key, value in result.items()}}


def be_a_rank(rank: int, world_size: int, backend: str, folder: Path) -> None:
    torch.distributed.init_process_group(
        backend, init_method=f"file://{folder}/store", rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
    )
    group = torch.distributed.group.WORLD
    if group is None:
        raise RuntimeError("no process group")
    device = "cuda" if backend == "nccl" else "cpu"
    seen = {case: gathered(batch, group) for case, batch in batches(rank, device).items()}
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()
