"""How long a put, a get and a listing take with TransferQueue's default storage, and with our module in its place.

    .venv-transfer-queue/bin/python benchmarks/transfer_queue_module.py

`make test-frameworks` makes that environment. Both serve this process from other processes of the host. A batch is 256
rows of 8 columns, 30 MB together. Times are medians over rounds in which the two take turns; half a minute in all.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict

import dataplane_transfer_queue as ours

ROWS, ROUNDS, WARM_UP = 256, 20, 3


def batch() -> TensorDict:
    torch.manual_seed(0)
    lengths = torch.randint(500, 4600, (ROWS,)).tolist()

    def jagged(dtype: torch.dtype, *entry: int) -> torch.Tensor:
        rows = [torch.ones(length, *entry, dtype=dtype) for length in lengths]
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    columns = {
        "input_ids": jagged(torch.int64),
        "position_ids": jagged(torch.int64),
        "loss_mask": jagged(torch.bool),
        "log_probs": jagged(torch.float32),
        "routed_experts": jagged(torch.int16, 4, 2),
        "prompts": torch.ones(ROWS, 4096),
        "rewards": torch.ones(ROWS),
        "sources": NonTensorStack(*(f"source {row}" for row in range(ROWS))),
    }
    return TensorDict(columns, batch_size=[ROWS])


def size_bytes(fields: TensorDict) -> int:
    tensors = [column for column in fields.values() if isinstance(column, torch.Tensor)]
    return sum((column.values() if column.is_nested else column).nbytes for column in tensors)


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def round_of(tq: Any, number: int, fields: TensorDict) -> dict[str, float]:
    keys = [f"{number}_{row}_0" for row in range(ROWS)]
    tags = [{"status": "finished", "min_global_steps": number} for _ in keys]
    times = {
        "put": seconds(lambda: tq.kv_batch_put(keys, "train", fields, tags)),
        "get all": seconds(lambda: tq.kv_batch_get(keys, "train")),
        "get one column": seconds(lambda: tq.kv_batch_get(keys, "train", "log_probs")),
        "list": seconds(tq.kv_list),
        "put a tag": seconds(lambda: tq.kv_put(keys[0], "train", tag={"status": "running"})),
    }
    tq.kv_clear(keys, "train")
    return times


def main() -> None:
    ray, theirs = importlib.import_module("ray"), importlib.import_module("transfer_queue")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    theirs.init()
    ours.init()
    fields = batch()
    rounds: dict[str, list[dict[str, float]]] = {"TransferQueue": [], "ours": []}
    for number in range(WARM_UP + ROUNDS):
        rounds["TransferQueue"].append(round_of(theirs, number, fields))
        rounds["ours"].append(round_of(ours, number, fields))
    print(f"{ROWS} rows of {len(list(fields.keys()))} columns, {size_bytes(fields) / 1e6:.1f} MB, {ROUNDS} rounds")
    for verb in rounds["ours"][0]:
        took = {name: statistics.median(times[verb] for times in found[WARM_UP:]) for name, found in rounds.items()}
        times = (took["TransferQueue"] * 1e3, took["ours"] * 1e3, took["TransferQueue"] / took["ours"])
        print("{:15} {:8.2f} ms {:8.2f} ms {:6.2f} times as fast".format(verb, *times))
    ours.close()
    theirs.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
