"""What it costs that rows survive the process: `python benchmarks/durability_cost.py [DIR]`.

Two servers, with and without --data-dir, get the same calls in turn. DIR: the volume of the data directory, by default
one in memory. Milliseconds, medians; the last column is their ratio.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch

from dataplane_client import DataPlaneClient, connect
from servers import server_process

ROUNDS, SMALL = 30, 40
FIELDS = {"input_ids": torch.int64, "logprobs": torch.float32, "mask": torch.float32, "advantages": torch.float32}


def main() -> None:
    volume = sys.argv[1] if len(sys.argv) > 1 else "/dev/shm"  # noqa: S108
    with (
        tempfile.TemporaryDirectory(dir=volume) as data,
        server_process("1GiB") as memory,
        server_process("1GiB", "--data-dir", f"{data}/d") as process,
    ):
        print(f"data directory on {volume}\n{'':30}{'memory':>8}{'process':>8}{'ratio':>8}")
        for transport in ("shm", "grpc"):
            with connect(memory.unix, transport=transport) as one, connect(process.unix, transport=transport) as two:
                for name, (without, with_it) in measured(one, two):
                    print(f"{transport:<5}{name:<25}{without:8.3f}{with_it:8.3f}{with_it / without:8.2f}")


def measured(*clients: DataPlaneClient) -> Iterator[tuple[str, list[float]]]:
    """Each call by name, with its milliseconds at each client's server."""
    numbers = itertools.count()
    lengths = torch.randint(512, 4096, (256,), generator=torch.Generator().manual_seed(0)).tolist()
    small, large = columns([1000]), columns(lengths)
    ids = [f"b{row}" for row in range(len(lengths))]
    for client in clients:
        client.register_partition("p", list(FIELDS), 0, ["t"], replace=True)
        client.put_samples(["r"], "p", small)
    verbs: dict[str, tuple[int, Callable[[DataPlaneClient], object]]] = {
        "put, one row": (SMALL, lambda client: client.put_samples([f"s{next(numbers)}"], "p", small)),
        "read, one row": (SMALL, lambda client: client.get_samples(["r"], "p", list(FIELDS))),
        "claim and commit, one row": (SMALL, lambda client: client.claim("p", "t", list(FIELDS), 1).commit()),
        "put, 256 rows": (1, lambda client: client.put_samples(ids, "p", large)),
        "read, 256 rows": (1, lambda client: client.get_samples(ids, "p", list(FIELDS))),
    }
    for name, (calls, verb) in verbs.items():
        found: list[list[float]] = [[] for _ in clients]
        for _ in range(ROUNDS):
            for client, times in zip(clients, found, strict=True):
                times += [timed(verb, client) for _ in range(calls)]
        yield name, [median(times) * 1e3 for times in found]


def timed(verb: Callable[[DataPlaneClient], object], client: DataPlaneClient) -> float:
    began = time.perf_counter()
    verb(client)
    return time.perf_counter() - began


def columns(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Jagged columns of ones."""
    return {
        name: torch.nested.nested_tensor([torch.ones(n, dtype=kind) for n in lengths], layout=torch.jagged)
        for name, kind in FIELDS.items()
    }


if __name__ == "__main__":
    main()
