"""A discrete-event simulation of coordinators as servers of one queue, with service times that were measured.

A coordinator serves one call at a time, in the order in which they come. Generator nodes put rows, one batch after
another; the ranks of a trainer take steps together: each claims rows that wait for logprobs, reads them, commits with
logprobs, claims them for training, reads, commits and clears them. Beside these calls come heartbeats of sessions,
all at once every half second, and the beats of node actors, spread over time. Nothing waits for rows or for memory, and
networks take no time: the simulation shows what the event loop of a coordinator takes, and nothing else.
"""

from __future__ import annotations

import heapq
import random
import zlib
from bisect import bisect_left
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import fmean, quantiles
from typing import Any

TOO_LATE_S = 0.1
"""A coordinator is saturated when more than 1 % of its calls wait for longer."""
_HEARTBEAT_TIMES_S, _HEARTBEATS_PER_S, BEAT_S = 0.5, 0.3, 0.5
_PARTITIONS = 64
_FULL = 0.98

Process = Generator[tuple[float, str], float, None]
"""Yields when it makes its next call, and which; gets the time of the answer. Never makes a call in the past."""


@dataclass(frozen=True)
class Workload:
    """What clients of one coordinator do. spread_s: within which the ranks of a step begin. copy_s: between the two
    calls of a write. compute: share of a step between a read and its commit.
    """

    rows_per_s: float
    put_rows: int
    claim_rows: int
    nodes: int = 1_000
    ranks: int = 64
    sessions: int = 1_064
    spread_s: float = 0.2
    copy_s: float = 0.001
    compute: float = 0.5

    @property
    def step_s(self) -> float:
        """In which the ranks together take as many rows as come."""
        return self.claim_rows * self.ranks / self.rows_per_s


@dataclass(frozen=True)
class ServiceTimes:
    """Seconds. calls: samples by "operation rows". beat: of a node actor, by the number of nodes."""

    calls: Mapping[str, Sequence[float]]
    heartbeat: float
    beat: Mapping[int, float]

    @classmethod
    def of_nodes(cls, inputs: Mapping[str, Any]) -> ServiceTimes:
        """Of calls that come from nodes of the cluster. inputs: as `measure.measure` returns them."""
        calls = {
            name.removeprefix("node "): [sample / 1e6 for sample in samples]
            for name, samples in inputs["calls_us"].items()
            if name.startswith("node ")
        }
        beat = {int(nodes): taken / 1e6 for nodes, taken in inputs["beat_us"].items()}
        return cls(calls, inputs["heartbeat_us"] / 1e6, beat)

    def of(self, workload: Workload) -> dict[str, Sequence[float]]:
        """Of what happens in this workload, by the names that processes use."""
        beats = workload.sessions * _HEARTBEATS_PER_S * _HEARTBEAT_TIMES_S
        return {
            **self.calls,
            "heartbeats": [beats * self.heartbeat],
            "beat": [interpolated(self.beat, workload.nodes)],
        }


@dataclass(frozen=True)
class Report:
    """What became of a workload at one coordinator. waits: of calls before their service, in seconds, by size.
    answers: of calls until their answer, likewise.
    """

    utilisation: float
    rows_per_s: float
    calls_per_s: float
    waits: Sequence[float] = field(repr=False)
    answers: Sequence[float] = field(repr=False)

    def wait_s(self, percent: int) -> float:
        return quantile(self.waits, percent)

    @property
    def is_saturated(self) -> bool:
        return self.wait_s(99) > TOO_LATE_S


def simulate(workload: Workload, times: ServiceTimes, seed: int = 1) -> Report:
    """Run for some steps, or a minute at most, of simulated time; the first quarter is not counted."""
    seconds = min(max(12.0, 4 * workload.step_s), 60.0)
    chance, order = random.Random(seed), count()
    service = times.of(workload)
    pending = [(*next(process), next(order), process) for process in _processes(workload, chance)]
    events = [(at, number, operation, process) for at, operation, number, process in pending]
    heapq.heapify(events)
    warm_s, free_at, busy, rows = seconds / 4, 0.0, 0.0, 0
    waits, answers = [], []
    while events[0][0] < seconds:
        at, _, operation, process = heapq.heappop(events)
        begins = max(at, free_at)
        free_at = begins + chance.choice(service[operation])
        busy += max(0.0, min(free_at, seconds) - max(begins, warm_s))
        if at >= warm_s and operation not in ("beat", "heartbeats"):
            waits.append(begins - at)
            answers.append(free_at - at)
            rows += workload.put_rows if operation.startswith("put") else 0
        then, called = process.send(free_at)
        heapq.heappush(events, (then, next(order), called, process))
    lasted_s = seconds - warm_s
    return Report(busy / lasted_s, rows / lasted_s, len(waits) / lasted_s, sorted(waits), sorted(answers))


def saturation(workload: Workload, times: ServiceTimes, least: float = 100.0, most: float = 1e6) -> float:
    """The most rows a second at which a coordinator is neither full nor saturated, within 3 %; 0 below `least`."""
    low, high = least, most
    while high / low > 1.03:
        middle = replace(workload, rows_per_s=(low * high) ** 0.5)
        if needed(middle, times) > _FULL or simulate(middle, times).is_saturated:
            high = middle.rows_per_s
        else:
            low = middle.rows_per_s
    return low if low > least else 0.0


def coordinators_for(rows_per_s: float, each: float, most: int = _PARTITIONS) -> int | None:
    """How many coordinators serve so many rows a second, if each of them can serve `each`, and partitions are spread by
    a hash of their names; None if not even `most` do.
    """
    return next((number for number in range(1, most + 1) if rows_per_s * busiest_share(number) <= each), None)


def busiest_share(coordinators: int, partitions: int = _PARTITIONS) -> float:
    """The part of all partitions that the busiest coordinator has."""
    load = [0] * coordinators
    for number in range(partitions):
        load[zlib.crc32(f"rollouts-{number}".encode()) % coordinators] += 1
    return max(load) / partitions


def quantile(ordered: Sequence[float], percent: int) -> float:
    return quantiles(ordered, n=100)[percent - 1] if len(ordered) > 1 else 0.0


def interpolated(points: Mapping[int, float], x: float) -> float:
    """Between measured points on straight lines, beyond them as on the nearest line."""
    known = sorted(points)
    at = min(max(bisect_left(known, x), 1), len(known) - 1)
    left, right = known[at - 1], known[at]
    return points[left] + (points[right] - points[left]) * (x - left) / (right - left)


def row_costs(workload: Workload, times: ServiceTimes) -> float:
    """Seconds of the event loop for one row, from its put to its clear."""
    put = fmean(times.calls[f"put {workload.put_rows}"]) + fmean(times.calls[f"finish {workload.put_rows}"])
    step = sum(fmean(times.calls[operation]) for operation in _step(workload))
    return put / workload.put_rows + step / workload.claim_rows


def needed(workload: Workload, times: ServiceTimes) -> float:
    """The part of an event loop that a workload takes, by arithmetic; above 1 if it takes more than one."""
    service = times.of(workload)
    fixed = service["heartbeats"][0] / _HEARTBEAT_TIMES_S + service["beat"][0] * workload.nodes / BEAT_S
    return fixed + workload.rows_per_s * row_costs(workload, times)


# -- processes ---------------------------------------------------------------------------------------------------------


def _processes(workload: Workload, chance: random.Random) -> list[Process]:
    nodes = [_generator(workload, chance) for _ in range(workload.nodes)]
    ranks = [_rank(workload, chance) for _ in range(workload.ranks)]
    beats = [_regular("beat", BEAT_S, chance.random() * BEAT_S) for _ in range(workload.nodes)]
    return [*nodes, *ranks, *beats, _regular("heartbeats", _HEARTBEAT_TIMES_S, 0.0)]


def _generator(workload: Workload, chance: random.Random) -> Process:
    """A node that makes rows at its own pace, and puts one batch at a time."""
    batches_per_s = workload.rows_per_s / workload.put_rows / workload.nodes
    due = done = 0.0
    while True:
        due += chance.expovariate(batches_per_s)
        done = yield max(due, done), f"put {workload.put_rows}"
        done = yield done + workload.copy_s, f"finish {workload.put_rows}"


def _rank(workload: Workload, chance: random.Random) -> Process:
    """A rank, which begins each step with all others, or as soon as it is ready."""
    step_s, done = workload.step_s, 0.0
    for step in count():
        done = max(done, (step + 0.5) * step_s + chance.random() * workload.spread_s)
        for operation in _step(workload):
            if operation.startswith("commit"):
                done += step_s * workload.compute
            elif operation.startswith("finish"):
                done += workload.copy_s
            done = yield done, operation


def _step(workload: Workload) -> list[str]:
    rows, read = workload.claim_rows, "read_singles" if workload.put_rows == 1 else "read"
    logprobs = [f"claim {rows}", f"{read} {rows}", f"commit {rows}", f"finish {rows}"]
    return [*logprobs, f"claim {rows}", f"{read} {rows}", f"plain_commit {rows}", f"clear {rows}"]


def _regular(operation: str, period_s: float, first: float) -> Process:
    for number in count():
        yield first + number * period_s, operation
