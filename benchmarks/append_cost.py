"""Measure rows that grow while they are generated: `python benchmarks/append_cost.py`.

64 appends of 512 tokens to each of three per-token fields (int64, float32, float32), for 1 and for 16 rows a call,
against one put of the whole rows. Milliseconds, medians of several rounds. The server copies what a row has at each
append, half of the final row on average: the last appends cost more than the first ones.
"""

from __future__ import annotations

import time
from statistics import median

import torch

from dataplane_client import DataPlaneClient, connect
from servers import server_process

APPENDS, TOKENS, ROUNDS = 64, 512, 7
FIELDS = {"input_ids": torch.int64, "logprobs": torch.float32, "mask": torch.float32}


def main() -> None:
    with server_process("2GiB") as server:
        for transport in ("shm", "grpc"):
            with connect(server.unix, transport=transport) as client:
                client.register_partition("p", list(FIELDS), 0, ["train"], per_token_fields=list(FIELDS))
                for rows in (1, 16):
                    found = [measure(client, rows) for _ in range(ROUNDS)]
                    put, appends, first, last = (median(column) for column in zip(*found, strict=True))
                    print(
                        f"{transport:<4} {rows:>2} rows: put {put:6.2f}, {APPENDS} appends {appends:7.2f} "
                        f"(each {first:5.2f} in the beginning, {last:5.2f} in the end)"
                    )


def measure(client: DataPlaneClient, rows: int) -> tuple[float, float, float, float]:
    """Milliseconds of the put, of all appends, and of an append among the first and the last eight."""
    ids = [f"s{row}" for row in range(rows)]
    began = time.perf_counter()
    client.put_samples(ids, "p", columns(rows, APPENDS * TOKENS))
    put_s = time.perf_counter() - began
    client.clear_samples(None, "p")
    more, each_s = columns(rows, TOKENS), []
    for _ in range(APPENDS):
        began = time.perf_counter()
        client.append_tokens(ids, "p", more)
        each_s.append(time.perf_counter() - began)
    client.clear_samples(None, "p")
    return put_s * 1e3, sum(each_s) * 1e3, median(each_s[:8]) * 1e3, median(each_s[-8:]) * 1e3


def columns(rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """Jagged columns whose rows have equally many tokens."""
    return {
        name: torch.nested.nested_tensor(list(torch.ones(rows, tokens, dtype=dtype)), layout=torch.jagged)
        for name, dtype in FIELDS.items()
    }


if __name__ == "__main__":
    main()
