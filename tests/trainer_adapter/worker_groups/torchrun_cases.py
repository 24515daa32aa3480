"""Two processes that each run this script, as torchrun starts them; rank_processes.py runs the cases."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.ranks import environment
from tests.trainer_adapter.automodel.rank_processes import Case
from tests.trainer_adapter.worker_groups.gloo_worker import GlooWorker

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter.worker_groups import TorchrunWorkerGroup

META = KVBatchMeta("train", "train", ["a", "b"], ["x"], [3, 4], {"step": 7}, [{"g": 1}, {"g": 2}], [5, 6])


@contextmanager
def group_of(*, grace_s: float = 20, **arguments: Any) -> Iterator[TorchrunWorkerGroup]:
    group = TorchrunWorkerGroup(GlooWorker, arguments, call_timeout_s=60, failure_grace_s=grace_s)
    try:
        yield group
    finally:
        group.shutdown()


def outcome_of(call: Callable[[], Any]) -> str:
    """The error that a call raises, and its cause."""
    try:
        return f"returned {call()}"
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return f"{type(error).__name__}: {error} | {error.__cause__!r}"


def shards_of(*sizes: int) -> list[BatchedDataDict[Any]]:
    return [
        BatchedDataDict({"input_ids": torch.full((size, 2), size), "input_lengths": torch.arange(size) + 1})
        for size in sizes
    ]


def dealt(_rank: int, _folder: Path) -> dict[str, Any]:
    with group_of() as group:
        found = group.run_on_shards("get_logprobs", {"data": shards_of(2, 3)}, micro_batch_size=None)
        metas = [META.subset([0]), META.subset([1])]
        return {
            "logprobs": [result["logprobs"].tolist() for result in found],
            "ranks": [result["rank"].tolist() for result in found],
            "sample_ids": group.run_on_shards("sample_ids", {"meta": metas}),
            "reports": [report["all_mb_metrics"] for report in group.run_on_shards("seen", {"data": shards_of(1, 3)})],
            "dp_size": group.dp_size,
        }


def replicated(_rank: int, _folder: Path) -> dict[str, Any]:
    with group_of(tp_size=2) as group:
        (report,) = group.run_on_shards("seen", {"data": shards_of(2)})
        found = {"loss": report["global_loss"].tolist(), "dtype": report["model_dtype"]}
        return {**found, "dp_size": group.dp_size, "ranks": report["all_mb_metrics"]["rank"]}


def everywhere(rank: int, _folder: Path) -> dict[str, Any]:
    with group_of() as group:
        futures = group.start("sum_of_ranks")
        return {
            "sum": group.run_everywhere("sum_of_ranks"),
            "futures": [future.result(timeout=0) for future in futures],
            "info": group.run_everywhere("prepare_refit_info") == {"weight": (torch.Size([2, 3]), torch.bfloat16)},
            "ray": "ray" in sys.modules,
            "own": group.run_everywhere("environment")["RANK"] == str(rank),
            "shutdown": [group.shutdown(), group.shutdown()],
            "afterwards": outcome_of(lambda: group.run_everywhere("nothing")),
        }


def agreed(_rank: int, _folder: Path) -> dict[str, Any]:
    with group_of() as group:
        ours = group.is_driver
        meta: Any = group.from_driver(META if ours else None)
        given: dict[str, Any] | None = {"rows": torch.tensor([1, 2]), "name": "x"} if ours else None
        values: Any = group.from_driver(given)
        batch = group.from_driver(shards_of(2)[0] if ours else None)
        return {
            "driver": ours,
            "meta": meta == META and meta.generations == META.generations,
            "values": [values["rows"].tolist(), values["name"]],
            "batch": isinstance(batch, BatchedDataDict) and batch.size,
            "nothing": group.from_driver(None) is None,
            "refused": outcome_of(lambda: group.from_driver({"code": print} if ours else None)),
        }


def disagreeing(rank: int, _folder: Path) -> dict[str, Any]:
    with group_of() as group:
        other_rows = shards_of(2, 3)
        other_rows[1]["input_ids"] += rank
        metas = [META.subset([0]), META.subset([rank])]
        return {
            "method": outcome_of(lambda: group.run_everywhere("nothing" if rank == 0 else "sum_of_ranks")),
            "plain": outcome_of(lambda: group.run_everywhere("refuse", why=f"{rank}")),
            "batch": outcome_of(lambda: group.run_on_shards("seen", {"data": other_rows})),
            "meta": outcome_of(lambda: group.run_on_shards("sample_ids", {"meta": metas})),
            "afterwards": outcome_of(lambda: group.run_everywhere("sum_of_ranks")),
        }


def refused(_rank: int, _folder: Path) -> dict[str, Any]:
    with group_of() as group:
        return {
            "alike": outcome_of(lambda: group.run_everywhere("refuse", why="fly")),
            "afterwards": outcome_of(lambda: group.run_everywhere("sum_of_ranks")),
        }


def failed_at_its_end(_rank: int, _folder: Path) -> dict[str, Any]:
    with group_of() as group:
        return {
            "failed": outcome_of(lambda: group.run_everywhere("fail_alone", rank=1, others_wait=False)),
            "afterwards": outcome_of(lambda: group.run_everywhere("nothing")),
        }


def failed_in_the_midst(_rank: int, _folder: Path) -> dict[str, Any]:
    """The failed rank ends as its process would, and so frees the other."""
    began = time.monotonic()
    with group_of(grace_s=1) as group:
        failed = outcome_of(lambda: group.run_everywhere("fail_alone", rank=1, others_wait=True))
    return {"failed": failed, "seconds": time.monotonic() - began}


def left_by_the_driver(rank: int, _folder: Path) -> dict[str, Any]:
    with group_of() as group:
        if rank == 0:
            return {}
        return {
            "waited": outcome_of(lambda: group.from_driver(None)),
            "afterwards": outcome_of(lambda: group.run_everywhere("nothing")),
        }


def outlive(rank: int, folder: Path, port: int) -> None:
    """Rank 1 is killed in the midst of a call; rank 0 writes down what it is told."""
    os.environ.update(environment(rank, 2, port))
    with group_of(grace_s=1) as group:
        (folder / "told").write_text(outcome_of(lambda: group.run_everywhere("be_killed", rank=1)))


WHOLE = [dealt, replicated, everywhere, agreed, disagreeing, refused]
CASES: dict[str, Case] = {
    case.__name__: case for case in [*WHOLE, failed_at_its_end, failed_in_the_midst, left_by_the_driver]
}
