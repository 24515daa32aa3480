"""The cost of a server process beside the values: its start, and its memory when idle, for a row, for a stream.

- Idle: resident bytes a second after the start.
- A row: growth of the process, without shared memory (which stores the values), while a million rows with 10 float32
  each were put over gRPC, 2,000 a call. Measured from the first 100,000 rows (which warm up the calls) to the last.
- A stream: peak growth of a process while batch D passed through, minus the bytes of D if the process stored them. A
  batch of one row has warmed it up.
"""

from __future__ import annotations

import time

import torch

from batches import D, Spec
from dataplane_client import connect
from dataplane_client.options import ClientOptions
from dataplane_server.service.messages.frames import SENT_CHUNK_BYTES
from report import Session, in_ms
from servers import ServerProcess, forget_peak, memory, server_process
from timing import Series
from workers import OURS, Worker, worker

_STARTS, _START_S, _IDLE_BYTES = 9, 1.0, 80e6
_ROWS, _WARM_ROWS, _PUT_ROWS, _ROW_BYTES = 1_000_000, 100_000, 2_000, 300
_FIELDS = tuple(f"field_{number}" for number in range(10))
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
            sizes.append(memory("VmRSS", server.pid) / 1e6)
    started, idle = Series(tuple(starts)), Series(tuple(sizes))
    session.keep("server", {"server": {"started_s": started, "idle_mb": idle}})
    holds = started.median < _START_S
    session.goal("server: start to SERVING under 1 s", f"{in_ms(started)} ms", holds, started.median)
    text = f"{idle.median:.0f} MB ({idle.low:.0f}..{idle.high:.0f})"
    session.goal("server: idle under 80 MB", text, idle.high < _IDLE_BYTES / 1e6, idle.median)


def _row_goal(session: Session) -> None:
    with server_process() as server, connect(server.unix, transport="grpc") as client:
        client.register_partition("train", _FIELDS, 0, ["task"])
        values = {name: torch.rand(_PUT_ROWS, 1) for name in _FIELDS}
        before = 0
        for start in range(0, _ROWS, _PUT_ROWS):
            if start == _WARM_ROWS:
                before = _alone(server)
            client.put_samples([f"p{start + row:06d}_g0" for row in range(_PUT_ROWS)], "train", values)
        row = (_alone(server) - before) / (_ROWS - _WARM_ROWS)
    session.figures["server.row_bytes"] = row
    title = f"a row with {len(_FIELDS)} fields: at most {_ROW_BYTES} bytes beside its values"
    session.goal(title, f"{row:.0f} bytes", row <= _ROW_BYTES, row)


def _alone(server: ServerProcess) -> int:
    """Resident bytes without shared memory."""
    return memory("VmRSS", server.pid) - memory("RssShmem", server.pid)


def _stream_goals(session: Session) -> None:
    for transport in ("direct", "grpc"):
        with server_process() as server, worker(OURS, "data_plane") as client:
            _through(server, client, transport, Spec("warm-up", "dense", 1))
            found = _through(server, client, transport, D)
        session.figures[f"stream_beyond_bytes.{transport}"] = found
        for step, chunk in (("put", ClientOptions().chunk_bytes), ("read", SENT_CHUNK_BYTES)):
            for side in ("server", "client"):
                beyond, most = found[f"{side} {step}"], _CHUNKS * chunk
                title = f"{transport} {step}, {side}: at most {_CHUNKS} chunks ({most / 1e6:.1f} MB) beyond the data"
                session.goal(title, f"{beyond / 1e6:.1f} MB", beyond <= most, beyond)


def _through(server: ServerProcess, client: Worker, transport: str, spec: Spec) -> dict[str, int]:
    """Put a batch and read it back. Returns the peak growth of each side beyond the data."""
    which = {"partition": spec.name}
    size = int(client.call("prepare", **which, spec=spec, address=server.tcp, transport=transport, layout=None))
    found = {}
    for step in ("put", "read"):
        forget_peak(server.pid)
        before = memory("VmRSS", server.pid)
        client_beyond = int(client.call("peak", **which, step=step))
        server_beyond = memory("VmHWM", server.pid) - before
        found[f"server {step}"] = server_beyond - (size if step == "put" else 0)
        found[f"client {step}"] = client_beyond - (size if step == "read" else 0)
    return found
