"""Clients that put, read, hold and clear rows until they are killed: `python doomed_clients.py ADDRESS KILLS SEED`.

One process imports everything and forks the clients, which so come to work within milliseconds. Half of them are killed
by their parent at a random moment, half kill themselves at a chosen point of a call. A client that finds bytes in a row
which are not that row's exits with 3 instead. Prints how many were killed where.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nested import nested_tensor_from_jagged

from dataplane_client._common.arrays import ByteArray, Int64Array
from dataplane_client._memory.arena_writes import fill_runs
from dataplane_client._memory.placement import ReadBuffers
from dataplane_client._values.columns_layout import Layout, WireColumn
from dataplane_client._verbs._sync import carriers
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import NotFoundError
from dataplane_client.records.meta import KVBatchMeta

IDS = [f"r{number}" for number in range(48)]
FIELDS = ["tokens", "score"]
AT_A_TIME = 4
WRONG_BYTES = 3
LONGEST_LIFE_S = 0.06


def lengths_of(sample_ids: Sequence[str]) -> torch.Tensor:
    return torch.tensor([1000 + 211 * int(sample_id[1:]) for sample_id in sample_ids])


def values_of(sample_ids: Sequence[str]) -> dict[str, torch.Tensor]:
    """What the rows hold, always: row r7 has 7 in every byte of its tokens, and a length of its own."""
    numbers = [int(sample_id[1:]) for sample_id in sample_ids]
    lengths = lengths_of(sample_ids)
    tokens = torch.repeat_interleave(torch.tensor(numbers, dtype=torch.uint8), lengths * 8).view(torch.int64)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    jagged = nested_tensor_from_jagged(tokens, offsets, min_seqlen=1000, max_seqlen=1000 + 211 * len(IDS))
    return {"tokens": jagged, "score": torch.tensor(numbers, dtype=torch.float64).repeat(512, 1).T.contiguous()}


def are_right(sample_ids: Sequence[str], read: BatchedDataDict[Any]) -> bool:
    """Whether what was read, padded or jagged, is what the rows hold."""
    expected = values_of(sample_ids)
    tokens = read["tokens"]
    if not tokens.is_nested:
        lengths = lengths_of(sample_ids)
        inside = torch.arange(tokens.shape[1]) < lengths[:, None]
        return torch.equal(tokens[inside], expected["tokens"].values()) and torch.equal(
            read["score"], expected["score"]
        )
    return torch.equal(tokens.values(), expected["tokens"].values()) and torch.equal(read["score"], expected["score"])


def work(client: DataPlaneClient, chance: random.Random) -> None:
    """Put, read, hold or clear a few rows. Exits the process when a row holds bytes that are not its own."""
    sample_ids = chance.sample(IDS, chance.randint(1, 12))
    deed = chance.random()
    if deed < 0.4:
        client.put_samples(sample_ids, "p", values_of(sample_ids))
    elif deed < 0.5:
        client.clear_samples(sample_ids, "p")
    else:
        layout: Layout = "padded" if deed < 0.75 else "jagged"
        with contextlib.suppress(NotFoundError):
            held = client.read_columns(KVBatchMeta("p", None, sample_ids), FIELDS, layout=layout)
            time.sleep(chance.random() * 0.005)
            if not are_right(sample_ids, held):
                os._exit(WRONG_BYTES)


def kill_me_in(point: str) -> None:
    """Let this process kill itself when it comes to a point of a put or a read."""
    copy_runs = ReadBuffers.copy_runs

    def fill(arena: ByteArray, offsets: Int64Array, sizes: Int64Array, columns: Sequence[WireColumn]) -> None:
        if point == "filling":
            end = int(offsets[0] + sizes[0] // 2)
            arena[int(offsets[0]) : end] = 0xEE
        elif point == "filled":
            fill_runs(arena, offsets, sizes, columns)
        os.kill(os.getpid(), signal.SIGKILL)

    def copy(buffers: ReadBuffers, source: ByteArray, offsets: Int64Array, run_sizes: Int64Array) -> None:
        if point == "copied":
            copy_runs(buffers, source, offsets, run_sizes)
        os.kill(os.getpid(), signal.SIGKILL)

    if point in ("reserved", "filling", "filled"):
        carriers.fill_runs = fill  # type: ignore[attr-defined]  # the point of this function
    else:
        ReadBuffers.copy_runs = copy  # type: ignore[assignment, method-assign]


POINTS = ["reserved", "filling", "filled", "leased", "copied"]


def live(address: str, seed: int, point: str | None, for_s: float) -> None:
    """A client's life in a process of its own; ends by a signal, or with the exit status 0 after for_s."""
    torch.set_num_threads(1)
    chance = random.Random(seed)
    until = time.monotonic() + for_s
    with connect(address, transport="shm", timeout_s=30.0) as client:
        if point is not None:
            kill_me_in(point)
        while time.monotonic() < until:
            work(client, chance)


def forked(life: Callable[[], None]) -> int:
    """Begin a life in a new process."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        life()
        status = 0
    finally:
        os._exit(status)  # nothing of the parent's may run


def main(address: str, kills: int, seed: int) -> dict[str, int]:
    """Kill so many clients. The exit statuses and points of all."""
    chance = random.Random(seed)
    survivor = forked(lambda: live(address, seed, None, 3600.0))
    ends: Counter[str] = Counter()
    for round_ in range(0, kills, AT_A_TIME):
        points = [
            chance.choice(POINTS) if chance.random() < 0.5 else None for _ in range(min(AT_A_TIME, kills - round_))
        ]
        seeds = [chance.randrange(1 << 30) for _ in points]
        begun = [
            forked(lambda seed=seed, point=point: live(address, seed, point, 30.0))  # type: ignore[misc]
            for seed, point in zip(seeds, points, strict=True)
        ]
        for process, point in zip(begun, points, strict=True):
            if point is None:
                time.sleep(chance.random() * LONGEST_LIFE_S)
                os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            ends[f"{os.waitstatus_to_exitcode(status)} {point or 'any moment'}"] += 1
    os.kill(survivor, signal.SIGTERM)
    _, status = os.waitpid(survivor, 0)
    ends[f"{os.waitstatus_to_exitcode(status)} survivor"] += 1
    return dict(ends)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
