"""Whether calls wait for checkpoints and snapshots: `python benchmarks/checkpoint_pauses.py [DIR [ROWS]]`.

A server with --data-dir DIR (by default in memory) holds ROWS rows (500,000) of 10 fields. One client puts, claims and
commits single rows all the time; another process takes snapshots, and the server writes checkpoints as usual. Each call
counts for what was under way when it began. Milliseconds, and the ratio of the 99th percentile to that of quiet times.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import torch

from dataplane_client import DataPlaneClient, connect
from servers import server_process

Span = tuple[float, ...]
FIELDS = [f"f{number}" for number in range(10)]
AT_ONCE, SECONDS = 20_000, 60.0
SNAPSHOTS = """
import sys, time
from dataplane_client import connect
with connect(sys.argv[1], timeout_s=120) as client:
    for number in range(int(sys.argv[2])):
        time.sleep(3)
        began = time.time()
        client.create_snapshot(f"s{number}")
        print(began, time.time(), flush=True)
"""


def main() -> None:
    volume = sys.argv[1] if len(sys.argv) > 1 else "/dev/shm"  # noqa: S108
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 500_000
    with tempfile.TemporaryDirectory(dir=volume) as data, (Path(data) / "log").open("w") as log:
        with server_process("1GiB", "--data-dir", f"{data}/d", log=log) as server, connect(server.unix) as client:
            fill(client, rows)
            taking = subprocess.Popen(
                [sys.executable, "-c", SNAPSHOTS, server.unix, "8"], stdout=subprocess.PIPE, text=True
            )
            found = list(calls(client, time.time() + SECONDS))
            taking.terminate()
            lines = taking.communicate()[0].splitlines()
        snapshots: list[Span] = [tuple(map(float, line.split())) for line in lines]
        checkpoints = list(written((Path(data) / "log").read_text()))
    print(f"{rows:,} rows, {len(checkpoints)} checkpoints, {len(snapshots)} snapshots, directory on {volume}")
    print(f"{'':24}{'calls':>8}{'median':>9}{'p99':>9}{'ratio':>7}")
    for verb in ("put", "claim and commit"):
        show(verb, [(at, took) for name, at, took in found if name == verb], checkpoints, snapshots)


def fill(client: DataPlaneClient, rows: int) -> None:
    client.register_partition("rows", FIELDS, 0, [])
    client.register_partition("flow", ["x"], 0, ["t"], clear_when_consumed=True)
    for first in range(0, rows, AT_ONCE):
        ids = [f"row-{number}" for number in range(first, first + AT_ONCE)]
        client.put_samples(ids, "rows", {field: torch.ones(AT_ONCE, 2) for field in FIELDS})


def calls(client: DataPlaneClient, end: float) -> Iterator[tuple[str, float, float]]:
    """Verb, when it began, and how long it took, in seconds."""
    number, column = 0, {"x": torch.ones(1, 100)}
    while (began := time.time()) < end:
        client.put_samples([f"s{number}"], "flow", column)
        put = time.time()
        client.claim("flow", "t", ["x"], 1).commit()
        yield "put", began, put - began
        yield "claim and commit", put, time.time() - put
        number += 1


def written(log: str) -> Iterator[Span]:
    """Begin and end of each checkpoint."""
    for line in log.splitlines():
        event = json.loads(line)
        if event["event"] == "checkpoint_written":
            end = datetime.fromisoformat(event["at"].replace("Z", "+00:00")).timestamp()
            yield end - event["seconds"], end


def show(verb: str, found: list[tuple[float, float]], checkpoints: list[Span], snapshots: list[Span]) -> None:
    quiet = [took for at, took in found if not within(at, checkpoints) and not within(at, snapshots)]
    base = np.percentile(quiet, 99)
    for what, chosen in (
        ("quiet", quiet),
        ("during checkpoints", [took for at, took in found if within(at, checkpoints)]),
        ("during snapshots", [took for at, took in found if within(at, snapshots)]),
    ):
        if chosen:
            median, p99 = np.percentile(chosen, [50, 99])
            name = f"{verb}: {what}" if what == "quiet" else f"  {what}"
            print(f"{name:<24}{len(chosen):8,}{median * 1e3:9.3f}{p99 * 1e3:9.3f}{p99 / base:7.2f}")


def within(at: float, spans: list[Span]) -> bool:
    place = bisect_right(spans, (at,)) - 1
    return place >= 0 and spans[place][0] <= at <= spans[place][1]


if __name__ == "__main__":
    main()
