"""Measure the core's calls alone, by number of resident rows, and the memory of a row beside its values.

    python benchmarks/core_calls.py [--runs N] [--rows 2000,10000,100000,1000000]

There is no server and there are no bytes of values. Rows have 10 fields (7 jagged of 512 to 4096 entries, 3 of one
entry) and ids such as "0123456789abcdef_g0". They were put 512 at a time, and the claims of a task require all their
fields. A batch is 512 rows that were put together, with 8 fields: 5 jagged, 3 dense. Medians in microseconds; `begin +
finish` is the whole put. Bytes a row are the growth of the process from an empty partition. The longest put is the
longest of those that filled the partition.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from dataplane_server.core.calls.answers import Grant, ReadPlan, Reservation
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.requests import (
    BeginRead,
    ClaimSamples,
    ClearSamples,
    EndRead,
    FinishWrite,
    PutSamples,
    RegisterPartition,
    ReleaseClaim,
)
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.plane import DataPlane

T = TypeVar("T")

JAGGED = ("input_ids", "f1", "f2", "f3", "f4", "f5", "f6")
DENSE = ("d0", "d1", "d2")
FIELDS = (*JAGGED, *DENSE)
BATCH_FIELDS = (*JAGGED[:5], *DENSE)
BATCH = 512
CLEARED = 2000


class Flow:
    """A partition of a core, filled and measured."""

    def __init__(self) -> None:
        self.plane = DataPlane(Limits(memory_bytes=1 << 40))
        self.plane.apply(RegisterPartition("r", Definition("p", FIELDS, ("train",))), 0.0)
        self.batches: list[list[str]] = []
        self._dice = random.Random(0)
        self._numbers = np.random.default_rng(0)
        self._calls = 0

    def ids(self, count: int) -> list[str]:
        return [f"{self._dice.getrandbits(64):016x}_g{row % 8}" for row in range(count)]

    def request_id(self) -> str:
        self._calls += 1
        return f"request-{self._calls}"

    def put_call(self, ids: Sequence[str], fields: Sequence[str]) -> PutSamples:
        columns = []
        for name in fields:
            lengths = self._numbers.integers(512, 4096, len(ids)) if name in JAGGED else None
            dtype = "int64" if name == "input_ids" else "float32"
            shape = Shape("dense" if lengths is None else "jagged", dtype, ())
            columns.append(ColumnSpec(name, shape, lengths))
        return PutSamples(self.request_id(), "p", ids, columns)

    def put(self, put: PutSamples) -> None:
        begun = self.plane.apply(put, 0.0)
        assert isinstance(begun, Reservation)
        self.plane.apply(FinishWrite(begun.ticket), 0.0)

    def fill(self, rows: int) -> float:
        """Put rows until `rows` are resident. Returns the longest put in seconds."""
        longest = 0.0
        for _ in range(-(-rows // BATCH)):
            self.batches.append(self.ids(BATCH))
            put = self.put_call(self.batches[-1], FIELDS)
            longest = max(longest, timing(self.put, put)[0])
        return longest

    def claim(self, count: int) -> Grant:
        request = ClaimSamples(self.request_id(), "p", "train", FIELDS, count, count)
        grant = self.plane.apply(request, 0.0)
        assert isinstance(grant, Grant)
        return grant

    def clear(self, ids: Sequence[str]) -> None:
        self.plane.apply(ClearSamples(self.request_id(), "p", ids), 0.0)

    def read(self, ids: Sequence[str], fields: Sequence[str]) -> ReadPlan:
        return self.plane.apply(BeginRead("p", ids, fields), 0.0)

    def end_read(self, ticket: int) -> None:
        self.plane.apply(EndRead(ticket), 0.0)

    def some_batch(self) -> list[str]:
        return self._dice.choice(self.batches)

    def some_rows(self, count: int) -> list[str]:
        """Rows that are not neighbours, if there are enough rows."""
        chosen = self._dice.sample(range(BATCH * len(self.batches)), count)
        return [self.batches[row // BATCH][row % BATCH] for row in chosen]


def timing(call: Callable[..., T], *arguments: object) -> tuple[float, T]:
    """CPU time of a call in seconds, and its answer. The core never waits, and other programs of the machine disturb
    CPU time less than elapsed time.
    """
    began = time.process_time()
    answer = call(*arguments)
    return time.process_time() - began, answer


def measure(flow: Flow, runs: int) -> dict[str, float]:
    """Medians in microseconds. The resident rows are the same afterwards."""
    times: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[..., T], *arguments: object) -> T:
        took, answer = timing(call, *arguments)
        times.setdefault(name, []).append(took)
        return answer

    for _ in range(runs):
        batch, new, one = flow.some_batch(), flow.ids(BATCH), flow.ids(1)
        timed("put 512 x 8, over existing rows", flow.put, flow.put_call(batch, BATCH_FIELDS))
        plan = timed("begin read 512 x 8", flow.read, batch, BATCH_FIELDS)
        timed("end read 512 x 8", flow.end_read, plan.ticket)
        plan = timed("begin read 512 x 8, rows apart", flow.read, flow.some_rows(BATCH), BATCH_FIELDS)
        flow.end_read(plan.ticket)
        timed("put 512 x 8, new rows", flow.put, flow.put_call(new, BATCH_FIELDS))
        timed("clear 512", flow.clear, new)
        grants = [timed("claim 512", flow.claim, BATCH), timed("claim 1", flow.claim, 1)]
        for grant in grants:
            flow.plane.apply(ReleaseClaim(flow.request_id(), grant.claim_id), 0.0)
        timed("put 1 x 4, new row", flow.put, flow.put_call(one, BATCH_FIELDS[:4]))
        plan = timed("begin read 1 x 4", flow.read, one, BATCH_FIELDS[:4])
        flow.end_read(plan.ticket)
        timed("clear 1", flow.clear, one)
    for _ in range(max(3, runs // 20)):
        apart = flow.some_rows(min(CLEARED, BATCH * len(flow.batches) // 2))
        timed("clear 2000, rows apart", flow.clear, apart)
        flow.put(flow.put_call(apart, FIELDS))
        apart = flow.some_rows(len(apart))
        plan = flow.read(apart, FIELDS)
        timed("clear 2000, rows apart, being read", flow.clear, apart)
        timed("end of that read", flow.end_read, plan.ticket)
        flow.put(flow.put_call(apart, FIELDS))
    return {name: statistics.median(of_call) * 1e6 for name, of_call in times.items()}


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def figures(rows: int, runs: int) -> dict[str, float]:
    """All figures at `rows` rows, in a separate process: earlier measurements leave memory behind."""
    flow = Flow()
    warm = Flow()
    warm.fill(2 * BATCH)
    flow.put(flow.put_call(flow.ids(BATCH), FIELDS))
    flow.clear(flow.ids(1))
    del warm
    gc.collect()
    gc.disable()  # the cost of a full collection depends on the program around the core
    before = resident_bytes()
    longest = flow.fill(rows)
    grown = resident_bytes() - before
    names = 8 * BATCH * len(flow.batches)  # the lists of ids that this program keeps
    found = measure(flow, runs)
    flow.plane.take_effects()
    found["longest put while filling"] = longest * 1e6
    found["bytes a row"] = (grown - names) / (BATCH * len(flow.batches))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rows", default="2000,10000,100000,1000000")
    arguments = parser.parse_args()
    sizes = [int(text) for text in arguments.rows.split(",")]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        columns = [pool.apply(figures, (rows, arguments.runs)) for rows in sizes]
    table = Table(title=f"medians of {arguments.runs} runs, microseconds", box=None, title_justify="left")
    table.add_column("call")
    for rows in sizes:
        table.add_column(f"{rows:,} rows", justify="right")
    for name in columns[0]:
        table.add_row(name, *(f"{column[name]:,.0f}" for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
