"""What a batch costs from padded tensors to padded tensors, beside the floor of copying its bytes.

    python benchmarks/round_trip.py [--runs N]

Batch G: 512 rows of 512 to 4096 tokens, `input_ids` int64, 4 float32 fields a token, 3 fields a row. Batch S: one row
of 1,000 tokens with 4 fields. A real server process, over a Unix socket and over TCP. The floor copies the jagged
bytes once and writes the padded bytes once, into warm buffers. Medians of the runs, with minimum and maximum.
"""

from __future__ import annotations

import argparse
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dataplane_client import BatchedDataDict, DataPlaneClient, connect, kv_first_write, read_columns

PER_TOKEN = ("generation_logprobs", "prev_logprobs", "advantages", "token_mask")
PER_ROW = ("input_lengths", "sample_mask", "reward")
FIELDS = ("input_ids", *PER_TOKEN, *PER_ROW)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    torch.manual_seed(0)
    torch.set_num_threads(2)
    table = Table(title=_machine(), box=None, title_justify="left")
    for heading in ("batch", "transport", "step", "median ms", "min..max ms", "x floor", "GB/s jagged"):
        table.add_column(heading, justify="left" if heading in ("batch", "transport", "step") else "right")
    with running_process() as addresses:
        for transport, address in addresses.items():
            with connect(address) as client:
                _measure(client, "G", transport, _batch(512, 512, 4096), runs, table)
                _measure(client, "S", transport, _batch(1, 1000, 1000), 20 * runs, table)
    Console().print(table)


def _measure(
    client: DataPlaneClient, name: str, transport: str, batch: BatchedDataDict[torch.Tensor], runs: int, table: Table
) -> None:
    partition = f"{name}-{transport}"
    client.register_partition(partition, FIELDS, 0, [], per_token_fields=("input_ids", *PER_TOKEN))
    ids = [f"s{row}" for row in range(batch.size)]
    put: list[float] = []
    read: list[float] = []
    for _ in range(runs):
        meta = kv_first_write(batch, sample_ids=ids, dp_client=client, partition_id=partition)
        put.append(_seconds(lambda: kv_first_write(batch, sample_ids=ids, dp_client=client, partition_id=partition)))
        read.append(_seconds(lambda meta=meta: read_columns(client, meta, FIELDS)))  # type: ignore[misc]
    jagged = client.partition(partition).size_bytes
    padded = sum(column.nbytes for column in batch.values())
    floor = _floor(jagged, padded, runs)
    both = [a + b for a, b in zip(put, read, strict=True)]
    steps = [("put", put), ("read", read), ("put + read", both), ("floor", floor)]
    for step, seconds in steps if name == "G" else steps[:2]:  # a single row is about calls, not about bytes
        median = statistics.median(seconds)
        table.add_row(
            name,
            transport,
            step,
            f"{median * 1e3:.2f}",
            f"{min(seconds) * 1e3:.2f}..{max(seconds) * 1e3:.2f}",
            f"{median / statistics.median(floor):.1f}" if name == "G" else "",
            f"{jagged / median / 1e9:.2f}" if name == "G" else "",
        )
    client.drop_partition(partition)


def _floor(jagged_bytes: int, padded_bytes: int, runs: int) -> list[float]:
    source, target = np.ones(padded_bytes, np.uint8), np.ones(padded_bytes, np.uint8)

    def copy() -> None:
        np.copyto(target[:jagged_bytes], source[:jagged_bytes])
        np.copyto(target, source)

    copy()
    return [_seconds(copy) for _ in range(runs)]


def _batch(rows: int, shortest: int, longest: int) -> BatchedDataDict[torch.Tensor]:
    lengths = torch.randint(shortest, longest + 1, (rows,))
    width = int(lengths.max())
    columns: dict[str, torch.Tensor] = {"input_ids": torch.randint(0, 32_000, (rows, width))}
    columns.update({name: torch.rand(rows, width) for name in PER_TOKEN})
    columns.update(input_lengths=lengths, sample_mask=torch.ones(rows), reward=torch.rand(rows))
    return BatchedDataDict(columns)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@contextmanager
def running_process() -> Iterator[dict[str, str]]:
    """A server process; its addresses by transport."""
    with tempfile.TemporaryDirectory() as folder:
        socket = f"unix://{Path(folder) / 'dataplane.sock'}"
        command = [
            sys.executable,
            "-m",
            "dataplane_server",
            "--listen",
            socket,
            "--listen",
            "127.0.0.1:0",
            "--http",
            "",
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            yield {"unix": socket, "tcp": _tcp_address(process)}
        finally:
            process.terminate()
            process.wait(30)


def _tcp_address(process: subprocess.Popen[str]) -> str:
    if process.stdout is None:
        raise RuntimeError("the server has no output")
    for line in process.stdout:
        found = re.search(r"gRPC on (127\S+)", line)
        if found:
            return found.group(1)
    raise RuntimeError("the server did not start")


def _machine() -> str:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, grpcio {grpc.__version__}"
    return f"{torch.get_num_threads()} threads, {platform.machine()}, {versions}"


if __name__ == "__main__":
    main()
