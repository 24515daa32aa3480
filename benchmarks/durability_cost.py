"""What it costs that rows survive the process: `python benchmarks/durability_cost.py [DIR]`.

Servers with and without --data-dir run in turn, one at a time: of two that run at once, the later one is slower. DIR is
the volume of the data directory, by default one in memory. Milliseconds, medians of all rounds, and their ratio.
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

TURNS, SMALL, LARGE = 4, 600, 20
FIELDS = {"input_ids": torch.int64, "logprobs": torch.float32, "mask": torch.float32, "advantages": torch.float32}


def main() -> None:
    volume = sys.argv[1] if len(sys.argv) > 1 else "/dev/shm"  # noqa: S108
    found: dict[str, list[list[float]]] = {}
    for _ in range(TURNS):
        for kind in (0, 1):
            with tempfile.TemporaryDirectory(dir=volume) as data:
                flags = ("--data-dir", f"{data}/d") if kind else ()
                with server_process("1GiB", *flags) as server:
                    for name, times in measured(server.unix):
                        found.setdefault(name, [[], []])[kind] += times
    print(f"data directory on {volume}\n{'':30}{'memory':>8}{'process':>8}{'ratio':>8}")
    for name, (without, with_it) in found.items():
        ratio = median(with_it) / median(without)
        print(f"{name:<30}{median(without) * 1e3:8.3f}{median(with_it) * 1e3:8.3f}{ratio:8.2f}")


def measured(address: str) -> Iterator[tuple[str, list[float]]]:
    """Each call by name, with its seconds."""
    for transport in ("shm", "grpc"):
        with connect(address, transport=transport) as client:
            for name, times in calls_of(client):
                yield f"{transport:<5}{name}", times


def calls_of(client: DataPlaneClient) -> Iterator[tuple[str, list[float]]]:
    lengths = torch.randint(512, 4096, (256,), generator=torch.Generator().manual_seed(0)).tolist()
    small, large, numbers = columns([1000]), columns(lengths), itertools.count()
    ids = [f"b{row}" for row in range(len(lengths))]
    client.register_partition("p", list(FIELDS), 0, ["t"], replace=True)
    client.put_samples(["r"], "p", small)
    verbs: dict[str, tuple[int, Callable[[], object]]] = {
        "put, one row": (SMALL, lambda: client.put_samples([f"s{next(numbers)}"], "p", small)),
        "read, one row": (SMALL, lambda: client.get_samples(["r"], "p", list(FIELDS))),
        "claim and commit, one row": (SMALL, lambda: client.claim("p", "t", list(FIELDS), 1).commit()),
        "put, 256 rows": (LARGE, lambda: client.put_samples(ids, "p", large)),
        "read, 256 rows": (LARGE, lambda: client.get_samples(ids, "p", list(FIELDS))),
    }
    for name, (calls, verb) in verbs.items():
        yield name, [timed(verb) for _ in range(calls)]


def timed(verb: Callable[[], object]) -> float:
    began = time.perf_counter()
    verb()
    return time.perf_counter() - began


def columns(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Jagged columns of ones."""
    return {
        name: torch.nested.nested_tensor([torch.ones(n, dtype=kind) for n in lengths], layout=torch.jagged)
        for name, kind in FIELDS.items()
    }


if __name__ == "__main__":
    main()
