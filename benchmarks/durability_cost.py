"""What it costs that rows survive the process or the machine.

Servers of each durability run in turn, one at a time: of two that run at once, the later one is slower. Data is
in memory unless --volume names a folder on disk, which shows what `disk` costs there, beside what the file system takes
to write and sync as many bytes.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from dataplane_client import DataPlaneClient, connect
from dataplane_client.options import TransportChoice
from report import Session, compare
from servers import server_process
from timing import Series, repeated

KINDS = ("memory", "process", "disk")
TRANSPORTS: tuple[TransportChoice, ...] = ("shm", "grpc")
FIELDS = {"input_ids": torch.int64, "logprobs": torch.float32, "mask": torch.float32, "advantages": torch.float32}
TOKENS = torch.randint(512, 4096, (256,), generator=torch.Generator().manual_seed(0)).tolist()


def measure(session: Session) -> None:
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    for _, kind in itertools.product(range(session.pick(2, 1)), KINDS):
        with tempfile.TemporaryDirectory(dir=session.volume) as data:
            flags = () if kind == "memory" else ("--data-dir", f"{data}/d", "--durability", kind)
            with server_process("1GiB", *flags) as server:
                for name, times in measured(server.unix, session.pick(300, 15)):
                    found[kind].setdefault(name, []).extend(times.values)
    steps = {kind: {name: Series(tuple(times)) for name, times in of.items()} for kind, of in found.items()}
    compare(session.console, f"data directory on {session.volume}", steps)
    large = sum(column.values().nbytes for column in columns(TOKENS).values())
    synced = {f"after {size} bytes": Series(tuple(sync(Path(session.volume), size))) for size in (4096, large)}
    compare(session.console, "fdatasync", {"": synced})


def sync(volume: Path, size: int) -> Iterator[float]:
    """How long the file system takes to write bytes in place and put them on stable storage."""
    with tempfile.NamedTemporaryFile(dir=volume, buffering=0) as file:
        file.write(bytes(size))
        os.fsync(file.fileno())
        fills = itertools.cycle([bytes(size), b"\1" * size])

        def write() -> None:
            os.pwrite(file.fileno(), next(fills), 0)
            os.fdatasync(file.fileno())

        yield from repeated(write, 30).values


def measured(address: str, calls: int) -> Iterator[tuple[str, Series]]:
    """Each call by name."""
    for transport in TRANSPORTS:
        with connect(address, transport=transport) as client:
            for name, times in calls_of(client, calls):
                yield f"{transport} {name}", times


def calls_of(client: DataPlaneClient, calls: int) -> Iterator[tuple[str, Series]]:
    small, large, numbers = columns([1000]), columns(TOKENS), itertools.count()
    ids = [f"b{row}" for row in range(len(TOKENS))]
    client.register_partition("p", list(FIELDS), 0, ["t"], replace=True)
    client.put_samples(["r"], "p", small)
    few = calls // 15 + 1
    verbs: dict[str, tuple[int, Callable[[], object]]] = {
        "put, one row": (calls, lambda: client.put_samples([f"s{next(numbers)}"], "p", small)),
        "read, one row": (calls, lambda: client.get_samples(["r"], "p", list(FIELDS))),
        "claim and commit, one row": (calls, lambda: client.claim("p", "t", list(FIELDS), 1).commit()),
        "put, 256 rows": (few, lambda: client.put_samples(ids, "p", large)),
        "read, 256 rows": (few, lambda: client.get_samples(ids, "p", list(FIELDS))),
    }
    for name, (times, verb) in verbs.items():
        yield name, repeated(verb, times)


def columns(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Jagged columns of ones."""
    return {
        name: torch.nested.nested_tensor([torch.ones(n, dtype=kind) for n in lengths], layout=torch.jagged)
        for name, kind in FIELDS.items()
    }
