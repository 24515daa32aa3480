"""Whether calls wait for checkpoints and snapshots.

A server with a data directory holds 500,000 rows of 10 fields. One client puts, claims and
commits single rows all the time; another process takes snapshots, and the server writes checkpoints as usual. Each call
counts for what was under way when it began.
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

import torch

from dataplane_client import DataPlaneClient, connect
from report import Session, compare
from servers import server_process
from timing import Series, Steps

Span = tuple[float, ...]
FIELDS = [f"f{number}" for number in range(10)]
AT_ONCE = 20_000
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


def measure(session: Session) -> None:
    rows, seconds = session.pick((500_000, 60.0), (40_000, 15.0))
    with tempfile.TemporaryDirectory(dir=session.volume) as data, (Path(data) / "log").open("w") as log:
        with server_process("1GiB", "--data-dir", f"{data}/d", log=log) as server, connect(server.unix) as client:
            fill(client, rows)
            taking = subprocess.Popen(
                [sys.executable, "-c", SNAPSHOTS, server.unix, "8"], stdout=subprocess.PIPE, text=True
            )
            found = list(calls(client, time.time() + seconds))
            taking.terminate()
            snapshots: list[Span] = [tuple(map(float, line.split())) for line in taking.communicate()[0].splitlines()]
        checkpoints = list(written((Path(data) / "log").read_text()))
    title = f"{rows:,} rows, {len(checkpoints)} checkpoints, {len(snapshots)} snapshots on {session.volume}"
    steps: dict[str, dict[str, list[float]]] = {}
    for verb, at, took in found:
        beside = [name for name, spans in (("checkpoints", checkpoints), ("snapshots", snapshots)) if within(at, spans)]
        for name in beside or ["quiet"]:
            steps.setdefault(name, {}).setdefault(verb, []).append(took)
    measured: dict[str, Steps] = {
        name: {verb: Series(tuple(times)) for verb, times in steps[name].items()}
        for name in ("quiet", "checkpoints", "snapshots")
        if len(steps.get(name, ())) == len(steps["quiet"])
    }
    compare(session.console, title, measured)


def fill(client: DataPlaneClient, rows: int) -> None:
    client.register_partition("rows", FIELDS, 0, [])
    client.register_partition("flow", ["x"], 0, ["t"], clear_when_consumed=True)
    for first in range(0, rows, AT_ONCE):
        ids = [f"row-{number}" for number in range(first, min(first + AT_ONCE, rows))]
        client.put_samples(ids, "rows", {field: torch.ones(len(ids), 2) for field in FIELDS})


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


def within(at: float, spans: list[Span]) -> bool:
    place = bisect_right(spans, (at,)) - 1
    return place >= 0 and spans[place][0] <= at <= spans[place][1]
