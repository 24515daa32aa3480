"""Compare with TransferQueue on the workload of its performance test: put, list, get of all fields, clear.

On one host, one process each. A quick run takes an eighth of the rows of "small"; its time is not that of "small".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from exchanges.compare import SAME_HOST, TRANSFER_QUEUE, add_goal, report, total
from session import Session
from timing import Steps, alternate
from workers import Worker
from workload import Workload

_SETTINGS = (("CI", 128, 4, 1024, 15), ("small", 1024, 9, 8192, 5))
_QUICK_PART = 8
_TIMES = 5.0


def measure(session: Session, ours: Worker, queue: Worker) -> None:
    workers = {SAME_HOST: ours, TRANSFER_QUEUE: queue}
    for name, rows, fields, length, rounds in _SETTINGS:
        part = _QUICK_PART if session.quick and name == "small" else 1
        for kind in (False, True):
            workload = Workload(f"{name} / {part}" if part > 1 else name, rows // part, fields, length, kind)
            _beside(session, workload, rounds, workers)


def _beside(session: Session, workload: Workload, rounds: int, workers: Mapping[str, Worker]) -> None:
    size_bytes = 0
    for each in workers.values():
        size_bytes = each.call("prepare", workload=workload.json())["bytes"]
    systems = {name: partial(each.call, "round") for name, each in workers.items()}
    measured = alternate(systems, session.rounds(rounds), 1)
    name = f"{workload.name} {workload.kind}"
    size = f"{workload.rows} x {workload.fields} x {workload.length}, {size_bytes / 1e6:.3g} MB"
    report(session, f"performance_test.{name}", f"{name}: {size}", measured)
    ours, queue = (_compared(measured[system]) for system in (SAME_HOST, TRANSFER_QUEUE))
    for step in ours:
        title = f"{name}, {step}: at least {_TIMES:g} x as fast as {TRANSFER_QUEUE}"
        add_goal(session, title, ours[step], queue[step], _TIMES)


def _compared(steps: Steps) -> Steps:
    return {"put": steps["put"], "get": steps["get"], "put, list, get and clear": total(steps)}
