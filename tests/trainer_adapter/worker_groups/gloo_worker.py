"""A small real worker: ranks on gloo, data-parallel x tensor-parallel, with arithmetic that is easy to check."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.records.meta import KVBatchMeta


class GlooWorker:
    """tp_size: of the grid. unwilling_rank: fails to be made. closed: a folder that gets a file for each rank that has
    shut down.
    """

    def __init__(self, tp_size: int = 1, unwilling_rank: int | None = None, closed: str | None = None) -> None:
        self.rank = int(os.environ["RANK"])
        if self.rank == unwilling_rank:
            raise ValueError(f"rank {self.rank} does not want to be made")
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=300))
        self.tp_size, self.closed = tp_size, closed

    def layout(self) -> dict[str, int]:
        dp_rank, tp_rank = divmod(self.rank, self.tp_size)
        return {"rank": self.rank, "dp_rank": dp_rank, "cp_rank": 0, "tp_rank": tp_rank}

    def get_logprobs(self, data: BatchedDataDict[Any], micro_batch_size: int | None = None) -> BatchedDataDict[Any]:
        """Each row times its length; `plan` tells every row how many microbatches its rank has."""
        assert micro_batch_size is None
        assert data["input_ids"].dtype == torch.int64
        _ = data["input_ids"].add_(0)  # memory that may be written to
        microbatches = 0 if data.micro_batch_indices is None else sum(map(len, data.micro_batch_indices))
        return BatchedDataDict(
            logprobs=(data["input_ids"] * data["input_lengths"][:, None]).float(),
            rank=torch.full((data.size,), self.rank),
            microbatches=torch.full((data.size,), microbatches),
        )

    def seen(self, data: BatchedDataDict[Any]) -> dict[str, Any]:
        """What this rank sees of its shard, in the kinds of values that metrics have."""
        total = sum_over_ranks(float(data["input_ids"].sum()))
        return {
            "global_loss": torch.tensor([total]),
            "grad_norm": None,
            "model_dtype": torch.bfloat16,
            "all_mb_metrics": {"rows": [torch.tensor(data.size)], "rank": [self.rank]},
        }

    def sample_ids(self, meta: KVBatchMeta) -> dict[str, Any]:
        return {"ids": meta.sample_ids, "target": meta.extra_info.get("global_forward_pad_seqlen")}

    def dtypes(self, data: BatchedDataDict[Any]) -> dict[str, Any]:
        return {name: value.dtype for name, value in data.items() if isinstance(value, torch.Tensor)}

    def echo(self, data: BatchedDataDict[Any]) -> BatchedDataDict[Any]:
        return data

    def environment(self) -> dict[str, str]:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
        return {name: os.environ[name] for name in names if name in os.environ} | {"PID": str(os.getpid())}

    def prepare_refit_info(self) -> dict[str, Any]:
        return {"weight": (torch.Size([2, 3]), torch.bfloat16)}

    def nothing(self) -> None:
        """Succeeds."""

    def sum_of_ranks(self) -> float:
        return sum_over_ranks(self.rank)

    def refuse(self, why: str) -> None:
        """What wrong arguments come to: on every rank alike."""
        raise NotImplementedError(f"no rank can: {why}")

    def fail_alone(self, rank: int, others_wait: bool) -> float:
        """others_wait: in the midst of a collective call, which the failed rank never comes to."""
        if self.rank == rank:
            raise KeyError(f"rank {rank} has lost it")
        return sum_over_ranks(1.0) if others_wait else 0.0

    def be_killed(self, rank: int) -> float:
        """As by the kernel that is out of memory."""
        if self.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return sum_over_ranks(1.0)

    def shutdown(self) -> bool:
        torch.distributed.destroy_process_group()
        if self.closed is not None:
            Path(self.closed, str(self.rank)).touch()
        return True


def sum_over_ranks(value: float) -> float:
    total = torch.tensor([value], dtype=torch.float64)
    torch.distributed.all_reduce(total)
    return total.item()
