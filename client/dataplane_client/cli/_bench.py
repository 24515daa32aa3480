"""`dataplane bench`: how fast a running server serves clients of this process.

All rows are in a partition for this run, which is removed in the end. Each client is a thread with a connection. Beside
the moves of values is their share of the speed at which as many threads copy the same values in memory meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch

from dataplane_client._connect.options import TransportChoice
from dataplane_client.cli._output import Format, fail, show
from dataplane_client.cli._table import Table
from dataplane_client.cli._text import plural, rate_text, size_text
from dataplane_client.cli._values import client_or_exit
from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import NotFoundError
from dataplane_client.records.descriptions import ServerStatus
from dataplane_client.records.meta import KVBatchMeta

_FIELDS = {"input_ids": torch.int64, "logprobs": torch.float32}
_WRITTEN_BACK = "advantages"
_TASK = "bench"
_PUT_BYTES, _WRITTEN_BACK_BYTES = 12, 4  # of a token
_MOST_OF_FREE = 0.5
_LOOK_S = 0.1


@dataclass(frozen=True)
class Load:
    """rows: of each batch. tokens: of each row. seconds: how long each kind of call is measured."""

    rows: int
    tokens: int
    clients: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """Calls of one kind by all clients together. gb_per_s, of_memory_copy: None if no values move."""

    what: str
    calls_per_s: float
    gb_per_s: float | None
    of_memory_copy: float | None
    p50_ms: float
    p99_ms: float


def bench(load: Load, transport: TransportChoice, address: str, output: Format, timeout_s: float) -> None:
    """Measure and print. Ctrl-C and errors remove the partition, too."""
    gc.enable()  # commands start without it, and this one runs on
    partition_id = f"bench-{uuid.uuid4().hex[:12]}"
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(client_or_exit(address, timeout_s, transport)) for _ in range(load.clients)]
        _check_room(opened[0].server_status(), load)
        stack.callback(_drop, opened[0], partition_id)
        opened[0].register_partition(partition_id, [*_FIELDS, _WRITTEN_BACK], 0, [_TASK])
        used = opened[0].transport
        measured = _measure([_Client(client, partition_id, load) for client in opened], load)
    document = {"address": address, "transport": used, **asdict(load), "measured": measured}
    batch = f"batches of {plural(load.rows, 'row')} of {plural(load.tokens, 'token')}"
    heading = f"{address}: {plural(load.clients, 'client')}, {batch}, values through {used}"
    show(output, document, heading, "", _table(measured))


def _check_room(status: ServerStatus, load: Load) -> None:
    """End the command unless the batches of all clients fit into half of what is free."""
    rows = load.rows * load.clients
    needed = rows * load.tokens * (_PUT_BYTES + _WRITTEN_BACK_BYTES)
    free, free_rows = status.memory_budget_bytes - status.memory_used_bytes, status.max_rows - status.rows
    if needed > free * _MOST_OF_FREE or rows > free_rows * _MOST_OF_FREE:
        fail(
            f"the bench needs {size_text(needed)} for {plural(rows, 'row')}, and takes at most half of what the server "
            f"has free ({size_text(max(free, 0))}, {plural(max(free_rows, 0), 'row')}): choose fewer --rows, --tokens "
            "or --clients"
        )


def _drop(client: DataPlaneClient, partition_id: str) -> None:
    with contextlib.suppress(NotFoundError):
        client.drop_partition(partition_id)


class _Client:
    """Calls of one client. Each method returns the seconds that the measured call took."""

    def __init__(self, client: DataPlaneClient, partition_id: str, load: Load) -> None:
        self._client, self._partition_id, self._rows = client, partition_id, load.rows
        self._numbers = itertools.count()
        shape = (load.rows, load.tokens)
        self._batch = {name: torch.ones(shape, dtype=dtype) for name, dtype in _FIELDS.items()}
        self._copies = {name: column.numpy().copy() for name, column in self._batch.items()}
        self._column = {_WRITTEN_BACK: torch.ones(shape)}
        self._meta: KVBatchMeta | None = None

    def copy(self) -> float:
        began = time.perf_counter()
        for name, column in self._batch.items():
            np.copyto(self._copies[name], column.numpy())
        return time.perf_counter() - began

    def put(self) -> float:
        ids, began = self._new_ids(), time.perf_counter()
        self._client.put_samples(ids, self._partition_id, self._batch)
        took = time.perf_counter() - began
        self._client.clear_samples(ids, self._partition_id)
        return took

    def claim_and_commit(self) -> float:
        """Rows that some client of the bench has put; so each that has put a batch finds one."""
        self._client.put_samples(self._new_ids(), self._partition_id, self._batch)
        began = time.perf_counter()
        claim = self._client.claim(self._partition_id, _TASK, list(_FIELDS), self._rows)
        claim.commit(self._column)
        took = time.perf_counter() - began
        self._client.clear_samples(claim.meta.sample_ids, self._partition_id)
        return took

    def read(self) -> float:
        if self._meta is None:
            self._meta = self._client.put_samples(self._new_ids(), self._partition_id, self._batch)
        began = time.perf_counter()
        self._client.read_columns(self._meta, list(_FIELDS))
        return time.perf_counter() - began

    def ask(self) -> float:
        began = time.perf_counter()
        self._client.check_consumption_status(self._partition_id, [_TASK])
        return time.perf_counter() - began

    def _new_ids(self) -> list[str]:
        call = f"{id(self)}-{next(self._numbers)}"
        return [f"{call}-{row}" for row in range(self._rows)]


def _measure(clients: Sequence[_Client], load: Load) -> list[Measured]:
    tokens = load.rows * load.tokens
    kinds: list[tuple[str, Callable[[_Client], float], int]] = [
        ("memory copy", _Client.copy, _PUT_BYTES * tokens),
        ("put", _Client.put, _PUT_BYTES * tokens),
        ("claim + commit", _Client.claim_and_commit, _WRITTEN_BACK_BYTES * tokens),
        ("read", _Client.read, _PUT_BYTES * tokens),
        ("small call", _Client.ask, 0),
    ]
    measured: list[Measured] = []
    with _progress(load.seconds * len(kinds)) as show:
        for number, (what, call, size_bytes) in enumerate(kinds):
            seconds = _run(clients, call, load.seconds, partial(show, what, number * load.seconds))
            calls_per_s = sum(len(each) / sum(each) for each in seconds)
            gb_per_s = calls_per_s * size_bytes / 1e9 if size_bytes else None
            share = gb_per_s / (measured[0].gb_per_s or gb_per_s) if gb_per_s and measured else None
            p50_s, p99_s = np.percentile(np.concatenate(seconds), (50, 99))
            measured.append(Measured(what, calls_per_s, gb_per_s, share, float(p50_s) * 1e3, float(p99_s) * 1e3))
    return measured


def _run(
    clients: Sequence[_Client], call: Callable[[_Client], float], seconds: float, show: Callable[[float], None]
) -> list[list[float]]:
    """The seconds of the calls of each client, all at the same time, after one that does not count."""
    stop = threading.Event()

    def calls(client: _Client) -> list[float]:
        call(client)
        began, took = time.monotonic(), [call(client)]
        while not stop.is_set() and time.monotonic() < began + seconds:
            took.append(call(client))
        return took

    began = time.monotonic()
    with ThreadPoolExecutor(len(clients)) as threads:
        try:
            running = [threads.submit(calls, client) for client in clients]
            while wait(running, _LOOK_S).not_done:
                show(min(time.monotonic() - began, seconds))
        finally:
            stop.set()
    return [each.result() for each in running]


@contextlib.contextmanager
def _progress(total_s: float) -> Iterator[Callable[[str, float, float], None]]:
    """Shows what is measured and how far, on a terminal at stderr only."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total_s)
        yield lambda what, before_s, now_s: progress.update(task, description=what, completed=before_s + now_s)


def _table(measured: Sequence[Measured]) -> Table:
    table = Table("what", ">calls/s", ">GB/s", ">of memory\ncopy", ">p50 ms", ">p99 ms")
    for one in measured:
        share = "-" if one.of_memory_copy is None else f"{one.of_memory_copy:.2f}"
        rates = map(rate_text, (one.calls_per_s, one.gb_per_s))
        table.add_row(one.what, *rates, share, f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}")
    return table
