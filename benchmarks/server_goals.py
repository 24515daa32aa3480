"""Measure the cost of a server process beside the values: its start, and its memory when idle, for a row, for a stream.

- Idle: resident bytes a second after the start.
- A row: growth of the process, without shared memory (which stores the values), while 200,000 rows with 10 float32 each
  were put over gRPC, 2,000 a call. Measured from the first 20,000 rows (which warm up the calls) to the last, divided
  by the number of rows in between.
- A stream: peak growth of a process while batch D passed through, minus the bytes of D if the process stored them. A
  batch of one row has warmed it up.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import memory
from batches import D, Spec
from data_plane import connect_over_grpc
from dataplane_client.options import ClientOptions
from dataplane_server.service.messages.frames import SENT_CHUNK_BYTES
from servers import ServerProcess, server_process
from session import Goal, Session, in_ms
from timing import Series
from workers import Worker, worker

_STARTS = 9
_START_S = 1.0
_IDLE_BYTES = 80e6
_ROWS = 1_000_000
_WARM_ROWS = 100_000
_PUT_ROWS = 2_000
_FIELDS = tuple(f"field_{number}" for number in range(10))
_ROW_BYTES = 300
_CHUNKS = 2


def measure(session: Session) -> None:
    """Measure the goals on the server process."""
    with session.phase("starts of a server"):
        _start_goals(session)
    with session.phase(f"memory of {_ROWS:,} rows"):
        _row_goal(session)
    with session.phase("memory of a stream"):
        _stream_goals(session)


def _start_goals(session: Session) -> None:
    starts, sizes = [], []
    for _ in range(session.rounds(_STARTS)):
        with server_process() as server:
            starts.append(server.started_s)
            time.sleep(1.0)
            sizes.append(memory.resident(server.pid) / 1e6)
    started, idle = Series(tuple(starts)), Series(tuple(sizes))
    session.keep("server", {"server": {"started_s": started, "idle_mb": idle}})
    session.goals.append(
        Goal("server: start to SERVING under 1 s", f"{in_ms(started)} ms", started.median < _START_S, started.median)
    )
    text = f"{idle.median:.0f} MB ({idle.low:.0f}..{idle.high:.0f})"
    session.goals.append(Goal("server: idle under 80 MB", text, idle.high < _IDLE_BYTES / 1e6, idle.median))


def _row_goal(session: Session) -> None:
    with server_process() as server, connect_over_grpc(server.unix) as client:
        client.register_partition("train", _FIELDS, 0, ["task"])
        values = {name: torch.rand(_PUT_ROWS, 1) for name in _FIELDS}
        before = 0
        for start in range(0, _ROWS, _PUT_ROWS):
            if start == _WARM_ROWS:
                before = memory.resident_alone(server.pid)
            ids = [f"p{start + row:06d}_g0" for row in range(_PUT_ROWS)]
            client.put_samples(ids, "train", values)
        grown = memory.resident_alone(server.pid) - before
    row = grown / (_ROWS - _WARM_ROWS)
    session.figures["server.row_bytes"] = row
    title = f"a row with {len(_FIELDS)} fields: at most {_ROW_BYTES} bytes beside its values"
    session.goals.append(Goal(title, f"{row:.0f} bytes", row <= _ROW_BYTES, row))


def _stream_goals(session: Session) -> None:
    for transport in ("direct", "grpc"):
        with server_process() as server, worker(Path(sys.executable), "client_process", session.logs) as client:
            client.call("connect", address=server.tcp, transport=transport)
            _through(server, client, Spec("warm-up", "dense", 1))
            found = _through(server, client, D)
        session.figures[f"stream_beyond_bytes.{transport}"] = found
        for who, chunk in (("put", ClientOptions().chunk_bytes), ("read", SENT_CHUNK_BYTES)):
            for side in ("server", "client"):
                beyond, most = found[f"{side} {who}"], _CHUNKS * chunk
                title = f"{transport} {who}, {side}: at most {_CHUNKS} chunks ({most / 1e6:.1f} MB) beyond the data"
                session.goals.append(Goal(title, f"{beyond / 1e6:.1f} MB", beyond <= most, beyond))


def _through(server: ServerProcess, client: Worker, spec: Spec) -> dict[str, int]:
    """Put a batch and read it back. Returns the peak growth of each side beyond the data."""
    size = int(client.call("stream", spec=spec.json())["bytes"])
    found = {}
    for step in ("put", "read"):
        memory.forget_peak(server.pid)
        before = memory.resident(server.pid)
        client_beyond = int(client.call(f"stream_{step}")["beyond"])
        server_beyond = memory.peak(server.pid) - before
        found[f"server {step}"] = server_beyond - (size if step == "put" else 0)
        found[f"client {step}"] = client_beyond - (size if step == "read" else 0)
    return found
