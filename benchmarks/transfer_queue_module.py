"""How long a put, a get and a listing take with TransferQueue's default storage, and with our module in its place.

    .venv-transfer-queue/bin/python benchmarks/transfer_queue_module.py

`make test-frameworks` makes that environment. Both serve this process from other processes of the host. A batch is 256
rows of 8 columns, 30 MB together. The two take turns; half a minute in all.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import ray
import torch
from tensordict import NonTensorStack, TensorDict

import dataplane_transfer_queue as ours
from peers import transfer_queue
from report import arguments, begin, compare
from timing import alternate, timed

ROWS = 256
_numbers = itertools.count()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    console = begin()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    transfer_queue.start()
    ours.init()
    fields = batch()
    systems = {"ours": partial(one_round, ours, fields), "TransferQueue": partial(one_round, transfer_queue.tq, fields)}
    compare(console, f"{ROWS} rows of {len(list(fields.keys()))} columns", alternate(systems, options.rounds, 3))
    ours.close()
    transfer_queue.stop()


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


def one_round(tq: Any, fields: TensorDict) -> Mapping[str, float]:
    number = next(_numbers)
    keys = [f"{number}_{row}_0" for row in range(ROWS)]
    tags = [{"status": "finished", "min_global_steps": number} for _ in keys]
    times = timed(
        put=lambda: tq.kv_batch_put(keys, "train", fields, tags),
        get=lambda: tq.kv_batch_get(keys, "train"),
        get_one_column=lambda: tq.kv_batch_get(keys, "train", "log_probs"),
        list=tq.kv_list,
        put_a_tag=lambda: tq.kv_put(keys[0], "train", tag={"status": "running"}),
    )
    tq.kv_clear(keys, "train")
    return times


if __name__ == "__main__":
    main()
