"""What it costs that rows survive the process or the machine: `python benchmarks/durability_cost.py [DIR]`.

Servers of each durability run in turn, one at a time: of two that run at once, the later one is slower. DIR is the
volume of the data directory, by default one in memory; give one on disk to see what `disk` costs there, beside what the
file system takes to write and sync as many bytes. Milliseconds, medians of all rounds, and ratios to `memory`.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch

from dataplane_client import DataPlaneClient, connect
from servers import server_process

KINDS = ("memory", "process", "disk")
TURNS, SMALL, LARGE = 2, 300, 20
FIELDS = {"input_ids": torch.int64, "logprobs": torch.float32, "mask": torch.float32, "advantages": torch.float32}


def main() -> None:
    volume = sys.argv[1] if len(sys.argv) > 1 else "/dev/shm"  # noqa: S108
    found: dict[str, dict[str, list[float]]] = {}
    for _, kind in itertools.product(range(TURNS), KINDS):
        with tempfile.TemporaryDirectory(dir=volume) as data:
            flags = () if kind == "memory" else ("--data-dir", f"{data}/d", "--durability", kind)
            with server_process("1GiB", *flags) as server:
                for name, times in measured(server.unix):
                    found.setdefault(name, {}).setdefault(kind, []).extend(times)
    print(f"data directory on {volume}\n{'':30}{'memory':>9}{'process':>9}{'ratio':>7}{'disk':>9}{'ratio':>7}")
    for name, times_of in found.items():
        base, process, disk = (median(times_of[kind]) for kind in KINDS)
        row = f"{base * 1e3:9.3f}{process * 1e3:9.3f}{process / base:7.2f}{disk * 1e3:9.3f}{disk / base:7.2f}"
        print(f"{name:<30}{row}")
    for size, what in ((4096, "4 KiB"), (large_bytes(), "the bytes of 256 rows")):
        print(f"fdatasync after a write of {what}: {median(synced(Path(volume), size)) * 1e3:.3f} ms")


def synced(volume: Path, size: int) -> Iterator[float]:
    """How long the file system takes to write bytes in place and put them on stable storage."""
    with tempfile.NamedTemporaryFile(dir=volume, buffering=0) as file:
        file.write(bytes(size))
        os.fsync(file.fileno())
        for fill in range(30):
            data = bytes([fill]) * size
            yield timed(lambda data=data: (os.pwrite(file.fileno(), data, 0), os.fdatasync(file.fileno())))  # type: ignore[func-returns-value,misc]


def large_bytes() -> int:
    return sum(column.values().nbytes for column in columns(lengths()).values())


def measured(address: str) -> Iterator[tuple[str, list[float]]]:
    """Each call by name, with its seconds."""
    for transport in ("shm", "grpc"):
        with connect(address, transport=transport) as client:
            for name, times in calls_of(client):
                yield f"{transport:<5}{name}", times


def calls_of(client: DataPlaneClient) -> Iterator[tuple[str, list[float]]]:
    small, large, numbers = columns([1000]), columns(lengths()), itertools.count()
    ids = [f"b{row}" for row in range(len(lengths()))]
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


def lengths() -> list[int]:
    """Tokens of 256 rows."""
    return torch.randint(512, 4096, (256,), generator=torch.Generator().manual_seed(0)).tolist()


def columns(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Jagged columns of ones."""
    return {
        name: torch.nested.nested_tensor([torch.ones(n, dtype=kind) for n in lengths], layout=torch.jagged)
        for name, kind in FIELDS.items()
    }


if __name__ == "__main__":
    main()
